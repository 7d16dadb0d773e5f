"""Reporting never ends a run; and when a snapshot is due."""

import json
import os
import signal

import pytest

from tests.trainer.harness import read_lines
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


def test_a_stop_signal_sets_a_flag_and_nothing_else():
    stop, before = StopFlag(), signal.getsignal(signal.SIGTERM)
    try:
        stop.install()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
