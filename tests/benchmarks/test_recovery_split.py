"""The recovery benchmark: its JSON, its tables, and the parts of a restart's time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from benchmarks.recovery.__main__ import Score, render
from benchmarks.recovery.contestants import Setting
from benchmarks.recovery.split import Kill, Split, split_all, split_restart, summarize
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind, JournalEvent, render_journal_event
from trainer.contract.progress import Phase, Progress, render_progress

BEGAN = datetime(2026, 11, 22, tzinfo=timezone.utc)
KILL = Kill(at_s=BEGAN.timestamp(), first=(20, 2))


def at(seconds: float) -> str:
    return render_time(BEGAN + timedelta(seconds=seconds))


def say(seconds: float, phase: Phase, step: int | None = None, pid: int = 20) -> Progress:
    place = {"rank": 0, "local_rank": 0, "world_size": 1, "generation": 2}
    return Progress(at=at(seconds), pid=pid, phase=phase, step=step, **place)


def fail(seconds: float) -> JournalEvent:
    return JournalEvent(at=at(seconds), kind=EventKind.WORKER_FAILED.value, sentence="", generation=1)


RESTART = [
    say(0.5, Phase.STEP, 12, pid=10),
    say(1.0, Phase.DATA),
    say(1.1, Phase.RESTORE),
    say(1.5, Phase.START),
    say(2.0, Phase.WAITING),
    say(4.0, Phase.RESTORE),
    say(5.0, Phase.STEP),
    say(7.5, Phase.STEP, 11),
    say(7.6, Phase.STEP, 12),
]


def test_each_part_ends_where_the_next_begins() -> None:
    split = split_restart(KILL, RESTART, [fail(-3.0), fail(0.25), fail(9.0)])
    assert split is not None
    assert {name: pytest.approx(seconds) for name, seconds in asdict(split).items()} == {
        "notice_s": 0.25,
        "process_s": 0.75,
        "verify_s": 0.5,
        "device_s": 2.5,
        "load_s": 1.0,
        "first_step_s": 2.5,
    }


def test_without_an_agents_journal_the_notice_is_part_of_the_start() -> None:
    split = split_restart(KILL, RESTART, [fail(-3.0)])
    assert split is not None
    assert split.notice_s is None
    assert split.process_s == pytest.approx(1.0)


def test_a_process_that_died_while_starting_has_no_split() -> None:
    assert split_restart(KILL, RESTART[:6], [fail(0.25)]) is None


def test_a_torn_line_of_a_journal_is_skipped(tmp_path: Path) -> None:
    progress, events = tmp_path / "progress.jsonl", tmp_path / "events.jsonl"
    progress.write_text("".join(json.dumps(render_progress(line)) + "\n" for line in RESTART) + '{"at": "20')
    events.write_text(json.dumps(render_journal_event(fail(0.25))) + "\n")
    splits = split_all([KILL, Kill(at_s=KILL.at_s, first=(99, 2))], progress, events)
    assert [split.notice_s for split in splits] == [pytest.approx(0.25)]
    assert summarize(splits)["kills"] == 1
    assert summarize(splits)["device_s"] == pytest.approx(2.5)


def test_two_ranks_share_a_gpu_only_with_gloo() -> None:
    on_gpu, on_cpu = Setting(device="cuda"), Setting()
    programs = ("trainer-ddp", "trainer-fsdp", "script")
    assert [on_gpu.workers_of(program) for program in programs] == [1, 1, 2]
    assert [on_cpu.workers_of(program) for program in programs] == [2, 2, 2]


PARTS = {"process_s": 0.1, "verify_s": 0.1, "device_s": 0.5, "load_s": 0.1, "first_step_s": 0.1}


def test_the_file_runs_the_module() -> None:
    file = Path(__file__).parents[2] / "benchmarks/recovery.py"
    said = subprocess.check_output([sys.executable, file, "--help"], text=True, cwd="/")
    for flag in ("--kills", "--json", "--strategy", "--script"):
        assert flag in said


def test_a_score_has_seconds_and_steps() -> None:
    """Programs may rely on this document."""
    score = Score("ours", "script", kills=4, recovered_s=[0.4, 0.1, 0.2], steps_redone=[3, 4, 6])
    document = score.document()
    assert list(document) == ["kills", "recovered", "p50_s", "p95_s", "p99_s", "steps_redone", "most_steps_redone"]
    assert list(document.values()) == [4, 3, 0.2, 0.4, 0.4, 4.3, 6]
    score.splits = [Split(notice_s=None, **PARTS), Split(notice_s=0.2, **PARTS), Split(notice_s=0.4, **PARTS)]
    assert score.document() == {**document, "split": {"kills": 3, "notice_s": 0.3, **PARTS}}


def test_each_launcher_is_compared_with_ours_for_the_same_program() -> None:
    ours = Score("ours", "script", kills=1, recovered_s=[0.2], steps_redone=[6], splits=[Split(notice_s=None, **PARTS)])
    safe = Score("torchrun-safe", "script", kills=1, recovered_s=[3.1], steps_redone=[6])
    never = Score("torchrun", "script", kills=1)
    ours.sources.update({"memory": 3, "disk": 1})
    lines = render([ours, safe, never])
    assert lines[2].endswith("| 0.2 s | 6 | 6 | disk 1, memory 3 | 1.0 |")
    assert lines[3] == "| script, torchrun, safe settings | 1 of 1 | 3.1 s | 3.1 s | 3.1 s | 3.1 s | 6 | 6 |  | 15.5 |"
    assert lines[4] == "| script, torchrun, defaults | 0 of 1 |  |  |  |  |  |  |  |  |"
    assert lines[-1] == "| script, elasticrun |  | 0.1 s | 0.1 s | 0.5 s | 0.1 s | 0.1 s |"
