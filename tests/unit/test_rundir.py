"""Damaged run directories: what cannot be read is skipped, and links are never followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator import rundir
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from trainer.contract.exit_record import ExitRecord, Outcome, render_exit_record
from trainer.contract.fence import Term

KEY = AttemptKey("train-abc", 1)
LINE = json.dumps({"at": "2026-11-20T12:00:00Z", "rank": 0, "phase": "step", "step": 1})


@pytest.fixture
def life(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts/1/replica-0/1"
    folder.mkdir(parents=True)
    return folder


def job_of(folder: Path) -> JobFolder:
    return JobFolder(folder.parent, folder.name)


def news(job_dir: Path, known: JournalOffsets | None = None) -> list[JournalBatch]:
    return list(rundir.read_news(job_of(job_dir), KEY, 2, {} if known is None else {(0, 1): known}))


def test_only_journals_that_have_grown_are_read(tmp_path: Path, life: Path) -> None:
    for number in (1, 2):
        (life.parent / str(number)).mkdir(exist_ok=True)
        (life.parent / f"{number}/progress.jsonl").write_text(f"{LINE}\n")
        (life.parent / f"{number}/events.jsonl").write_text('{"kind": "note", "at": "2026-11-20T12:00:00Z"}\n')
        (life.parent / f"{number}/exit.json").write_text("{")
    (batch,) = rundir.read_news(job_of(tmp_path), KEY, 2, {}, {(0, 2): {"progress.jsonl"}, (1, 1): {"events.jsonl"}})
    assert (batch.incarnation, len(batch.progress), batch.has_broken_exit) == (2, 1, False)
    assert not batch.events


def test_an_exit_record_that_appears_during_the_reading_is_not_broken(
    tmp_path: Path, life: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (life / "progress.jsonl").write_text(f"{LINE}\n")
    record = ExitRecord(outcome=Outcome.SUCCEEDED, at="2026-11-20T12:00:00Z", generation=1, restarts=0)
    read = rundir.read_journal

    def read_late(folder: Folder, path: Path, offset: int) -> rundir.Chunk:
        (life / "exit.json").write_text(json.dumps(render_exit_record(record)))
        return read(folder, path, offset)

    monkeypatch.setattr(rundir, "read_journal", read_late)
    (batch,) = news(tmp_path)
    assert (batch.exit_record, batch.has_broken_exit) == (None, False)
    (batch,) = news(tmp_path)
    assert (batch.exit_record, batch.has_broken_exit) == (record, False)


def test_an_incomplete_last_line_is_read_later(tmp_path: Path, life: Path) -> None:
    (life / "progress.jsonl").write_text(f"{LINE}\n{LINE}\n{LINE[:20]}")
    (batch,) = news(tmp_path)
    assert len(batch.progress) == 2
    assert batch.progress_to == 2 * (len(LINE) + 1)
    assert news(tmp_path, JournalOffsets(progress=batch.progress_to)) == []


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", "null", "[" * 200_000, '{"at":1}', LINE[:-1] + ', "metrics": {"loss": 1' + "0" * 400 + "}}", "\0"],
)
def test_an_invalid_line_is_skipped(tmp_path: Path, life: Path, line: str) -> None:
    (life / "progress.jsonl").write_text(f"{line}\n{LINE}\n")
    (life / "events.jsonl").write_text(f"{line}\n")
    (batch,) = news(tmp_path)
    assert [progress.step for _, progress in batch.progress] == [1]
    assert batch.progress_to == (life / "progress.jsonl").stat().st_size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 200_000,
        '{"outcome": "odd"}',
        '{"outcome": ["succeeded"]}',
        '{"outcome": "failed", "generation": "x"}',
    ],
)
def test_an_exit_record_that_cannot_be_parsed_is_reported_as_broken(tmp_path: Path, life: Path, text: str) -> None:
    (life / "exit.json").write_text(text)
    (batch,) = news(tmp_path)
    assert (batch.exit_record, batch.has_broken_exit, batch.has_news) == (None, True, False)


def test_a_cause_of_an_unknown_kind_is_kept_as_unknown(tmp_path: Path, life: Path) -> None:
    (life / "exit.json").write_text('{"outcome": "failed", "failure": {"kind": ["a"], "message": "m"}}')
    (batch,) = news(tmp_path)
    assert batch.exit_record is not None
    assert batch.exit_record.failure is not None
    assert batch.exit_record.failure.kind == "unknown"


@pytest.mark.parametrize(
    "process", ['{"pid": Infinity}', "7", '{"pid": 1}', '{"pid": "x", "start_ticks": 1, "boot_id": "b"}']
)
def test_an_agent_record_that_cannot_be_parsed_is_none(tmp_path: Path, life: Path, process: str) -> None:
    (life / "agent.json").write_text(f'{{"claim": "c", "incarnation": 1, "process": {process}}}')
    with rundir.open_attempt(job_of(tmp_path), 1) as attempt:
        (found,) = rundir.incarnations(attempt, [0])
        assert found.agent() is None


@pytest.mark.parametrize("name", ["progress.jsonl", "events.jsonl", "exit.json", "agent.json"])
def test_a_pipe_a_folder_or_a_link_in_place_of_a_file_is_skipped(tmp_path: Path, life: Path, name: str) -> None:
    def nothing_is_read() -> bool:
        return not any(batch.has_news for batch in news(tmp_path))

    os.mkfifo(life / name)
    assert nothing_is_read()
    (life / name).unlink()
    (life / name).mkdir()
    assert nothing_is_read()
    (life / name).rmdir()
    (life / name).symlink_to(name)
    assert nothing_is_read()
    (life / name).unlink()
    (life / name).symlink_to("/dev/zero")
    assert nothing_is_read()


def test_folders_of_no_replica_are_skipped(tmp_path: Path, life: Path) -> None:
    attempt = life.parents[1]
    (attempt / ("replica-" + "9" * 25) / "1").mkdir(parents=True)
    (attempt / "replica-x").mkdir()
    (attempt / "replica-1").write_text("a file")
    (attempt / "replica-0" / "2").symlink_to("2")
    with rundir.open_attempt(job_of(tmp_path), 1) as folder:
        assert [(found.replica, found.number) for found in rundir.incarnations(folder, range(2))] == [(0, 1)]


def test_a_journal_that_was_cut_is_read_from_its_start(tmp_path: Path, life: Path) -> None:
    (life / "progress.jsonl").write_text(f"{LINE}\n")
    (batch,) = news(tmp_path, JournalOffsets(progress=2**62))
    assert batch.progress_cut
    assert (batch.progress_from, len(batch.progress)) == (0, 1)


def test_the_exit_record_waits_for_the_end_of_long_journals(
    tmp_path: Path, life: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "MAX_READ_BYTES", 3 * len(LINE))
    (life / "progress.jsonl").write_text(f"{LINE}\n" * 5)
    (life / "exit.json").write_text('{"outcome": "succeeded"}')
    (first,) = news(tmp_path)
    assert first.exit_record is None
    (rest,) = news(tmp_path, JournalOffsets(progress=first.progress_to))
    (last,) = news(tmp_path, JournalOffsets(progress=rest.progress_to)) if rest.exit_record is None else (rest,)
    assert last.exit_record is not None


def test_a_fence_is_raised_once(tmp_path: Path) -> None:
    folders = rundir.LocalRunDirectories(tmp_path)
    folders.fence("train-abc", 3)
    folders.fence("train-abc", 3)
    assert [path.name for path in (tmp_path / "train-abc/fence").iterdir()] == [Term(3, 0).file_name]


def test_a_journal_is_read_a_limited_number_of_lines_at_a_time(
    tmp_path: Path, life: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "MAX_READ_LINES", 2)
    (life / "progress.jsonl").write_text(f"{LINE}\n" * 5)
    offset, read = 0, []
    while batches := news(tmp_path, JournalOffsets(progress=offset)):
        (batch,) = batches
        read.append((len(batch.progress), batch.is_part))
        offset = batch.progress_to
    assert read == [(2, True), (2, True), (1, False)]


def test_an_endless_line_is_skipped_at_once(tmp_path: Path, life: Path) -> None:
    """A sparse file of a terabyte."""
    with (life / "events.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    (batch,) = news(tmp_path)
    assert batch.events_to == (1 << 40) - rundir.MAX_BACKLOG_BYTES
    (batch,) = news(tmp_path, JournalOffsets(events=batch.events_to))
    assert batch.events_to == (1 << 40) - rundir.MAX_READ_BYTES
    (batch,) = news(tmp_path, JournalOffsets(events=batch.events_to))
    assert batch.events_to == 1 << 40
    assert all(not each.has_news for each in news(tmp_path, JournalOffsets(events=1 << 40)))


def test_only_launched_replicas_and_their_newest_incarnations_are_read(tmp_path: Path, life: Path) -> None:
    for number in (*range(2, 100), 7_000_000):
        (life.parent / str(number)).mkdir()
    (life.parents[1] / "replica-5" / "1").mkdir(parents=True)
    with rundir.open_attempt(job_of(tmp_path), 1) as attempt:
        found = [(each.replica, each.number) for each in rundir.incarnations(attempt, range(2))]
    newest = (*range(101 - rundir.MAX_INCARNATIONS, 100), 7_000_000)
    assert found == [(0, number) for number in newest]


def test_an_attempt_can_be_withdrawn_twice(tmp_path: Path) -> None:
    folders = rundir.LocalRunDirectories(tmp_path)
    assert folders.withdraw("train-abc", 1)
    assert folders.withdraw("train-abc", 1)
    assert [path.name for path in (tmp_path / "train-abc/attempts/1").iterdir()] == ["claim"]
