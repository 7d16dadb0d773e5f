"""Reporting, which never ends a run."""

import errno
import io
import json
import os
import signal

import pytest

from tests.trainer.harness import read_lines
from trainer.contract.env import parse_place
from trainer.contract.exit_record import EventKind, parse_journal_event
from trainer.contract.progress import Phase, parse_progress
from trainer.worker.heartbeat import Heartbeat, Journal
from trainer.worker.signals import StopFlag


def test_the_contract_parses_what_is_written(tmp_path, capsys):
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


def test_the_newest_line_of_a_step_has_all_its_metrics(tmp_path):
    heartbeat = Heartbeat(parse_place({"ORCHESTRATOR_REPLICA_DIR": str(tmp_path)}), total_steps=10)
    heartbeat.beat(Phase.STEP, 7, {"loss": 1.5})
    heartbeat.beat(Phase.STEP, 7, {"evaluation_loss": 2.5})
    heartbeat.beat(Phase.STEP, 8, {"loss": 1.25})
    measured = [(line["step"], line["metrics"]) for line in read_lines(tmp_path / "progress.jsonl")]
    assert measured == [(7, {"loss": 1.5}), (7, {"loss": 1.5, "evaluation_loss": 2.5}), (8, {"loss": 1.25})]


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/progress.jsonl"])
def test_an_unwritable_journal_raises_no_error(path, tmp_path):
    link = tmp_path / "progress.jsonl"
    link.symlink_to(path)
    Journal(link).append({"step": 1})


class FullLog(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_log_ends_no_run(tmp_path, monkeypatch):
    heartbeat = Heartbeat(parse_place({"ORCHESTRATOR_REPLICA_DIR": str(tmp_path)}), 1)
    monkeypatch.setattr("sys.stdout", FullLog())
    heartbeat.beat(Phase.STEP, 1, {"loss": 1.0})
    heartbeat.tell(EventKind.SNAPSHOT_COMMITTED, "step 1 committed", {})
    assert [line["step"] for line in read_lines(tmp_path / "progress.jsonl")] == [1]
    assert [line["kind"] for line in read_lines(tmp_path / "events.jsonl")] == ["snapshot.committed"]


def test_a_torn_line_does_not_damage_the_next_one(tmp_path, monkeypatch):
    journal, write = Journal(tmp_path / "journal"), os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:4]))
    journal.append({"step": 1})
    monkeypatch.setattr("os.write", write)
    journal.append({"step": 2})
    torn, whole = (tmp_path / "journal").read_text().splitlines()
    assert torn == '{"st'
    assert json.loads(whole) == {"step": 2}


def test_the_journal_is_opened_again_after_a_lost_line(tmp_path, monkeypatch):
    folder = tmp_path / "1"
    folder.mkdir()
    journal = Journal(folder / "journal")
    journal.append({"step": 1})
    folder.rename(tmp_path / "before")  # its file system went away and came back
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("os.write", refuse)
        journal.append({"step": 2})
    journal.append({"step": 3})
    assert json.loads((folder / "journal").read_text()) == {"step": 3}


def refuse(*_):
    raise OSError(errno.ESTALE, "Stale file handle")


def test_a_stop_signal_only_sets_a_flag():
    stop, before = StopFlag(), signal.getsignal(signal.SIGTERM)
    try:
        stop.install()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
