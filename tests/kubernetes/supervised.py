"""A supervisor on the fake cluster: real passes, policy and backend, with a clock that can be advanced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator import rundir
from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.job import Desired, Job
from orchestrator.domain.queueing.admission import Limits
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import PassSettings, Reconciler
from orchestrator.supervisor.repeats import Repeats
from tests.builders import make_event, make_job, make_spec
from tests.contract.backends import site
from tests.fakes.memory_leases import MemoryLeaseStore
from trainer.contract.node import HEAD, LOCAL

PATIENCE_S = 60.0
CLUSTER = "k8s"


class Clock:
    """Implements ports.Clock: the machine's clock plus an offset."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead.total_seconds()

    def advance(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)


class Supervised:
    """Uses the default times of a configured cluster."""

    def __init__(self, build_backend: Callable[..., KubernetesBackend], root: Path) -> None:
        self.clock, self.memory = Clock(), MemoryStore()
        lease = MemoryLeaseStore(self.memory, self.clock).acquire(CLUSTER, "test", ttl_s=10**9)
        assert lease is not None
        store = MemorySupervisorStore(self.memory, self.clock, lease)
        self.backend = build_backend(now=lambda: self.clock.now().timestamp())
        given = site(root, rendezvous_host=HEAD, local_address=LOCAL)
        actor = Actor(store, self.backend, rundir.LocalRunDirectories(root), given, ports=range(20_000, 21_000))
        repeats = Repeats()
        observer = Observer(
            CLUSTER, store, self.backend, self, self.clock, repeats=repeats, monotonic=self.clock.monotonic
        )
        pass_settings = PassSettings(limits=Limits(), stop_timeout_s=30, submit_timeout_s=70, repeat_s=10)
        self._reconciler = Reconciler(store, observer, actor, self.clock, pass_settings, repeats=repeats)

    def collect(self, launched: Mapping[AttemptKey, int], must_read: Set[AttemptKey]) -> Mapping[AttemptKey, str]:
        """Implements ports.Journals without any reports."""
        return {}

    def add(self, job_id: str = "train-abc", **fields: Any) -> None:
        spec = make_spec(cluster=CLUSTER, run={"command": ["true"], "image": "trainer:1"}, **fields)
        job = make_job(job_id, spec=spec, created_at=self.clock.now(), reason="waits for its turn on cluster k8s")
        self.memory.add(job, idempotency_key=None, digest="", event=make_event())

    def cancel(self, job_id: str = "train-abc") -> None:
        assert self.memory.record_request(job_id, Desired(number=1, cancelled=True), make_event())

    def job(self, job_id: str = "train-abc") -> Job:
        return self.memory.get(job_id)

    def attempts(self, job_id: str = "train-abc") -> list[Attempt]:
        return list(self.memory.attempts_of(job_id))

    @property
    def answers(self) -> bool:
        """Whether the cluster answered in the last pass."""
        return self._reconciler.answered

    def go_on(self, passes: int = 1, *, seconds: float = 1.0) -> None:
        """Run passes, and advance the supervisor's clock after each."""
        for _ in range(passes):
            self._reconciler.reconcile()
            self.clock.advance(seconds)

    def until(self, holds: Callable[[Job], bool], *, seconds: float = 0.0) -> Job:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self.job()):
            assert time.monotonic() < deadline, f"{self.job().state}: {self.job().reason}"
            self.go_on(seconds=seconds)
            time.sleep(0.02)
        return self.job()
