"""What it costs to know who asks: the same requests without a token, by an admin's, and by one project's viewer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial

import httpx

from benchmarks.control_plane.load import Clients, Outcome
from benchmarks.control_plane.world import Usage

IDENTITY_LIMITS = {"share_of_admins_token": 0.1, "share_of_viewers_token": 0.1}
_IDLE_S = 5.0
_ROUNDS = 10  # interleaved, so that what else the machine does hits all alike


def measure_identity(clients: Clients, url: str, pid: int, job_id: str, project: str, count: int) -> dict[str, object]:
    """CPU of the service and latency for a show of one job; the shares are of the service's CPU."""
    tokens = {"open": None, "admin": _make(url, "*=admin"), "viewer": _make(url, f"{project}=viewer")}
    path = f"/api/v1/jobs/{job_id}"
    cpu, outcomes = dict.fromkeys(tokens, 0.0), {name: Outcome(elapsed_s=0.0) for name in tokens}
    for token in tokens.values():
        clients.run(partial(repeat, path, token, 50))
    idle = _idle_rate(pid)
    for _ in range(_ROUNDS):
        for name, token in tokens.items():
            usage = Usage(pid)
            outcome = clients.run(partial(repeat, path, token, max(1, count // _ROUNDS)))
            cpu[name] += max(0.0, usage.cpu_s() - idle * outcome.elapsed_s)
            whole = outcomes[name]
            whole.elapsed_s += outcome.elapsed_s
            whole.latencies_s += outcome.latencies_s
            whole.statuses += outcome.statuses
    figures: dict[str, object] = {
        name: {**outcome.figures(), "cpu_ms": round(1000 * cpu[name] / len(outcome.latencies_s), 3)}
        for name, outcome in outcomes.items()
    }
    figures["share_of_admins_token"] = round(cpu["admin"] / cpu["open"] - 1, 3)
    figures["share_of_viewers_token"] = round(cpu["viewer"] / cpu["open"] - 1, 3)
    return figures


def _idle_rate(pid: int) -> float:
    """CPU seconds a second of a service that nobody asks: its passes go on below the requests."""
    usage = Usage(pid)
    time.sleep(_IDLE_S)
    return usage.cpu_s() / _IDLE_S


def _make(url: str, grant: str) -> str:
    project, _, role = grant.partition("=")
    body = {"name": f"benchmark {role}", "grants": {project: role}}
    answer = httpx.post(f"{url}/api/v1/tokens", json=body)
    answer.raise_for_status()
    return str(answer.json()["token"])


def repeat(path: str, token: str | None, count: int) -> Iterator[bytes]:
    line = "" if token is None else f"Authorization: Bearer {token}\r\n"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n{line}\r\n"
    return itertools.repeat(request.encode(), count)
