"""Run directories are read part by part, so that a long outage's backlog costs neither memory nor the lease."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from orchestrator import rundir
from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.checks import CHECK_S
from orchestrator.intake import reading
from orchestrator.intake.intake import Intake
from orchestrator.intake.watches import Watches
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.jobs import JobLookup
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from orchestrator.simulator.virtual_clock import VirtualClock

LINE = json.dumps({"at": "2026-11-20T12:00:00Z", "rank": 0, "phase": "step", "step": 1}) + "\n"
KEYS = [AttemptKey(f"job-{number}", 1) for number in range(6)]
LAUNCHED = dict.fromkeys(KEYS, 2)
LINES = 10  # of each of two replicas


class Journals:
    """A store that records each transaction. It rejects one with a job named in `refused`."""

    def __init__(self) -> None:
        self.transactions: list[Sequence[JournalBatch]] = []
        self.asked: list[AttemptKey] = []  # of which the offsets were read
        self.refused: Collection[str] = ()

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        self.asked += keys
        stored = [batch for batches in self.transactions for batch in batches]
        return {
            key: {(each.replica, 1): JournalOffsets(progress=each.progress_to) for each in stored if each.key == key}
            for key in keys
        }

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        if any(batch.key.job_id in self.refused for batch in batches):
            raise ValueError("refused")
        self.transactions.append(batches)
        return {}

    def lines(self) -> Counter[str]:
        return Counter(
            {key.job_id: 0 for key in KEYS}
            | Counter(batch.key.job_id for batches in self.transactions for batch in batches for _ in batch.progress)
        )


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    for key in KEYS:
        for replica in range(2):
            life = tmp_path / key.job_id / f"attempts/1/replica-{replica}/1"
            life.mkdir(parents=True)
            (life / "progress.jsonl").write_text(LINE * LINES)
    return Journals()


@pytest.fixture
def calls() -> list[None]:
    return []


@pytest.fixture
def intake(journals: Journals, calls: list[None], tmp_path: Path) -> Intake:
    return Intake(
        journals,
        cast(JobLookup, None),
        VirtualClock(),
        partial(JobFolder, tmp_path),
        between=lambda: calls.append(None),
    )


def test_a_backlog_is_stored_in_parts_with_a_sign_of_life_after_each(
    journals: Journals, intake: Intake, calls: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 3 * LINES * len(LINE)
    monkeypatch.setattr(reading, "_PART_BYTES", part)
    assert intake.collect(LAUNCHED, set()) == {}
    assert journals.lines() == {key.job_id: 2 * LINES for key in KEYS}
    assert [sum(batch.length for batch in batches) for batches in journals.transactions] == [part] * 4
    assert len(calls) == 4


def test_many_short_journals_are_stored_together(journals: Journals, intake: Intake) -> None:
    assert intake.collect(LAUNCHED, set()) == {}
    assert len(journals.transactions) == 1


def test_rows_are_stored_in_the_order_of_their_keys(journals: Journals, intake: Intake) -> None:
    """So that a transaction writes few pages: in another order, SQLite takes a fifth longer."""
    assert intake.collect(dict.fromkeys(KEYS[3:] + KEYS[:3], 2), set()) == {}
    assert list(dict.fromkeys(batch.key for batch in journals.transactions[0])) == KEYS


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def watching(journals: Journals, clock: VirtualClock, tmp_path: Path) -> Intake:
    """An intake that has read everything and watches for more."""
    mine = Intake(
        journals, cast(JobLookup, None), clock, partial(JobFolder, tmp_path), watches=Watches(monotonic=clock.monotonic)
    )
    mine.collect(LAUNCHED, set())
    journals.asked.clear()
    return mine


def test_a_journal_that_grows_is_read_on_and_the_store_is_asked_once(
    journals: Journals, watching: Intake, tmp_path: Path
) -> None:
    for count in range(1, 4):
        write(tmp_path, KEYS[0])
        watching.collect(LAUNCHED, set())
        assert journals.lines()[KEYS[0].job_id] == 2 * LINES + count
        watching.collect(LAUNCHED, set())
    assert journals.asked == [KEYS[0]]


def test_what_the_store_refused_is_read_again(journals: Journals, watching: Intake, tmp_path: Path) -> None:
    journals.refused = {KEYS[0].job_id}
    write(tmp_path, KEYS[0])
    assert list(watching.collect(LAUNCHED, set())) == [KEYS[0]]
    journals.refused = ()
    assert watching.collect(LAUNCHED, set()) == {}
    assert journals.lines()[KEYS[0].job_id] == 2 * LINES + 1


def test_what_the_store_has_lost_is_read_again_at_the_next_check(
    journals: Journals, watching: Intake, clock: VirtualClock, tmp_path: Path
) -> None:
    write(tmp_path, KEYS[0])
    watching.collect(LAUNCHED, set())
    journals.transactions.clear()
    clock.advance(CHECK_S)
    watching.collect(LAUNCHED, set())
    assert journals.lines()[KEYS[0].job_id] == 2 * LINES + 1


def test_what_is_too_much_for_one_pass_comes_first_in_the_next(
    journals: Journals, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PASS_BYTES", 5 * LINES * len(LINE))  # two attempts and a half
    unread = intake.collect(LAUNCHED, set())
    assert list(unread) == KEYS[3:]
    assert "more to read than fits into one pass" in unread[KEYS[3]]
    assert list(intake.collect(LAUNCHED, set())) == KEYS[:3]
    assert intake.collect(LAUNCHED, set()) == {}
    assert journals.lines() == {key.job_id: 2 * LINES for key in KEYS}


def test_those_who_tell_much_do_not_keep_the_others_from_being_heard(
    journals: Journals, intake: Intake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PASS_BYTES", 4 * LINES * len(LINE))
    for _ in range(3):
        intake.collect(LAUNCHED, set())
        for journal in (tmp_path / KEYS[0].job_id).rglob("progress.jsonl"):
            with journal.open("a") as file:
                file.write(LINE * 2 * LINES)
    assert all(journals.lines().values())


def test_a_lost_lease_ends_the_reading(journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise LeaseLost("it is over")

    monkeypatch.setattr(reading, "_PART_BYTES", 1)
    mine = Intake(journals, cast(JobLookup, None), VirtualClock(), partial(JobFolder, tmp_path), between=lost)
    with pytest.raises(LeaseLost):
        mine.collect(LAUNCHED, set())
    assert len(journals.transactions) == 1


def test_one_attempt_that_the_store_refuses_keeps_nobody_else_out(journals: Journals, intake: Intake) -> None:
    journals.refused = {KEYS[3].job_id}
    assert intake.collect(LAUNCHED, set()) == {KEYS[3]: "refused"}
    assert journals.lines() == {key.job_id: 0 if key is KEYS[3] else 2 * LINES for key in KEYS}


LINES_OF_A_TURN = 8


@pytest.fixture
def ticking(journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Intake:
    """An intake whose clock advances a second per reading, so heavy attempts have two more turns in a pass."""
    monkeypatch.setattr(reading, "_TURN_BYTES", LINES_OF_A_TURN * len(LINE))
    monkeypatch.setattr(rundir, "MAX_READ_BYTES", LINES_OF_A_TURN * len(LINE))
    monkeypatch.setattr(reading, "_HEAVY_S", (2.0, 2.0))
    monkeypatch.setattr(reading, "_MORE_BYTES", 0)
    seconds = itertools.count()
    clock = lambda: float(next(seconds))  # noqa: E731
    return Intake(journals, cast(JobLookup, None), VirtualClock(), partial(JobFolder, tmp_path), monotonic=clock)


def flood(tmp_path: Path, key: AttemptKey, lines: int = 1000) -> None:
    with (tmp_path / key.job_id / "attempts/1/replica-0/1/progress.jsonl").open("a") as file:
        file.write(LINE * lines)


def write(tmp_path: Path, key: AttemptKey) -> None:
    """Append one line, as most attempts do between two passes."""
    flood(tmp_path, key, 1)


def test_a_flooding_job_has_its_turns_and_others_are_read_in_the_same_pass(
    journals: Journals, ticking: Intake, tmp_path: Path
) -> None:
    for _ in range(6):
        ticking.collect(LAUNCHED, set())  # the first files are longer than a turn
    flood(tmp_path, KEYS[0])
    ticking.collect(LAUNCHED, set())
    for count in range(1, 5):
        before = journals.lines()[KEYS[0].job_id]
        for key in KEYS[1:]:
            write(tmp_path, key)
        journals.transactions.append([])
        unread = ticking.collect(LAUNCHED, set())
        assert list(unread) == KEYS[:1]
        assert journals.lines() == {
            **{key.job_id: 2 * LINES + count for key in KEYS[1:]},
            KEYS[0].job_id: before + 2 * LINES_OF_A_TURN,
        }
        last = journals.transactions[-2:]
        assert {batch.key for batches in last for batch in batches} == {KEYS[0]}, "attempts with few lines come first"


def test_flooding_jobs_share_the_time_in_rotation(journals: Journals, ticking: Intake, tmp_path: Path) -> None:
    for key in KEYS:
        flood(tmp_path, key)
    for _ in range(30):
        ticking.collect(LAUNCHED, set())
    read = journals.lines().values()
    assert max(read) - min(read) <= LINES_OF_A_TURN + LINES
    assert sum(read) >= 30 * 2 * LINES_OF_A_TURN


def test_a_replica_that_floods_keeps_no_other_of_its_attempt_from_being_read(
    journals: Journals, ticking: Intake, tmp_path: Path
) -> None:
    flood(tmp_path, KEYS[0])
    for _ in range(3):
        ticking.collect({KEYS[0]: 2}, set())
    replicas = Counter(batch.replica for batches in journals.transactions for batch in batches for _ in batch.progress)
    assert replicas[1] == LINES
