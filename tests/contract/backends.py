"""The clusters under test. Jobs are small, with agents that do not import torch."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from deploy.dev.crash_points.launcher import write_lean_python
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site, build_plan
from orchestrator.ports.cluster import Backend
from orchestrator.simulator.virtual_clock import VirtualClock
from tests.builders import make_attempt, make_job, make_spec
from tests.fakes.cluster import FakeCluster
from tests.fakes.cluster import Fate as FakeFate
from trainer.contract import layout

# The worker records its start, then sleeps. A deaf one ignores SIGTERM.
_WORKER = "import os, signal, sys, time; {deaf}open(sys.argv[1], 'a').write('x'); time.sleep({seconds})"
_DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "


class BackendWorld(Protocol):
    backend: Backend
    patience_s: float  # how long a change may take to become visible

    def plan(self, job_id: str, *, seconds: float = 600, deaf: bool = False, nodes: str = "1") -> LaunchPlan:
        """An attempt with one worker per node, which runs for this time."""

    def impossible(self, job_id: str) -> LaunchPlan:
        """An attempt that this cluster can never start."""

    def go_on(self) -> None:
        """Give the cluster some time."""

    def trainings(self, plan: LaunchPlan) -> int:
        """How many submissions of the attempt started a worker."""


class FakeWorld:
    patience_s = 50.0

    def __init__(self, root: Path) -> None:
        self._clock, self._root = VirtualClock(), root
        self.cluster = FakeCluster(self._clock, slots=None)
        self.backend: Backend = self.cluster
        self._ends: dict[AttemptKey, float] = {}

    def plan(self, job_id: str, *, seconds: float = 600, deaf: bool = False, nodes: str = "1") -> LaunchPlan:
        plan = build(job_id, site(self._root), seconds=seconds, deaf=deaf, nodes=nodes)
        self._ends[plan.key] = self._clock.monotonic() + seconds
        return plan

    def impossible(self, job_id: str) -> LaunchPlan:
        self.cluster.fate = FakeFate.REFUSED
        return self.plan(job_id)

    def go_on(self) -> None:
        self._clock.advance(1.0)
        self.cluster.work()
        for key, moment in self._ends.items():
            attempt = self.cluster.attempts.get(key)
            if attempt is not None and self._clock.monotonic() >= moment:
                attempt.end_all()

    def trainings(self, plan: LaunchPlan) -> int:
        return self.cluster.attempts[plan.key].starts


class RealWorld:
    """A cluster with real processes. Workers note their start in a file of their attempt."""

    def __init__(self, root: Path, backend: Backend, site: Site, *, patience_s: float, workdir: str = "/") -> None:
        self.backend, self.patience_s = backend, patience_s
        self._root, self._site, self._workdir = root, site, workdir

    def plan(self, job_id: str, *, seconds: float = 600, deaf: bool = False, nodes: str = "1") -> LaunchPlan:
        plan = build(job_id, self._site, seconds=seconds, deaf=deaf, nodes=nodes)
        return replace(plan, workdir=self._workdir)

    def impossible(self, job_id: str) -> LaunchPlan:
        return replace(self.plan(job_id), workdir=str(self._root / "gone"))

    def go_on(self) -> None:
        time.sleep(0.1)

    def trainings(self, plan: LaunchPlan) -> int:
        started = Path(plan.job_dir) / "started"
        return len(started.read_text()) if started.exists() else 0


def local_world(root: Path) -> RealWorld:
    given = site(root, python=str(write_lean_python(root)))
    return RealWorld(root, LocalBackend(root, slots=8), given, patience_s=30)


def site(root: Path, **changes: Any) -> Site:
    trainer = Path(layout.__file__).parents[1]
    common = Site(
        root=root,
        python=sys.executable,
        child=str(trainer / "elastic" / "child.py"),
        rendezvous_host="127.0.0.1",
        gpus_per_node=0,
        report_url=None,
        stop_timeout_s=2,
        log_limit_bytes=1_000_000,
    )
    return replace(common, **changes)


def build(job_id: str, site: Site, *, seconds: float, deaf: bool, nodes: str) -> LaunchPlan:
    started = str(site.root / job_id / "started")
    code = _WORKER.format(deaf=_DEAF if deaf else "", seconds=seconds)
    run = {"command": [sys.executable, "-c", code, started], "workdir": "/"}
    spec = make_spec(run=run, topology={"nodes": nodes})
    attempt = make_attempt(job_id, nodes=nodes, state=AttemptState.INTENDED)
    os.makedirs(site.root / job_id / "fence", exist_ok=True)  # noqa: PTH103
    return build_plan(make_job(job_id, spec=spec), attempt, site)
