"""An agent's records: claim, incarnation, journal, exit record, identity."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.elastic.harness import build_record
from trainer.contract import env
from trainer.contract.exit_record import EventKind, ExitRecord, Outcome, parse_exit_record
from trainer.contract.launch import DesiredState
from trainer.contract.progress import MAX_REPORTED_LINES
from trainer.elastic import elasticrun
from trainer.elastic.records.claim import ClaimRefused, claim_attempt
from trainer.elastic.records.files import append_line, read_lines
from trainer.elastic.records.record import Record, identify_process, open_record
from trainer.elastic.stop import StopRequest

RACE = """
import sys
from pathlib import Path
from trainer.elastic.records.claim import ClaimRefused, claim_attempt
sys.stdin.readline()
try:
    claim_attempt(Path(sys.argv[1]), sys.argv[2])
    print("won")
except ClaimRefused:
    print("refused")
"""


def race(folder: Path, tokens: list[str]) -> list[str]:
    def runner(token: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RACE, str(folder), token]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    processes = [runner(token) for token in tokens]
    with ThreadPoolExecutor(len(tokens)) as pool:
        return [out.strip() for out, _ in pool.map(lambda process: process.communicate("go\n", timeout=300), processes)]


def test_one_of_four_racing_submissions_wins_the_claim(tmp_path: Path) -> None:
    results = race(tmp_path / "1", ["a", "b", "c", "d"])
    assert sorted(results) == ["refused", "refused", "refused", "won"]
    assert (tmp_path / "1" / "claim").read_text() == "abcd"[results.index("won")]


def test_replicas_of_one_submission_share_the_claim(tmp_path: Path) -> None:
    assert race(tmp_path / "1", ["a", "a", "a"]) == ["won", "won", "won"]
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["claim"]


def test_an_empty_claim_is_passed_over_and_one_submission_wins(tmp_path: Path) -> None:
    (tmp_path / "claim").touch()
    claim_attempt(tmp_path, "a")
    claim_attempt(tmp_path, "a")
    with pytest.raises(ClaimRefused):
        claim_attempt(tmp_path, "b")


def test_an_attempt_can_be_claimed_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr("os.link", refuse)
    claim_attempt(tmp_path, "a")
    with pytest.raises(ClaimRefused):
        claim_attempt(tmp_path, "b")


def test_each_start_of_an_agent_is_the_next_incarnation(tmp_path: Path) -> None:
    assert [build_record(tmp_path).incarnation for _ in range(3)] == [1, 2, 3]
    assert build_record(tmp_path, replica=1).incarnation == 1


def test_the_cluster_may_know_of_more_incarnations_than_the_folder(tmp_path: Path) -> None:
    """Each pod may have a folder of its own."""
    folder = tmp_path / "job/attempts/1/replica-1"
    environ = {env.JOB_DIR: str(tmp_path / "job"), env.CLAIM: "mine", env.REPLICA: "1"}
    made = [open_record({**environ, env.INCARNATION: least}) for least in ("3", "2", "5")]
    assert [one.incarnation for one in made if one is not None] == [3, 4, 5]
    assert sorted(path.name for path in folder.iterdir()) == ["3", "4", "5"]
    assert [one.is_superseded() for one in made if one is not None] == [True, True, False]


def test_events_name_the_node_as_the_cluster_calls_it(tmp_path: Path) -> None:
    """In a pod the host name is the pod's."""
    environ = {env.JOB_DIR: str(tmp_path), env.CLAIM: "mine"}
    for given, name in (({env.NODE: "gpu-7"}, "gpu-7"), ({}, socket.gethostname())):
        record = open_record(environ | given)
        assert record is not None
        started = json.loads((record.incarnation_dir / "events.jsonl").read_text())
        assert started["sentence"] == f"agent of replica 0 started on {name}"
        assert started["evidence"]["host"] == name


def test_a_missing_claim_token_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ORCHESTRATOR_CLAIM"):
        open_record({env.JOB_DIR: str(tmp_path)})


def test_a_process_that_is_gone_cannot_be_identified(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        identity = identify_process(sleeper.pid)
        assert identity.start_ticks >= identify_process().start_ticks
        sleeper.kill()
    with pytest.raises(FileNotFoundError):
        identify_process(identity.pid)


def test_a_line_after_a_torn_one_is_complete(tmp_path: Path) -> None:
    journal = tmp_path / "events.jsonl"
    journal.write_text('{"kind":"a"}\n{"ki')
    append_line(journal, {"kind": "b"})
    assert journal.read_text().splitlines() == ['{"kind":"a"}', '{"ki', '{"kind":"b"}']


def test_a_reader_gets_complete_lines_once(tmp_path: Path) -> None:
    journal = tmp_path / "progress.jsonl"
    journal.write_text("1\n2\n3")
    assert read_lines(journal, 0, 100) == (["1", "2"], 0, 4, False)
    assert read_lines(journal, 4, 100) == ([], 4, 4, False)
    assert read_lines(journal, 0, 3) == (["1"], 0, 2, True)
    assert read_lines(journal, 6, 100) == (["1", "2"], 0, 4, False), "the file is shorter"
    assert read_lines(tmp_path / "absent", 7, 100) == ([], 7, 7, False)
    journal.write_bytes(b"\n" * (MAX_REPORTED_LINES + 1))
    assert read_lines(journal, 0, 1 << 20).more
    assert read_lines(journal, 1, 1 << 20) == ([""] * MAX_REPORTED_LINES, 1, 1 + MAX_REPORTED_LINES, False)


def test_a_folder_in_place_of_a_journal_costs_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(9):
        assert read_lines(tmp_path, 0, 100) == ([], 0, 0, False)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_exit_record_and_the_events_are_written(tmp_path: Path) -> None:
    record = build_record(tmp_path)
    record.journal(EventKind.GENERATION_STARTED, "one", 1, generation=1, kind="evidence may use any name")
    end = ExitRecord(outcome=Outcome.SUCCEEDED, at="2026-01-01T00:00:00.000000Z", generation=1, restarts=0)
    record.finish(end)
    assert parse_exit_record(json.loads((record.incarnation_dir / "exit.json").read_text())) == end
    kinds = [json.loads(line)["kind"] for line in (record.incarnation_dir / "events.jsonl").read_text().splitlines()]
    assert kinds == ["agent.started", "generation.started"]


def test_an_unreadable_desired_state_means_run(tmp_path: Path) -> None:
    record = build_record(tmp_path)
    assert record.desired().state is DesiredState.RUN
    (record.attempt_dir / "desired.json").write_text('{"state": "st')
    assert record.desired().state is DesiredState.RUN
    (record.attempt_dir / "desired.json").write_text('{"state": "stop"}')
    assert record.desired().state is DesiredState.STOP


def test_the_exit_record_is_retried_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = build_record(tmp_path)
    attempts = iter([OSError(28, "No space left on device"), OSError(28, "No space left on device"), None])
    finish = Record.finish

    def fail_at_first(self: Record, exit_record: ExitRecord) -> None:
        error = next(attempts)
        if error is not None:
            raise error
        finish(self, exit_record)

    monkeypatch.setattr(Record, "finish", fail_at_first)
    monkeypatch.setattr(elasticrun, "_FINISH_INTERVAL_S", 0.0)
    done = ExitRecord(outcome=Outcome.SUCCEEDED, at="2026-11-20T12:00:00Z", generation=1, restarts=0)
    elasticrun.write_exit_record(record, done, StopRequest())
    assert parse_exit_record(json.loads((record.incarnation_dir / "exit.json").read_text())) == done
    assert capsys.readouterr().err.count("retrying") == 2
