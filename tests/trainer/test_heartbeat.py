"""Reporting never ends a run; and when a snapshot is due."""

import json
import os
import signal

import pytest

from tests.trainer.harness import read_lines
from trainer.cadence import Cadence
from trainer.contract.config import Interval
from trainer.contract.env import parse_place
from trainer.contract.exit_record import EventKind, parse_journal_event
from trainer.contract.progress import Phase, parse_progress
from trainer.heartbeat import Heartbeat, Journal
from trainer.signals import StopFlag


def test_what_is_written_is_what_the_contract_reads(tmp_path, capsys):
    place = parse_place({"RANK": "3", "WORLD_SIZE": "4", "ORCHESTRATOR_REPLICA_DIR": str(tmp_path)})
    heartbeat = Heartbeat(place, total_steps=10)
    heartbeat.beat(Phase.STEP, 7, {"loss": 1.5, "tokens_per_s": 10.0, "learning_rate": 0.1})
    heartbeat.tell(EventKind.RESTORED, "restored step 7", {"step": 7})
    progress = parse_progress(read_lines(tmp_path / "progress.jsonl")[0])
    assert (progress.rank, progress.step, progress.total_steps, progress.metrics["loss"]) == (3, 7, 10, 1.5)
    assert progress.memory_bytes > 10_000_000
    event = parse_journal_event(read_lines(tmp_path / "events.jsonl")[0])
    assert (event.kind, event.sentence, event.evidence) == ("restored", "restored step 7", {"step": 7})
    assert "step 7/10  loss 1.5" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/progress.jsonl"])
def test_a_journal_that_cannot_be_written_is_no_error(path, tmp_path):
    link = tmp_path / "progress.jsonl"
    link.symlink_to(path)
    Journal(link).append({"step": 1})


def test_a_torn_line_spoils_no_other(tmp_path, monkeypatch):
    journal, write = Journal(tmp_path / "journal"), os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:4]))
    journal.append({"step": 1})
    monkeypatch.setattr("os.write", write)
    journal.append({"step": 2})
    torn, whole = (tmp_path / "journal").read_text().splitlines()
    assert torn == '{"st'
    assert json.loads(whole) == {"step": 2}


def test_a_snapshot_is_due_at_multiples_of_its_steps():
    cadence = Cadence(Interval(steps=5), started_at=0)
    assert [step for step in range(1, 16) if cadence.is_due(step, now=1e9)] == [5, 10, 15]


def test_a_snapshot_is_due_when_its_seconds_have_passed():
    cadence = Cadence(Interval(seconds=30), started_at=100)
    assert not cadence.is_due(1, now=129)
    assert cadence.is_due(2, now=130)
    cadence.saved(started_at=130, ended_at=140)
    assert not cadence.is_due(3, now=169)


def test_a_costly_snapshot_is_taken_less_often_by_itself():
    cadence = Cadence(Interval(), started_at=0)
    assert not cadence.is_due(1, now=9)
    assert cadence.is_due(2, now=10)
    cadence.saved(started_at=10, ended_at=13)
    assert not cadence.is_due(3, now=13 + 59)
    assert cadence.is_due(4, now=13 + 60)


def test_a_stop_signal_sets_a_flag_and_nothing_else():
    stop, before = StopFlag(), signal.getsignal(signal.SIGTERM)
    try:
        stop.install()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
