"""Play the script against a real service and keep what was said in tests/traffic/<version>/: `client.jsonl` and
`agent.jsonl`. Done once for each version that is released; what was kept is never made anew."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.dev.service import ThrowawayService
from deploy.dev.traffic.exchange import Exchange, normalise, render
from deploy.dev.traffic.life import STEPS, Script, Step
from deploy.dev.traffic.proxy import Proxy
from orchestrator.client import Client
from orchestrator.domain.errors import NotFound, Refused

_REPOSITORY = Path(__file__).parents[3]
_RECORDS = _REPOSITORY / "tests" / "traffic"
_PATIENCE_S = 240.0
_FIRST_REPORTS = 25  # of each agent that are kept though they tell of nothing but progress


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.traffic", description=__doc__)
    version = importlib.metadata.version("elastic-orchestrator")
    parser.add_argument("--into", type=Path, default=_RECORDS / version, help="default: tests/traffic/<version>")
    folder: Path = parser.parse_args().into
    if (folder / "client.jsonl").exists():
        sys.exit(f"{folder} is there: what a version once said is not changed; remove it if it was never released")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it early leaves no service behind
    exchanges, names = _record()
    kept = normalise(exchanges, names)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.jsonl").write_text(render(each for each in kept if each.call is not None))
    (folder / "agent.jsonl").write_text(render(_telling([each for each in kept if each.call is None])))
    print(f"kept in {folder}")


def _record() -> tuple[list[Exchange], list[tuple[str, str]]]:
    """What was said, and the names in it that are to be replaced."""
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
    """Reports that tell of events, an end or a request, and the first few of each agent; the rest repeats itself."""
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
    """What signs in: it is of a service that is gone, and yet no such text belongs into a file."""
    found = {match for each in exchanges for match in re.findall(r"orc_[0-9a-f]{16}_([A-Za-z0-9_-]{20,})", each.answer)}
    return [(secret, _filled(secret, "secret")) for secret in found]


def _filled(real: str, begin: str) -> str:
    """As long as the real one."""
    return (begin + "x" * len(real))[: len(real)]


if __name__ == "__main__":
    main()
