"""For each kind of failure that a job on this machine can have, `why` names its kind, rank and cause.

Real jobs on a real service. Failures that need other hardware (a full GPU, a quota) are raised with their usual texts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.killing import kill_at_once
from deploy.dev.service import Marked, ThrowawayService
from orchestrator.client import Client
from orchestrator.wire.insight import WhyView
from orchestrator.wire.job_views import JobView
from tests.conftest import quick_service
from tests.elastic.harness import wait_for
from tests.jobs import ended, python_job, running, training_job, until

pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 240.0
NONE_LEFT = {"application": 0, "launch": 0, "node": 0, "hang": 0, "storage": 0, "preemption": 0}
BLAMED = "import os, sys, time\nrank = int(os.environ['RANK'])\nif rank != 1: time.sleep(600)\n"
FOREVER = "import time; time.sleep(600)"


Inject = Callable[[ThrowawayService, Client, JobView], None]


def job_of(code: str, *, workers: int = 2, budgets: Mapping[str, int] = NONE_LEFT, **supervise: Any) -> dict[str, Any]:
    """A job that ends at its first failure."""
    policy = {"backoff_s": [0.1, 0.2], "budgets": dict(budgets), **supervise}
    return python_job(code, workers=workers, supervise=policy)


def train(*, workers: int = 2, interval: str = "100000", **trainer: Any) -> dict[str, Any]:
    spec = training_job(workers=workers, snapshot={"interval": interval}, **trainer)
    return spec | {"supervise": {"backoff_s": [0.1, 0.2], "budgets": dict(NONE_LEFT)}}


def runs(program: list[str], **fields: Any) -> dict[str, Any]:
    spec = job_of("pass", **fields)
    return {**spec, "run": {"command": program, "workdir": "/"}}


def kill(
    service: ThrowawayService,
    job: JobView,
    chosen: Callable[[Marked], bool],
    how: signal.Signals = signal.SIGKILL,
) -> None:
    """Wait until there is such a process, then signal all such processes."""

    def found() -> list[Marked]:
        return [process for process in service.processes() if process.job_id == job.id and chosen(process)]

    wait_for(found, "process to signal", PATIENCE_S)
    if how is signal.SIGKILL:
        kill_at_once(process.pid for process in found())
        return
    for process in found():
        try:
            os.kill(process.pid, how)
        except ProcessLookupError:
            continue


def kill_rank(service: ThrowawayService, client: Client, job: JobView) -> None:
    kill(service, job, lambda process: process.local_rank == 1)


def kill_agent(service: ThrowawayService, client: Client, job: JobView) -> None:
    kill(service, job, lambda process: process.is_agent)


def kill_replica(service: ThrowawayService, client: Client, job: JobView) -> None:
    kill(service, job, lambda process: process.replica == 1)


def give_notice(service: ThrowawayService, client: Client, job: JobView) -> None:
    kill(service, job, lambda process: process.is_agent, signal.SIGTERM)


def stop_rank(service: ThrowawayService, client: Client, job: JobView) -> None:
    """Stop a rank some steps after the start, so that the hang is one of a step."""
    until(client, job.id, lambda seen: (seen.step or 0) >= 20, timeout_s=PATIENCE_S)
    kill(service, job, lambda process: process.local_rank == 1, signal.SIGSTOP)


def cancel(service: ThrowawayService, client: Client, job: JobView) -> None:
    client.cancel(job.id)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`says` is in the cause's message, `verdict` in the verdict."""

    name: str
    spec: dict[str, Any] = field(repr=False)
    kind: str | None
    says: str = ""
    verdict: str = ""
    rank: int | None = None
    remedy: str | None = None
    state: str = "FAILED"
    inject: Inject | None = None


