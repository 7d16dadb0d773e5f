"""Where the time of a restart went, from lines as an agent and a trainer write them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from benchmarks.recovery.contestants import Setting
from benchmarks.recovery.split import Kill, split_all, split_restart, summarise
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind, JournalEvent, render_journal_event
from trainer.contract.progress import Phase, Progress, render_progress

BEGAN = datetime(2026, 11, 22, tzinfo=timezone.utc)
KILL = Kill(at_s=BEGAN.timestamp(), first_pid=20)


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


def test_without_an_agents_journal_noticing_is_part_of_the_start() -> None:
    split = split_restart(KILL, RESTART, [fail(-3.0)])
    assert split is not None
    assert split.notice_s is None
    assert split.process_s == pytest.approx(1.0)


def test_a_process_that_died_on_its_way_has_no_split() -> None:
    assert split_restart(KILL, RESTART[:6], [fail(0.25)]) is None


def test_journals_are_read_but_for_a_torn_line(tmp_path: Path) -> None:
    progress, events = tmp_path / "progress.jsonl", tmp_path / "events.jsonl"
    progress.write_text("".join(json.dumps(render_progress(line)) + "\n" for line in RESTART) + '{"at": "20')
    events.write_text(json.dumps(render_journal_event(fail(0.25))) + "\n")
    splits = split_all([KILL, Kill(at_s=KILL.at_s, first_pid=99)], progress, events)
    assert [split.notice_s for split in splits] == [pytest.approx(0.25)]
    assert summarise(splits)["kills"] == 1
    assert summarise(splits)["device_s"] == pytest.approx(2.5)


def test_two_ranks_share_a_gpu_only_where_gloo_carries_their_gradients() -> None:
    on_gpu, on_cpu = Setting(device="cuda"), Setting()
    programs = ("trainer-ddp", "trainer-fsdp", "script")
    assert [on_gpu.workers_of(program) for program in programs] == [1, 1, 2]
    assert [on_cpu.workers_of(program) for program in programs] == [2, 2, 2]
