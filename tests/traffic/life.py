"""What a client does with three jobs: one succeeds, one fails, and one is steered until it is cancelled.

The same steps record the traffic, and prove that today's client understands recorded answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.client import Client
from orchestrator.domain.access.identity import Role
from orchestrator.wire.job_views import JobView

_MODEL = {"data": "stdlib", "micro_batch": 1, "seq_len": 64, "global_batch": 4}
_SUPERVISE = {"backoff_s": [0.2, 1], "budgets": {"application": 1, "node": 10}}
SHORT: Mapping[str, Any] = {
    "name": "short",
    "run": {"trainer": {**_MODEL, "steps": 8}, "workdir": "/"},
    "topology": {"workers_per_node": 2},
    "snapshot": {"interval": "4", "keep": 2},
    "labels": {"team": "research"},
    "supervise": _SUPERVISE,
}
BROKEN: Mapping[str, Any] = {
    "name": "broken",
    "run": {"module": "this_module_is_not_there", "workdir": "/"},
    "supervise": _SUPERVISE,
}
STEERED: Mapping[str, Any] = {
    "name": "steered",
    "run": {"trainer": {**_MODEL, "steps": 1_000_000, "global_batch": 32}, "workdir": "/"},
    "topology": {"nodes": "1"},
    "snapshot": {"interval": "20s"},
    "supervise": _SUPERVISE,
    "priority": 5,
}


@dataclass(slots=True)
class Script:
    """`jobs` has ids by the name of the spec. `learnt` has values that one step keeps for a later one."""

    jobs: dict[str, str] = field(default_factory=dict)
    learnt: dict[str, str] = field(default_factory=dict)

    def submit(self, client: Client, spec: Mapping[str, Any]) -> JobView:
        job = client.submit(spec, idempotency_key=f"{spec['name']}-of-the-record")
        self.jobs[str(spec["name"])] = job.id
        return job

    def create_token(self, client: Client) -> object:
        made = client.create_token("alice", {"research": Role.OPERATOR, "*": Role.VIEWER})
        self.learnt["token"] = made.id
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`after` is a job's name and a condition to wait for. `refused` means that the service must refuse the step."""

    name: str
    does: Callable[[Script, Client], object]
    after: tuple[str, Callable[[JobView], bool]] | None = None
    refused: bool = False


def _ended(job: JobView) -> bool:
    return job.ended


def _trains(job: JobView) -> bool:
    return job.state == "RUNNING" and (job.step or 0) >= 2 and not job.pending


def _of(name: str, ask: Callable[[Client, str], object]) -> Callable[[Script, Client], object]:
    return lambda script, client: ask(client, script.jobs[name])


STEPS: tuple[Step, ...] = (
    Step(name="plan", does=lambda _, client: client.plan(SHORT)),
    Step(name="submit", does=lambda script, client: script.submit(client, SHORT)),
    Step(name="submit again", does=lambda script, client: script.submit(client, SHORT)),
    Step(
        name="submit another with its key",
        does=lambda _, client: client.submit({**SHORT, "priority": 1}, idempotency_key="short-of-the-record"),
        refused=True,
    ),
    Step(name="submit nonsense", does=lambda _, client: client.submit({"name": "No", "rum": {}}), refused=True),
    Step(name="job", does=_of("short", Client.job)),
    Step(name="job that is not there", does=lambda _, client: client.job("nobody-00000000"), refused=True),
    Step(name="job that succeeded", does=_of("short", Client.job), after=("short", _ended)),
    Step(name="attempts", does=_of("short", lambda client, job: list(client.attempts(job)))),
    Step(name="events", does=_of("short", lambda client, job: list(client.events(job)))),
    Step(name="snapshots", does=_of("short", lambda client, job: list(client.snapshots(job)))),
    Step(name="workers", does=_of("short", lambda client, job: list(client.workers(job)))),
    Step(name="metrics", does=_of("short", lambda client, job: client.metrics(job, points=5))),
    Step(name="logs", does=_of("short", lambda client, job: client.logs(job, tail=20, rank=0))),
    Step(name="follow logs", does=_of("short", lambda client, job: list(client.follow_logs(job, rank=0)))),
    Step(name="why it succeeded", does=_of("short", Client.why)),
    Step(name="goodput", does=_of("short", Client.goodput)),
    Step(name="snapshot of what has ended", does=_of("short", Client.snapshot), refused=True),
    Step(name="submit broken", does=lambda script, client: script.submit(client, BROKEN)),
    Step(name="job that failed", does=_of("broken", Client.job), after=("broken", _ended)),
    Step(name="why it failed", does=_of("broken", Client.why)),
    Step(name="submit steered", does=lambda script, client: script.submit(client, STEERED)),
    Step(name="jobs", does=lambda _, client: list(client.jobs(project="default")), after=("steered", _trains)),
    Step(name="snapshot", does=_of("steered", Client.snapshot)),
    Step(
        name="suspend",
        does=_of("steered", Client.suspend),
        after=("steered", lambda job: job.newest_snapshot is not None and not job.pending),
    ),
    Step(
        name="job that rests",
        does=_of("steered", Client.job),
        after=("steered", lambda job: job.state == "SUSPENDED"),
    ),
    Step(name="resume", does=_of("steered", Client.resume)),
    Step(
        name="scale",
        does=_of("steered", lambda client, job: client.scale(job, "1:2")),
        after=("steered", lambda job: job.attempt == 2 and _trains(job)),
    ),
    Step(
        name="retry",
        does=_of("steered", lambda client, job: client.retry(job, patch={"priority": 6})),
        after=("steered", lambda job: job.attempt == 3 and _trains(job)),
    ),
    Step(
        name="cancel",
        does=_of("steered", Client.cancel),
        after=("steered", lambda job: job.attempt == 4 and _trains(job)),
    ),
    Step(name="job that was cancelled", does=_of("steered", Client.job), after=("steered", _ended)),
    Step(name="attempts of what was steered", does=_of("steered", lambda client, job: list(client.attempts(job)))),
    Step(name="clusters", does=lambda _, client: client.clusters()),
    Step(name="nodes", does=lambda _, client: client.nodes()),
    Step(name="projects", does=lambda _, client: client.projects()),
    Step(name="webhooks", does=lambda _, client: client.webhooks()),
    Step(name="create token", does=lambda script, client: script.create_token(client)),
    Step(name="tokens", does=lambda _, client: client.tokens()),
    Step(name="revoke token", does=lambda script, client: client.revoke_token(script.learnt["token"])),
)
