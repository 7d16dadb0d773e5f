"""The simulated world: one cluster with its agents, one store, two service processes, and a clock."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import structlog

from orchestrator import rundir
from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.domain.policy.decide import Rule, decide
from orchestrator.domain.policy.decision import Decision
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Limits
from orchestrator.intake import reading
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.journals import JournalBatch
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor import reconcile, repeats
from orchestrator.supervisor.reconcile import PassSettings
from tests.builders import make_event, make_job, make_site, make_spec
from tests.fakes.cluster import FakeCluster
from tests.fakes.group import FakeAttempt
from tests.fakes.skewed_clock import SkewedClock
from tests.property.ledger import Ledger
from tests.property.services import PORTS, FailingLogger, Service
from tests.property.snapshots import SnapshotOracle

SLOTS = 4
STOP_TIMEOUT_S = 15.0
SUBMIT_TIMEOUT_S = 60.0
LOOK_S = 25.0  # between two passes of a healthy service
_MEMORY = Path("/dev/shm")


class World:
    """`harm` counts, by job, the faults that may cost it an attempt."""

    def __init__(self, *, limits: Limits | None = None, lease_s: float = 15.0, agents_skew_s: float = 0.0) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="simulated-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.clock = VirtualClock()
        self.lease_s = lease_s
        self.store = MemoryStore()
        self.cluster = FakeCluster(self.clock, slots=SLOTS, agents_clock=SkewedClock(self.clock, agents_skew_s))
        self.ledger = Ledger(self.store, self.cluster)
        self.harm: Counter[str] = Counter()
        self.oracles: dict[str, SnapshotOracle] = {}
        self.unreadable: set[str] = set()  # jobs whose run directories cannot be read
        self.site = make_site(self.root, gpus_per_node=1)
        self.limits = limits or Limits()
        self.pass_settings = PassSettings(
            limits=self.limits, stop_timeout_s=STOP_TIMEOUT_S, submit_timeout_s=SUBMIT_TIMEOUT_S
        )
        self.decided: deque[str] = deque(maxlen=12)  # the latest decisions, to explain a failed test
        self.pause_s = 0.0  # the length of the next pause of a service
        self.meanwhile: Callable[[], object] = lambda: None  # what happens during that pause
        self._patches = ExitStack()
        self._patch()
        checks = Checks(jobs=self.store, clusters={"local": self._cluster()})
        self.commands = Commands(self.store, self.store, checks, self.clock, lambda: None)
        self.services = [Service("one", self), Service("two", self)]

    def close(self) -> None:
        self._patches.close()
        shutil.rmtree(self.root)

    def add_job(self, **spec: object) -> Job:
        """Submit a job. Its name is the same in every run."""
        number = len(self.store.tables.jobs) + 1
        fields = {"run": {"command": ["t"], "workdir": "/"}, **spec}
        job = make_job(f"job-{number}", spec=make_spec(**fields), created_at=self.clock.now())
        return self.store.add(job, idempotency_key=None, digest="", event=make_event("job.submitted"))

    # Time

    def advance(self, seconds: float) -> None:
        """Advance the clock. Services that are awake renew their leases."""
        while seconds > 0:
            step = min(seconds, self.lease_s / 4)
            self.clock.advance(step)
            for service in self.services:
                service.keep()
            seconds -= step

    def live_on(self, seconds: float) -> None:
        """Let healthy agents work for this time, without a pass of the service."""
        while seconds > 0:
            self.cluster.work()
            self.advance(min(seconds, LOOK_S))
            seconds -= LOOK_S
        self.cluster.work()

    def watch(self, seconds: float) -> None:
        """Let healthy agents work for this time, with passes of the service."""
        self.look()
        while seconds > 0:
            self.live_on(min(seconds, LOOK_S))
            self.look()
            seconds -= LOOK_S

    def look(self) -> None:
        for service in self.services:
            service.turn()

    def sleep(self, service: Service) -> None:
        """Pause the service in the middle of a call while everything else continues."""
        service.asleep = True
        happens, self.meanwhile = self.meanwhile, lambda: None
        happens()
        self.watch(self.pause_s)
        self.ledger.surprised = True
        service.asleep = False

    # State

    def jobs(self) -> list[Job]:
        return list(self.store.tables.jobs.values())

    def job(self, job_id: str) -> Job:
        return self.store.tables.jobs[job_id]

    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.store.tables.attempts.values() if not attempt.state.terminal]

    def real(self, job_id: str, number: int = 1) -> FakeAttempt:
        return self.cluster.attempts[AttemptKey(job_id, number)]

    def at_rest(self) -> bool:
        requested = any(job.retry_requested for job in self.jobs())
        return all(job.state.terminal for job in self.jobs()) and not requested and not self.live()

    def oracle(self, job_id: str) -> SnapshotOracle | None:
        lineage = self.cluster.lineages.get(job_id)
        return None if lineage is None else self.oracles.setdefault(job_id, SnapshotOracle(lineage))

    def _patch(self) -> None:
        self._patches.callback(structlog.configure, **structlog.get_config())
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._patches.enter_context(patch.object(reconcile, "decide", self._decide))
        for module in (repeats, reading):
            self._patches.enter_context(patch.object(module, "log", FailingLogger(self.ledger)))
        read_news = rundir.read_news

        def read(job: JobFolder, *arguments: object) -> Iterator[JournalBatch]:
            if job.name in self.unreadable:
                raise OSError("the file system does not answer")
            yield from read_news(job, *arguments)  # type: ignore[arg-type]

        self._patches.enter_context(patch.object(rundir, "read_news", read))
        # Tests need no durability.
        self._patches.enter_context(patch.object(os, "fsync", lambda _: None))

    def _decide(self, situation: Situation, policy: tuple[Rule, ...]) -> Decision:
        decision = decide(situation, policy)
        self.decided.append(f"{situation.job.id} {decision.rule}: {decision.sentence}")
        return decision

    def _cluster(self) -> Cluster:
        return Cluster(
            name="local",
            kind="local",
            backend=self.cluster,
            job_root=self.root,
            plan=lambda job, attempt: build_plan(job, attempt, self.site),
            ports=PORTS,
            gpus=0,
        )
