"""Today's client and agent understand the answers of released versions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.client import Client
from orchestrator.domain.errors import NotFound, Refused
from orchestrator.wire.job_views import JobView
from tests.elastic.harness import build_record, wait_for
from tests.traffic.exchange import Exchange
from tests.traffic.kept import VERSIONS, losses, said_by_agents, said_by_clients
from tests.traffic.life import STEPS, Script
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.elastic.desired import ServiceRequests
from trainer.elastic.records.report import start_reporter
from trainer.elastic.stop import StopRequest

END = ExitRecord(outcome=Outcome.SUCCEEDED, at="2026-01-01T00:00:00.000000Z", generation=1, restarts=0)


@contextmanager
def answering(answers: list[Exchange]) -> Iterator[str]:
    """A service that answers each request with the next recorded answer to the same method and path."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            place = self.path.partition("?")[0]
            found = next(
                (one for one in left if (one.method, one.path.partition("?")[0]) == (self.command, place)), None
            )
            if found is None:
                self.send_error(599, f"no recorded answer to {self.command} {place}")
                return
            left.remove(found)
            content = found.answer.encode()
            self.send_response(found.status)
            for name, value in {**found.answer_headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815  # http.server's own names

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_parses_old_answers(version: str) -> None:
    said = said_by_clients(version)
    recorded = {exchange.call for exchange in said}
    script = Script()
    for step in STEPS:
        theirs = [exchange for exchange in said if exchange.call == step.name]
        if step.name not in recorded:
            continue  # that version did not have this call
        with answering(theirs) as url, Client(url, patience_s=0) as client:
            if step.refused:
                with pytest.raises((NotFound, Refused)) as caught:
                    step.does(script, client)
                assert str(caught.value) == json.loads(theirs[-1].answer)["detail"]
                continue
            understood = step.does(script, client)
        for one in understood if isinstance(understood, list) else [understood]:
            if isinstance(one, BaseModel):
                read = one.model_dump(mode="json", by_alias=True)
                assert read, step.name
        if isinstance(understood, BaseModel):
            assert losses(theirs[-1].answer_json(), read) == [], step.name
    assert len(recorded) > 30


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_parses_each_value_of_an_old_answer(version: str) -> None:
    """A renamed field would be hidden by its default."""
    views = [each.answer_json() for each in said_by_clients(version) if each.call and each.call.startswith("job that")]
    jobs: list[dict[str, Any]] = [view for view in views if isinstance(view, dict) and "state" in view]
    assert len(jobs) >= 4
    for job in jobs:
        read = JobView.model_validate(job).model_dump(mode="json", by_alias=True)
        for name, value in job.items():
            assert name in read, f"{name} is not read any more"
            if not name.endswith("_at") and name != "spec":
                assert read[name] == value, name


class Remembered(StopRequest):
    """A stop request that only records the call."""

    def request(self) -> None:
        self.requested = True


@pytest.mark.parametrize("version", VERSIONS)
def test_the_agent_follows_old_answers(version: str, tmp_path: Path) -> None:
    distinct = {(each.status, each.answer): each for each in said_by_agents(version)}
    assert {json.loads(each.answer)["desired"]["state"] for each in distinct.values()} == {"run", "stop"}
    for number, exchange in enumerate(distinct.values()):
        follow(exchange, tmp_path / str(number))


def follow(exchange: Exchange, folder: Path) -> None:
    desired, record, stop = json.loads(exchange.answer)["desired"], build_record(folder), Remembered()
    with answering([exchange] * 100) as url:
        environ = {"ORCHESTRATOR_REPORT_URL": f"{url}/api/v1/reports"}
        reporter = start_reporter(record, ServiceRequests(record, stop), environ)
        assert reporter is not None
        reporter.close(END)
        requested = (desired["number"], desired["snapshot"])
        wait_for(lambda: (record.desired().number, record.desired().snapshot) == requested, f"change to {desired}", 60)
        wait_for(lambda: stop.requested == (desired["state"] == "stop"), f"change to {desired}", 60)
