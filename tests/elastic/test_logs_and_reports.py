"""Logs stay bounded, and each journal line is reported once, whatever the service answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.elastic.harness import SCRIPTS, STEADY, Job, build_record, wait_for
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.progress import MAX_REPORTED_LINES
from trainer.elastic.desired import ServiceRequests
from trainer.elastic.records.files import append_line
from trainer.elastic.records.report import backoff_s, start_reporter
from trainer.elastic.stop import StopRequest
from trainer.elastic.workers.log_limit import bound_log, bound_logs, find_cut

END = ExitRecord(outcome=Outcome.SUCCEEDED, at="2026-01-01T00:00:00.000000Z", generation=1, restarts=0)


class Service(ThreadingHTTPServer):
    """Keeps the reports that it accepts. `failing` is the number of reports to refuse."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.accepted: list[dict[str, object]] = []
        self.tokens: set[str | None] = set()
        self.attempts: set[str | None] = set()
        self.failing = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.refusal = 503
        self.desired: dict[str, object] = {"state": "run"}

    @property
    def environ(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server_address[1]}/report"
        return {"ORCHESTRATOR_REPORT_URL": url, "ORCHESTRATOR_REPORT_TOKEN": "secret"}

    def taken(self, name: str) -> list[str]:
        return [line for report in self.accepted for line in report[name]]  # type: ignore[attr-defined]


