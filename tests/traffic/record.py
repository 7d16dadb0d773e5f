"""Run the script with a real service and record the traffic in tests/traffic/<version>/.

This is done once for each released version. A record is never replaced.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.domain.errors import NotFound, Refused
from tests.traffic.exchange import Exchange, normalize, render
from tests.traffic.life import STEPS, Script, Step

_REPOSITORY = Path(__file__).parents[2]
_RECORDS = _REPOSITORY / "tests" / "traffic"
_PATIENCE_S = 240.0
_FIRST_REPORTS = 25  # reports of each agent that are kept even if they have only progress

_ASKED = ("content-type", "idempotency-key", "if-none-match", "accept")
_ANSWERED = ("content-type", "location", "etag", "retry-after", "www-authenticate")
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"})
_ANSWER_S = 120.0


class Proxy:
    """A proxy on loopback that records requests and answers. `call` names the step of the next requests."""

    def __init__(self) -> None:
        self.target = ""  # set later, because the service needs the proxy's address
        self.call: str | None = None
        self.exchanges: list[Exchange] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_PassOn, self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _PassOn(BaseHTTPRequestHandler):
    """Forwards an answer once it is complete."""

    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: Proxy, *given: Any) -> None:
        self._proxy = proxy
        super().__init__(*given)

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in {*_HOP, "host"}}
        try:
            answer = httpx.request(
                self.command, self._proxy.target + self.path, content=body, headers=headers, timeout=_ANSWER_S
            )
        except httpx.HTTPError:
            self.close_connection = True  # as if the service were down
            return
        self._proxy.exchanges.append(
            Exchange(
                call=self._proxy.call if not self.path.endswith("/reports") else None,
                method=self.command,
                path=self.path,
                headers={name: self.headers[name] for name in _ASKED if name in self.headers},
                body=body.decode(),
                status=answer.status_code,
                answer_headers={name: answer.headers[name] for name in _ANSWERED if name in answer.headers},
                answer=answer.text,
            )
        )
        self.send_response_only(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_DELETE = _pass_on  # noqa: N815  # http.server's own names

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.traffic.record", description=__doc__)
    version = importlib.metadata.version("elastic-orchestrator")
    parser.add_argument("--into", type=Path, default=_RECORDS / version, help="default: tests/traffic/<version>")
    folder: Path = parser.parse_args().into
    if (folder / "client.jsonl").exists():
        sys.exit(f"{folder} exists, and a record is not replaced; delete it if the version was never released")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an early end stops the service, too
    exchanges, names = _record()
    kept = normalize(exchanges, names)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.jsonl").write_text(render(each for each in kept if each.call is not None))
    (folder / "agent.jsonl").write_text(render(_telling([each for each in kept if each.call is None])))
    print(f"kept in {folder}")


def _record() -> tuple[list[Exchange], list[tuple[str, str]]]:
    """Return the exchanges, and the names in them to replace."""
    with tempfile.TemporaryDirectory(prefix="traffic-") as folder, Proxy() as agents, Proxy() as people:
        root = Path(folder).resolve() / "runs"
        settings = {
            "ORCHESTRATOR_ADVERTISE_URL": agents.url,
            "ORCHESTRATOR_LOCAL_SLOTS": "4",
            "ORCHESTRATOR_POLL_S": "0.1",
            "ORCHESTRATOR_STOP_TIMEOUT_S": "5",
        }
        with ThrowawayService(root, settings) as service:
            agents.target = people.target = service.url
            with Client(people.url) as client, Client(service.url) as watch:
                script = _play(people, client, watch)
            host = socket.gethostname()
            names = [
                *((job_id, _placeholder(job_id)) for job_id in script.jobs.values()),
                (str(root), _filled(str(root), "/runs")),
                (host, _filled(host, "host")),
                (sys.prefix, _filled(sys.prefix, "/venv")),
                (str(_REPOSITORY), _filled(str(_REPOSITORY), "/code")),
                *_tokens(people.exchanges),
                *_nonces([*people.exchanges, *agents.exchanges]),
            ]
            return [*people.exchanges, *agents.exchanges], names


def _play(proxy: Proxy, client: Client, watch: Client) -> Script:
    script = Script()
    for step in STEPS:
        _await(step, script, watch)
        proxy.call = step.name
        try:
            step.does(script, client)
        except (NotFound, Refused):
            if not step.refused:
                raise
        print(step.name, flush=True)
    return script


def _await(step: Step, script: Script, watch: Client) -> None:
    if step.after is None:
        return
    name, holds = step.after
    deadline = time.monotonic() + _PATIENCE_S
    while not holds(job := watch.job(script.jobs[name])):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{step.name}: {job.id} is {job.state}: {job.reason}")
        time.sleep(0.1)


def _telling(reports: Sequence[Exchange]) -> Iterator[Exchange]:
    """Yield the reports with events, an end or a request, and the first few of each agent."""
    seen: dict[str, int] = {}
    for report in reports:
        document = json.loads(report.body)
        agent = f"{document['job_id']} {document['attempt']} {document['replica']} {document['incarnation']}"
        seen[agent] = seen.get(agent, 0) + 1
        tells = document["events"] or document["exit_record"] or '"state":"run"' not in report.answer
        if tells or seen[agent] <= _FIRST_REPORTS:
            yield report


def _placeholder(job_id: str) -> str:
    name, _, random = job_id.rpartition("-")
    return f"{name}-{_filled(random, 'aaaa')}"


def _nonces(exchanges: Sequence[Exchange]) -> list[tuple[str, str]]:
    """The random ends of rendezvous ids."""
    found = {
        match for each in exchanges for match in re.findall(r'"rendezvous_id": ?"[^"]*-([0-9a-f]{6,})"', each.answer)
    }
    return [(nonce, f"{number:0{len(nonce)}x}") for number, nonce in enumerate(sorted(found), 1)]


def _tokens(exchanges: Sequence[Exchange]) -> list[tuple[str, str]]:
    """The secrets of tokens. They are useless without their service, but files should not contain tokens."""
    found = {match for each in exchanges for match in re.findall(r"orc_[0-9a-f]{16}_([A-Za-z0-9_-]{20,})", each.answer)}
    return [(secret, _filled(secret, "secret")) for secret in found]


def _filled(real: str, begin: str) -> str:
    """Return a text of the same length."""
    return (begin + "x" * len(real))[: len(real)]


if __name__ == "__main__":
    main()