CASES = (
    Case(
        name="an exception",
        spec=job_of(f"{BLAMED}raise ValueError('no such luck')"),
        kind="application",
        rank=1,
        says="ValueError: no such luck",
        verdict="ValueError: no such luck. The budget of 0 application failures is spent.",
        remedy="error in the script",
    ),
    Case(
        name="an import error",
        spec=job_of(f"{BLAMED}import a_module_that_nobody_has"),
        kind="launch",
        rank=1,
        says="No module named 'a_module_that_nobody_has'",
        verdict="Another attempt would not help.",
        remedy="missing module",
    ),
    Case(
        name="an exit code",
        spec=job_of(f"{BLAMED}print('so long', flush=True); os._exit(7)"),
        kind="application",
        rank=1,
        says="the worker ended with exit code 7: so long",
        verdict="Rank 1 failed at",
    ),
    Case(
        name="a crash of native code",
        spec=job_of(f"{BLAMED}import ctypes; ctypes.string_at(0)"),
        kind="application",
        rank=1,
        says="SIGSEGV",
        verdict="Rank 1 failed at",
    ),
    Case(
        name="a rank killed from outside",
        spec=job_of(FOREVER),
        inject=kill_rank,
        kind="unknown",
        rank=1,
        says="the worker was killed by SIGKILL",
        verdict="Rank 1 was killed by SIGKILL at",
        remedy="killed",
    ),
    Case(
        name="no memory on the host",
        spec=job_of(
            f"{BLAMED}import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))\nbytearray(1 << 33)"
        ),
        kind="host-oom",
        rank=1,
        says="MemoryError",
        verdict="Rank 1 ran out of host memory at",
        remedy="memory refused",
    ),
    Case(
        name="no memory on the device",
        spec=job_of(
            f"{BLAMED}class OutOfMemoryError(RuntimeError): pass\n"
            "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 is full')"
        ),
        kind="device-oom",
        rank=1,
        says="CUDA out of memory",
        verdict="Rank 1 ran out of device memory at",
        remedy="device memory",
    ),
    Case(
        name="a full disk",
        spec=job_of(f"{BLAMED}open('/dev/full', 'w', buffering=1).write('a line\\n')"),
        kind="storage",
        rank=1,
        says="No space left on device",
        verdict="Rank 1 had a storage failure at",
        remedy="disk full",
    ),
    Case(
        name="a used up quota",
        spec=job_of(f"{BLAMED}import errno; raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), '/data/x')"),
        kind="storage",
        rank=1,
        says="Disk quota exceeded",
        verdict="Rank 1 had a storage failure at",
        remedy="disk quota",
    ),
    Case(
        name="a missing script",
        spec=runs([sys.executable, "/nowhere/train.py"]),
        kind="launch",
        says="/nowhere/train.py",
        verdict="Another attempt would not help.",
        remedy="missing file or command",
    ),
    Case(
        name="a missing program",
        spec=runs(["/nowhere/program"]),
        kind="launch",
        says="/nowhere/program",
        verdict="Another attempt would not help.",
        remedy="missing file or command",
    ),
    Case(
        name="a file that may not be run",
        spec=runs(["/etc/passwd"]),
        kind="launch",
        says="the program '/etc/passwd' may not be executed",
        verdict="Another attempt would not help.",
        remedy="permission",
    ),
    Case(
        name="a file that may not be read",
        spec=job_of(f"{BLAMED}raise PermissionError(13, 'Permission denied', '/data/x')"),
        kind="application",
        rank=1,
        says="Permission denied: '/data/x'",
        verdict="PermissionError",
        remedy="permission",
    ),
    Case(
        name="a pattern of the settings",
        spec=job_of(f"{BLAMED}raise RuntimeError('license server lab-7 does not answer')"),
        kind="infrastructure",
        rank=1,
        says="license server lab-7 does not answer",
        verdict="Rank 1 had an infrastructure failure at",
    ),
    Case(
        name="a killed agent",
        spec=job_of(FOREVER),
        inject=kill_agent,
        kind="node",
        says="replica 0's agent",
        verdict="Replica 0's agent",
        remedy="lost node",
    ),
    Case(
        name="a lost node",
        spec={**job_of(FOREVER, workers=1), "topology": {"nodes": "2", "workers_per_node": 1}},
        inject=kill_replica,
        kind="node",
        says="replica 1's agent",
        verdict="Replica 1's agent",
        remedy="lost node",
    ),
    Case(
        name="the owner's own limit",
        spec=job_of(FOREVER, max_runtime_s=2),
        kind="timeout",
        says="it ran longer than max_runtime_s = 2",
        verdict="The owner set this limit.",
        remedy="time limit",
    ),
    Case(
        name="a notice of preemption",
        spec=job_of(FOREVER),
        inject=give_notice,
        kind="preempted",
        says="the cluster preempted the attempt",
        verdict="The budget of 0 preemption failures is spent.",
        remedy="preemption",
    ),
    Case(
        name="a cancellation",
        spec=job_of(FOREVER),
        inject=cancel,
        state="CANCELLED",
        kind=None,
        verdict="Cancelled by its owner.",
    ),
    Case(
        name="a spent budget",
        spec=job_of(
            f"{BLAMED}import random; raise ValueError(''.join(random.sample('abcdefghijklmnopqrstuvwxyz', 12)))",
            budgets={"application": 1},
        ),
        kind="application",
        rank=1,
        says="ValueError: ",
        verdict="The budget of 1 application failure is spent.",
        remedy="error in the script",
    ),
    Case(
        name="the same error twice",
        spec=job_of(f"{BLAMED}raise ValueError('always the same')", budgets={"application": 9}),
        kind="application",
        rank=1,
        says="always the same",
        verdict="The same error occurred twice",
        remedy="error in the script",
    ),
    Case(
        name="the loss of a peer in a collective",
        spec=job_of(
            "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
            "dist.barrier()\nif dist.get_rank() == 1: os._exit(9)\ndist.all_reduce(torch.ones(4))"
        ),
        kind="application",
        rank=1,
        says="exit code 9",
        verdict="Rank 1 failed at",
    ),
    Case(
        name="a loss that is no number",
        spec=train(learning_rate=1e30, grad_clip=0.0, warmup_steps=1),
        kind="numeric",
        rank=0,
        says="loss is",
        verdict="Rank 0 computed a loss that is not finite at",
        remedy="not a number",
    ),
    Case(
        name="a rank that hangs",
        spec={**train(), "supervise": {"budgets": NONE_LEFT, "heartbeat_timeout_s": 5}},
        inject=stop_rank,
        kind="hang",
        rank=1,
        verdict="Rank 1 hung at",
        remedy="hang",
    ),
)


