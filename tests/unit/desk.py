"""Commands and plans on a store in memory, for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.commands.plans import Plans
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.virtual_clock import VirtualClock
from tests.builders import make_attempt, make_event, make_job, make_site, make_spec
from tests.fakes.cluster import FakeCluster

STRANGER = Principal(name="eve", grants={"vision": Role.ADMIN})


def a_spec(**fields: Any) -> JobSpec:
    return make_spec(**{"run": {"command": ["true"], "workdir": "/"}, **fields})


class Desk:
    """Commands and plans on two equal clusters of four slots each. `woken` counts the calls of `wake`."""

    def __init__(self, root: Path) -> None:
        self.store, clock, self.woken = MemoryStore(), VirtualClock(), 0
        self.cluster = Cluster(
            name="local",
            kind="local",
            backend=FakeCluster(clock, slots=4),
            job_root=root,
            plan=lambda job, attempt: build_plan(job, attempt, make_site()),
            ports=range(20000, 20010),
            gpus=0,
        )
        clusters = {"local": self.cluster, "other": replace(self.cluster, name="other")}
        checks = Checks(jobs=self.store, clusters=clusters, webhooks=("pager", "audit"))
        self.commands = Commands(self.store, self.store, checks, clock, self._wake)
        self.plans = Plans(self.store, checks)

    def _wake(self) -> None:
        self.woken += 1

    def add(self, job_id: str = "job-1", *, spec: dict[str, Any] | None = None, **fields: Any) -> Job:
        job = make_job(job_id, spec=a_spec(**(spec or {})), **fields)
        return self.store.add(job, idempotency_key=None, digest="", event=make_event())

    def start(self, state: AttemptState = AttemptState.RUNNING, **fields: Any) -> None:
        self.store.tables.put_attempt(make_attempt(state=state, **fields))

    def requests(self) -> int:
        """The number of accepted requests."""
        return len(self.store.tables.events) - len(self.store.tables.jobs)