class Answers(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.tokens.add(self.headers["Authorization"])
        self.server.attempts.add(self.headers["Orchestrator-Attempt"])
        failing, self.server.failing = self.server.failing > 0, max(0, self.server.failing - 1)
        if not failing:
            self.server.accepted.append(report)
        self.server.may_answer.wait(30)
        body = json.dumps({"desired": self.server.desired}).encode()
        self.send_response(self.server.refusal if failing else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_a_log_over_its_limit_keeps_the_newest_half() -> None:
    assert find_cut(100, 100) is None
    assert find_cut(101, 100) == 51
    assert find_cut(10**12, 0) is None


def test_a_cut_log_begins_at_a_line_and_its_writer_continues(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("a") as writer:
        writer.write("".join(f"line {number:04d}\n" for number in range(100)))
        writer.flush()
        assert bound_log(log, 500)
        writer.write("after\n")
    kept = (tmp_path / "log.1").read_text().splitlines()
    assert (kept[0][:5], kept[-1]) == ("line ", "line 0099")
    assert log.read_text() == "after\n"
    assert not bound_log(log, 500)


def test_only_the_logs_of_the_newest_two_generations_are_bounded(tmp_path: Path) -> None:
    logs = [tmp_path / f"g{number}" / "local-0" / "log" for number in (8, 9, 10, 11)]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_text("a line\n" * 100)
    bound_logs(tmp_path, 500)
    assert [log.stat().st_size for log in logs] == [700, 700, 0, 0]


@pytest.mark.long
def test_a_chatty_workers_log_stays_bounded(job: Job) -> None:
    agent = job.policy(log_limit_bytes=100_000).start(str(SCRIPTS / "chatty.py"))
    assert agent.wait() == 0
    folder = agent.folder / "g1" / "local-0"
    assert (folder / "log").stat().st_size + (folder / "log.1").stat().st_size < 400_000
    assert "the end" in (folder / "log.1").read_text() + agent.log()


def test_failed_reports_are_repeated_from_the_same_offsets(tmp_path: Path, service: Service) -> None:
    record = build_record(tmp_path)
    service.failing = 2
    reporter = start_reporter(record, ServiceRequests(record, StopRequest()), service.environ)
    assert reporter is not None
    for steps in (range(25), range(25, 50)):
        for step in steps:
            append_line(record.incarnation_dir / "progress.jsonl", {"step": step})
        wait_for(lambda count=steps.stop: len(service.taken("progress")) == count, "all lines")
    reporter.close(END)
    assert [json.loads(line)["step"] for line in service.taken("progress")] == list(range(50))
    ends = [0] + [report["progress_to"] for report in service.accepted]
    assert [report["progress_from"] for report in service.accepted] == ends[:-1]
    assert service.tokens == {"Bearer secret"}
    assert service.attempts == {f"{record.job_id}/{record.attempt}"}
    last = service.accepted[-1]
    assert isinstance(last["exit_record"], dict)
    assert last["exit_record"]["outcome"] == "succeeded"


def test_the_exit_record_comes_after_the_last_line(tmp_path: Path, service: Service) -> None:
    record = build_record(tmp_path)
    reporter = start_reporter(record, ServiceRequests(record, StopRequest()), service.environ)
    assert reporter is not None
    journal = record.incarnation_dir / "progress.jsonl"
    journal.write_bytes(b"\n" * 3 * MAX_REPORTED_LINES)
    reporter.close(END)
    *earlier, last = service.accepted
    assert last["exit_record"] is not None
    assert last["progress_to"] == journal.stat().st_size
    assert not any(each.get("exit_record") for each in earlier)


def test_a_backlog_does_not_keep_the_exit_record(tmp_path: Path, service: Service) -> None:
    record = build_record(tmp_path)
    (record.incarnation_dir / "progress.jsonl").write_bytes(b"\n" * 1000 * MAX_REPORTED_LINES)
    reporter = start_reporter(record, ServiceRequests(record, StopRequest()), service.environ)
    assert reporter is not None
    wait_for(lambda: service.accepted, "the first report")
    reporter.close(END)
    assert [bool(each.get("exit_record")) for each in service.accepted].count(True) == 1


def test_a_slow_service_gets_the_exit_record(tmp_path: Path, service: Service) -> None:
    record = build_record(tmp_path)
    reporter = start_reporter(record, ServiceRequests(record, StopRequest()), service.environ)
    assert reporter is not None
    (record.incarnation_dir / "progress.jsonl").write_bytes(b"\n" * 3 * MAX_REPORTED_LINES)
    service.may_answer.clear()
    reporter.close(END)
    ends = [each.get("exit_record") for each in service.accepted]
    service.may_answer.set()
    assert any(ends)


def test_the_last_report_to_a_dead_service_is_given_up(tmp_path: Path) -> None:
    record = build_record(tmp_path)
    nobody = {"ORCHESTRATOR_REPORT_URL": "http://127.0.0.1:9/report"}
    reporter = start_reporter(record, ServiceRequests(record, StopRequest()), nobody)
    assert reporter is not None
    began = time.monotonic()
    reporter.close(END)
    assert time.monotonic() - began < 10


def test_the_pause_between_failed_reports_grows_to_30_s() -> None:
    assert [backoff_s(failures) for failures in (0, 1, 2, 6, 100)] == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_an_address_that_is_not_http_is_logged_and_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"ORCHESTRATOR_REPORT_URL": "file:///etc/passwd"}
    record = build_record(tmp_path)
    assert start_reporter(record, ServiceRequests(record, StopRequest()), environ) is None
    assert "ORCHESTRATOR_REPORT_URL" in capsys.readouterr().err


@pytest.mark.long
def test_the_answer_to_a_report_stops_the_agent(job: Job, service: Service, tmp_path: Path) -> None:
    agent = job.policy().start(STEADY, str(tmp_path / "finish"), **service.environ)
    wait_for(lambda: service.taken("progress"), "reported progress")
    service.desired = {"state": "stop"}
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.CANCELLED
    wait_for(lambda: service.accepted[-1]["exit_record"], "the reported end")
    assert any(json.loads(line)["kind"] == "agent.exited" for line in service.taken("events"))


@pytest.mark.long
def test_an_answer_is_written_to_desired_json_unless_that_is_newer(job: Job, service: Service) -> None:
    script = job.folder.parent / "script.py"
    script.write_text("import time\ntime.sleep(60)\n")
    path = job.attempt / "desired.json"
    agent = job.policy().start(str(script), **service.environ)
    service.desired = {"state": "run", "snapshot": 1, "number": 4, "from the future": True}
    wait_for(path.exists, "desired.json")
    assert json.loads(path.read_text()) == service.desired
    newer = json.dumps({"state": "run", "snapshot": 2, "number": 5})
    path.write_text(newer)
    before = len(service.accepted)
    wait_for(lambda: len(service.accepted) > before + 1, "another answer")
    assert path.read_text() == newer
    agent.process.terminate()
    agent.wait()


class RecordedStop(StopRequest):
    """Sends no signal."""

    def request(self) -> None:
        self.requested = True


def test_a_stop_with_an_older_number_is_ignored(tmp_path: Path) -> None:
    record, stop = build_record(tmp_path), RecordedStop()
    requests = ServiceRequests(record, stop)
    requests.follow_answer({"state": "run", "number": 2})
    requests.follow_answer({"state": "stop", "number": 1})
    assert not stop.requested
    requests.follow_answer({"state": "stop", "number": 3})
    assert stop.requested


def test_a_403_with_a_stop_request_stops_the_agent(tmp_path: Path, service: Service) -> None:
    record, stop = build_record(tmp_path), RecordedStop()
    service.failing, service.refusal, service.desired = 1000, 403, {"state": "stop"}
    reporter = start_reporter(record, ServiceRequests(record, stop), service.environ)
    assert reporter is not None
    wait_for(lambda: stop.requested, "the request to stop")
    reporter.close(END)


@pytest.mark.parametrize(("status", "desired"), [(401, {"state": "stop"}), (503, {"state": "stop"}), (403, None)])
def test_no_other_refusal_stops_the_agent(
    tmp_path: Path, service: Service, status: int, desired: dict[str, object] | None
) -> None:
    record, stop = build_record(tmp_path), RecordedStop()
    service.failing, service.refusal = 2, status
    service.desired = desired if desired is not None else "nothing"  # type: ignore[assignment]  # not an object
    reporter = start_reporter(record, ServiceRequests(record, stop), service.environ)
    assert reporter is not None
    wait_for(lambda: service.failing == 0, "two refusals")
    assert not stop.requested
    service.desired = {"state": "run"}
    reporter.close(END)
