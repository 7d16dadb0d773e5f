"""Workers that report and then hang: which limit applies, and what the agent does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents import WILD
from tests.elastic.harness import SCRIPTS, TWO, Job
from trainer.contract.exit_record import Outcome
from trainer.contract.launch import LaunchPolicy
from trainer.contract.progress import Phase
from trainer.elastic.health.watch import Watch

LIMITS = LaunchPolicy(
    max_restarts=0, stop_timeout_s=1, log_limit_bytes=1, startup_timeout_s=100.0, heartbeat_timeout_s=10.0
)


def report(
    journal: Path, rank: int, phase: Phase = Phase.STEP, step: int = 1, generation: int = 1, at: str = ""
) -> None:
    line = {"at": at, "rank": rank, "generation": generation, "phase": phase.value, "step": step}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")


def silent_for(watch: Watch, from_s: int, to_s: int) -> list[int]:
    """The ranks that hang after looks at every second of the span."""
    found: list[int] = []
    for now_s in range(from_s, to_s + 1):
        found = [stuck.rank for stuck in watch.look(float(now_s))]
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "progress.jsonl"


def begun(journal: Path, *ranks: int) -> Watch:
    watch = Watch(journal, LIMITS)
    watch.begin(1, ranks, 0.0)
    return watch


def test_a_rank_that_is_silent_for_longer_than_its_limit_hangs(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 0, step=7)
    assert silent_for(watch, 1, 11) == []
    (stuck,) = watch.look(12.0)
    assert stuck.sentence == "reported nothing for 11 s in phase step after step 7 (limit 10 s)"


def test_ranks_stall_if_each_is_in_one_step_for_five_times_longer_than_usual_and_two_seconds(journal: Path) -> None:
    watch = begun(journal, 0, 1)
    for step in range(10):
        for rank in (0, 1):
            report(journal, rank, step=step, at=f"2026-01-01T00:00:{step:02}+00:00")
        watch.look(float(step))
    looks = [(watch.is_stalled(9.0 + after_s), after_s) for after_s in (0.0, 4.9, 5.1)]
    assert looks == [(False, 0.0), (False, 4.9), (True, 5.1)]
    report(journal, 0, Phase.WAITING, step=9)
    watch.look(13.0)
    assert watch.is_stalled(15.0), "it is still the same step"
    report(journal, 1, step=10)
    watch.look(15.0)
    assert not watch.is_stalled(16.0), "one of them goes on"
    watch.begin(2, (0, 1), 17.0)
    assert not watch.is_stalled(100.0), "they start"


def test_a_long_snapshot_is_no_stall(journal: Path) -> None:
    watch = begun(journal, 0)
    for step in range(10):
        report(journal, 0, step=step, at=f"2026-01-01T00:00:{step:02}+00:00")
        watch.look(float(step))
    report(journal, 0, Phase.SNAPSHOT, step=9)
    watch.look(10.0)
    assert not watch.is_stalled(100.0)


def test_a_rank_that_waits_for_its_peers_does_not_hang(journal: Path) -> None:
    watch = begun(journal, 0, 1)
    report(journal, 0, Phase.WAITING)
    report(journal, 1)
    assert silent_for(watch, 1, 30) == [1]


def test_a_report_ends_the_silence(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 0)
    assert silent_for(watch, 1, 11) == []
    report(journal, 0, step=2)
    assert silent_for(watch, 12, 21) == []


def test_a_journal_that_its_job_has_cut_is_read_from_its_start(journal: Path) -> None:
    watch = begun(journal, 0)
    for step in range(9):
        report(journal, 0, step=step)
    assert silent_for(watch, 1, 11) == []
    journal.write_bytes(b"")
    report(journal, 0, step=9)
    assert silent_for(watch, 12, 21) == []


def test_a_rank_is_judged_only_if_it_has_reported_and_then_also_while_it_starts_again(journal: Path) -> None:
    watch = begun(journal, 0, 1)
    report(journal, 0)
    silent_for(watch, 1, 5)
    watch.begin(2, (0, 1), 6.0)
    assert silent_for(watch, 6, 106) == []
    assert silent_for(watch, 107, 107) == [0]


def test_a_line_without_a_generation_is_of_the_current_one(journal: Path) -> None:
    watch = begun(journal, 0)
    for generation in (1, 2):
        watch.begin(generation, (0,), 0.0)
        for now_s in range(1, 200):
            with journal.open("a") as file:
                file.write('{"at": "", "rank": 0}\n')
            assert watch.look(float(now_s)) == []


def test_a_rank_that_is_new_to_its_agent_is_not_heard(journal: Path) -> None:
    """Then the agent judges it by what its process does."""
    watch = begun(journal, 1)
    report(journal, 1)
    assert silent_for(watch, 1, 2) == []
    assert watch.has_heard
    watch.begin(2, (0,), 3.0)
    assert not watch.has_heard
    watch.begin(3, (1,), 4.0)
    assert watch.has_heard


def test_a_rank_that_only_notes_measurements_is_not_judged(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 1, phase=Phase.NOTE)
    assert 1 not in silent_for(watch, 0, 300)


def test_a_line_of_the_previous_generation_does_not_end_the_silence(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 0)
    silent_for(watch, 1, 5)
    watch.begin(2, (0,), 6.0)
    silent_for(watch, 6, 100)
    report(journal, 0, generation=1)
    assert silent_for(watch, 101, 107) == [0]


def test_silence_while_the_agent_was_paused_does_not_count(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 0)
    silent_for(watch, 1, 5)
    assert watch.look(5000.0) == []
    assert silent_for(watch, 5001, 5010) == []
    assert silent_for(watch, 5011, 5011) == [0]


def test_silence_while_the_disk_is_full_does_not_count(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = begun(journal, 0)
    report(journal, 0)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.elastic.health.watch.find_full_disk", lambda _: "the disk is full")
        assert silent_for(watch, 1, 30) == []
    assert silent_for(watch, 31, 32) == []
    assert silent_for(watch, 33, 45) == [0]


def test_silence_while_the_journal_is_unreachable_does_not_count(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 0)
    silent_for(watch, 1, 5)
    away = journal.rename(journal.with_name("away"))
    assert silent_for(watch, 6, 30) == []
    away.rename(journal)
    assert silent_for(watch, 31, 45) == [0]


@pytest.mark.parametrize("other", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_silence_while_the_journal_is_no_file_does_not_count(journal: Path, other: Callable[[Path], object]) -> None:
    watch = begun(journal, 0)
    report(journal, 0)
    silent_for(watch, 1, 5)
    journal.unlink()
    other(journal)
    assert silent_for(watch, 6, 30) == []


def test_silence_does_not_count_while_there_is_more_to_read(journal: Path) -> None:
    watch = begun(journal, 0)
    report(journal, 0, step=1)
    journal.write_bytes(journal.read_bytes() + b"\n" * 300_000)
    assert silent_for(watch, 1, 30) == []
    report(journal, 0, step=2)
    assert silent_for(watch, 31, 40) == []
    assert silent_for(watch, 41, 45) == [0]


@pytest.mark.parametrize("world", [{}, {"world_size": 2}])
@pytest.mark.parametrize("rank", [-1, 2, 10**300])
def test_a_rank_outside_its_world_is_not_judged(journal: Path, rank: int, world: dict[str, int]) -> None:
    watch = begun(journal, 0)
    journal.write_text(json.dumps({"at": "", "rank": rank, **world}) + "\n")
    assert silent_for(watch, 1, 30) == []


def test_a_rank_that_the_script_itself_has_spawned_is_judged(journal: Path) -> None:
    watch = begun(journal, 0)
    journal.write_text(json.dumps({"at": "", "rank": 3, "world_size": 4}) + "\n")
    assert silent_for(watch, 1, 30) == [3]


def test_torn_and_invalid_lines_are_ignored(journal: Path) -> None:
    watch = begun(journal, 0)
    journal.write_text('{"rank": 0\n[]\n{"rank": "x", "at": ""}\n{"rank": 1e999, "at": ""}\n')
    report(journal, 0)
    assert silent_for(watch, 1, 12) == [0]


@pytest.mark.parametrize("name", ["at", "rank", "generation", "phase", "step", "metrics"])
def test_any_value_in_a_line_leaves_the_agent_running(journal: Path, name: str) -> None:
    watch = begun(journal, 0)
    good = {"at": "2026-11-20T12:00:00Z", "rank": 0, "phase": "step", "step": 1}
    journal.write_text("".join(f"{json.dumps({**good, name: value})}\n" for value in WILD))
    watch.look(1.0)
    assert {each.rank for each in watch.look(50.0)} <= {0}


@pytest.mark.long
@pytest.mark.smoke
def test_a_hang_is_ended_by_a_restart_in_place_and_all_stacks_are_saved(job: Job) -> None:
    """The stop timeout, an hour, does not delay the restart."""
    job.policy(max_restarts=1, stop_timeout_s=3600, heartbeat_timeout_s=3.0)
    agent = job.start(TWO, str(SCRIPTS / "hanging.py"))
    assert agent.wait() == 0, agent.printed()
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    (failed,) = agent.events("worker.failed")
    assert failed["evidence"]["kind"] == "hang"
    assert failed["evidence"]["rank"] == 1
    assert failed["sentence"].startswith("rank 1: reported nothing for ")
    assert [event["evidence"]["ranks"] for event in agent.events("stacks.saved")] == [[0, 1]]
    for rank in range(2):
        assert "in hang" in (agent.folder / "g1" / f"local-{rank}" / "stacks.txt").read_text()
    assert len(agent.events("restart.in_place")) == 1