@pytest.fixture(scope="module")
def running_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    patterns = '[{"text": "license server", "kind": "infrastructure"}]'
    folder = tmp_path_factory.mktemp("matrix")
    with quick_service(folder / "runs", ORCHESTRATOR_FAILURE_PATTERNS=patterns) as service:
        yield service


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_why_names_the_class_the_rank_and_the_cause(running_service: ThrowawayService, case: Case) -> None:
    with Client(running_service.url) as client:
        job = client.submit(case.spec)
        if case.inject is not None:
            until(client, job.id, running, timeout_s=PATIENCE_S)
            case.inject(running_service, client, job)
        over = until(client, job.id, ended, timeout_s=PATIENCE_S)
        check(client.why(job.id), over, case)


def check(why: WhyView, job: JobView, case: Case) -> None:
    text = why.model_dump_json(indent=1)
    assert why.state == case.state, text
    assert case.verdict in why.verdict, text
    if case.kind is None:
        assert why.cause is None, text
        return
    assert why.cause is not None, text
    failure = why.cause.failure
    assert (failure.kind, failure.rank) == (case.kind, case.rank), text
    assert case.says in failure.message, text
    assert (None if why.remedy is None else why.remedy.name) == case.remedy, text
    assert "orchestrator retry" in why.next, text
    assert not why.cause.over, text
    if case.rank is not None:
        assert why.cause.collateral_ranks in ([], [1 - case.rank]), text


def test_workers_that_never_form_a_group_are_reported_as_such(
    running_service: ThrowawayService,
) -> None:
    """One of two nodes never joins the rendezvous."""
    spec = {
        **job_of(FOREVER, workers=1, startup_timeout_s=6),
        "topology": {"nodes": "2", "workers_per_node": 1},
    }
    with Client(running_service.url) as client:
        job = client.submit(spec)
        kill(running_service, job, lambda one: one.replica == 1, signal.SIGSTOP)
        until(client, job.id, ended, timeout_s=PATIENCE_S)
        why = client.why(job.id)
    assert why.cause is not None, why
    assert why.cause.failure.kind in ("hang", "rendezvous"), why
    assert "The workers formed no group within 6 s" in why.verdict, why


def test_a_damaged_snapshot_is_named_with_its_file(running_service: ThrowawayService, tmp_path: Path) -> None:
    with Client(running_service.url) as client:
        first = client.submit(train(workers=1, steps=8, interval="4"))
        assert until(client, first.id, ended, timeout_s=PATIENCE_S).state == "SUCCEEDED"
        snapshots = running_service.root / first.id / "snapshots"
        for shard in snapshots.glob("step-*/*.distcp"):
            with shard.open("r+b") as file:
                file.seek(shard.stat().st_size // 2)
                file.write(b"\xff\x00\xff\x00damaged")
        newest = sorted(snapshots.glob("step-*"))[-1]
        spec = train(workers=1, steps=16)
        job = client.submit({**spec, "snapshot": {"from": str(newest)}})
        until(client, job.id, ended, timeout_s=PATIENCE_S)
        why = client.why(job.id)
    assert why.cause is not None, why
    assert (why.cause.failure.kind, why.cause.failure.rank) == ("storage", 0), why
    assert ".distcp" in f"{why.cause.failure.message}{why.cause.failure.traceback}", why


def test_a_failure_that_training_recovered_from_is_reported_as_over(running_service: ThrowawayService) -> None:
    spec = training_job(workers=2, steps=400, snapshot={"interval": "20"})
    with Client(running_service.url) as client:
        job = client.submit(spec)
        until(client, job.id, lambda seen: (seen.step or 0) >= 30, timeout_s=PATIENCE_S)
        kill(running_service, job, lambda one: one.local_rank == 1)
        assert until(client, job.id, ended, timeout_s=PATIENCE_S).state == "SUCCEEDED"
        why, goodput = client.why(job.id), client.goodput(job.id)
    assert why.cause is not None, why
    assert (why.cause.failure.kind, why.cause.failure.rank, why.cause.over) == ("unknown", 1, True), why
    assert "Rank 1 was killed by SIGKILL at" in why.verdict, why
    assert sum(goodput.bins.values()) == pytest.approx(goodput.device_seconds, abs=1e-3)
    assert {stretch.cause for stretch in goodput.stretches if stretch.bin == "recovering"} == {"killed"}
