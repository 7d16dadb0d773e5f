"""Failures that are specific to Slurm: `why` names kind, rank, node and cause.

The others are in tests/integration/long/test_failure_matrix.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from deploy.dev.slurm.conf import Shape
from orchestrator.wire.insight import WhyView
from tests.slurm.live.lab import Lab, open_labs

pytestmark = pytest.mark.timeout(1200)

NONE_LEFT = {"application": 0, "launch": 0, "node": 0, "hang": 0, "storage": 0, "preemption": 0}
HERE = Path(__file__).parent
FOREVER = "import time; time.sleep(600)"
ON_RANK_1 = "import os, time\nif os.environ['RANK'] != '1': time.sleep(600)\n"

Inject = Callable[[Lab, str], None]


def job_of(code: str, *, nodes: str = "2", **fields: Any) -> dict[str, Any]:
    """Build a job with a worker without torch on each node. Its first failure ends it."""
    return {
        "run": {"command": [sys.executable, "-c", code], "workdir": str(HERE)},
        "topology": {"nodes": nodes, "workers_per_node": 1},
        "supervise": {"backoff_s": [0.1, 0.2], "budgets": dict(NONE_LEFT)},
        **fields,
    }


def kill_node(name: str) -> Inject:
    return lambda lab, job: lab.slurm.kill_node(name)


def kill_agent(lab: Lab, job: str) -> None:
    lab.kill(job, replica=1, agents=True)


def kill_worker(lab: Lab, job: str) -> None:
    lab.kill(job, replica=1, rank=0)


def preempt(lab: Lab, job: str) -> None:
    """A job of higher priority takes all nodes."""
    lab.slurm.run("sbatch", "-p", "high", "-N4", "--cpus-per-task=4", "--wrap=sleep 5", "-o", "/dev/null")


def cancel(lab: Lab, job: str) -> None:
    lab.slurm.run("scancel", lab.slurm_id(job))


def requeue(lab: Lab, job: str) -> None:
    lab.slurm.run("scontrol", "update", f"jobid={lab.slurm_id(job)}", "requeue=1")
    lab.slurm.run("scontrol", "requeue", lab.slurm_id(job))


@dataclass(frozen=True, kw_only=True)
class Case:
    """`says` is a part of the cause's message; `{id}` is the Slurm id. `cluster`: settings of the cluster."""

    name: str
    spec: dict[str, Any] = field(repr=False)
    kind: str
    says: str
    rank: int | None = None
    nodes: tuple[str, ...] = ()  # with the failure in their record
    remedy: str | None = None
    inject: Inject | None = None
    cluster: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case(
        name="a node that dies",
        spec=job_of(FOREVER),
        inject=kill_node("n2"),
        kind="node",
        says="n2 down",
        nodes=("n2",),
        remedy="lost node",
    ),
    Case(
        name="an agent that is killed on a node that lives",
        spec=job_of(FOREVER),
        inject=kill_agent,
        kind="node",
        says="replica 1's agent on n2 was killed by SIGKILL",
        remedy="lost node",
    ),
    Case(
        name="a place that Slurm gives to another job",
        spec=job_of(FOREVER),
        inject=preempt,
        kind="preempted",
        says="Slurm preempted it for another job (Slurm job {id}, PREEMPTED)",
        remedy="preemption",
    ),
    Case(
        name="a job that an administrator cancels",
        spec=job_of(FOREVER),
        inject=cancel,
        kind="preempted",
        says="it was cancelled in Slurm by somebody else; without accounting, Slurm does not say who it was "
        "(Slurm job {id}, CANCELLED)",
        remedy="cancelled in Slurm",
    ),
    Case(
        name="a job that an administrator requeues",
        spec=job_of(FOREVER),
        inject=requeue,
        kind="preempted",
        says="somebody else requeued it in Slurm",
        remedy="cancelled in Slurm",
    ),
    Case(
        name="a time limit",
        spec=job_of(FOREVER, placement={"time_limit_s": 60}),
        kind="timeout",
        says="time limit",  # Slurm or the agents say it, whichever comes first
        remedy="time limit",
    ),
    Case(
        name="an exception of a rank on another node",
        spec=job_of(f"{ON_RANK_1}raise ValueError('no such luck')"),
        kind="application",
        rank=1,
        says="ValueError: no such luck",
        remedy="error in the script",
    ),
    Case(
        name="a worker that is killed from outside",
        spec=job_of(FOREVER),
        inject=kill_worker,
        kind="unknown",
        rank=1,
        says="killed by SIGKILL",
        remedy="killed",
    ),
    Case(
        name="a partition that there is not",
        spec=job_of(FOREVER, placement={"partition": "nowhere"}),
        kind="launch",
        says="Invalid partition name",
        remedy="refused by the scheduler",
    ),
    Case(
        name="a module that there is not",
        spec=job_of(FOREVER),
        cluster={"modules": ["torch/99"]},
        kind="launch",
        says="Slurm job {id} could not start: module torch/99 cannot be loaded",
        remedy="node environment",
    ),
    Case(
        name="a prolog that fails",
        spec=job_of(FOREVER),
        cluster={"prolog": "echo 'no licence on this node' >&2\nexit 3"},
        kind="infrastructure",
        says="Slurm job {id} ended FAILED before any agent started: no licence on this node",
        remedy="node environment",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_why_names_the_class_the_rank_the_node_and_the_cause(open_lab: Callable[..., Lab], case: Case) -> None:
    lab = open_lab(**case.cluster)
    job = lab.submit(**case.spec)
    if case.inject is not None:
        lab.until(job, lambda job: job.state == "RUNNING" or job.ended)
        case.inject(lab, job)
    lab.until(job, lambda job: job.ended)
    ids = [number for number, _, _ in lab.slurm_jobs(job)]
    check(lab.client.why(job), case, says=case.says.format(id=ids[0] if ids else "none"))


def check(why: WhyView, case: Case, *, says: str) -> None:
    document = why.model_dump_json(indent=1)
    assert why.state == "FAILED", document
    assert why.cause is not None, document
    failure = why.cause.failure
    assert (failure.kind, failure.rank) == (case.kind, case.rank), document
    assert says in failure.message, document
    assert says.lower() in why.verdict.lower(), document
    assert tuple(why.cause.nodes) == case.nodes, document
    assert (None if why.remedy is None else why.remedy.name) == case.remedy, document
    assert "orchestrator retry" in why.next, document


def test_out_of_memory_in_a_control_group_names_the_rank(tmp_path: Path) -> None:
    """The kernel kills the worker in its control group, and its agent reports it."""
    try:
        with ThrowawaySlurm(Shape(nodes=2, memory_limits=True)) as slurm, open_labs(slurm, tmp_path) as open_lab:
            why = run_out_of_memory(open_lab())
    except NoSlurm as error:
        pytest.skip(str(error))
    check(why, GREEDY, says=GREEDY.says)


def test_a_step_that_slurm_kills_for_its_memory_is_out_of_memory(tmp_path: Path) -> None:
    """Without control groups Slurm measures each step and kills it with its agents."""
    changes = {
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=1",
        "JobAcctGatherParams": "OverMemoryKill",
    }
    with ThrowawaySlurm(Shape(nodes=2, changes=changes)) as slurm, open_labs(slurm, tmp_path) as open_lab:
        why = run_out_of_memory(open_lab())
    check(why, SWEPT, says=SWEPT.says)


GREEDY = Case(
    name="memory beyond the control group's",
    spec=job_of(f"{ON_RANK_1}held = b'x' * (3 << 30)\ntime.sleep(600)", resources={"memory_gb": 1}),
    kind="host-oom",
    rank=1,
    says="out of memory",
    remedy="host memory",
)
SWEPT = replace(GREEDY, rank=None, says="it used more memory than Slurm allocated to it")


def run_out_of_memory(lab: Lab) -> WhyView:
    job = lab.submit(**GREEDY.spec)
    lab.until(job, lambda job: job.ended)
    return lab.client.why(job)


def test_a_node_whose_prolog_fails_is_named_and_avoided(tmp_path: Path) -> None:
    """Slurm drains the node, and 22.05 cancels the job. No user did."""
    prolog = tmp_path / "prolog"
    prolog.write_text('#!/bin/bash\n[ "$(hostname)" != n1 ]\n')
    prolog.chmod(0o755)
    changes = {"Prolog": str(prolog)}
    with ThrowawaySlurm(Shape(nodes=3, changes=changes)) as slurm, open_labs(slurm, tmp_path) as open_lab:
        lab = open_lab(settle_s=15)  # half of the default: Slurm may cancel the job seconds before it drains the node
        job = lab.submit(**job_of("pass", supervise={"backoff_s": [0.1, 0.2]}))
        lab.succeeded(job)
        why, attempts = lab.client.why(job), list(lab.client.attempts(job))
        slurm.run("scontrol", "update", "nodename=n1", "state=resume")
    assert why.cause is not None
    assert (why.cause.failure.kind, why.cause.nodes, why.cause.over) == ("infrastructure", ["n1"], True), why
    assert "before its script began; Slurm calls n1 drained: Prolog error" in why.cause.failure.message
    assert [attempt.excluded_nodes for attempt in attempts] == [[], ["n1"]]
