"""Render an attempt without starting it: commands, native request and torchx AppDef."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from orchestrator.commands.drafts import draft_attempt, draft_job
from orchestrator.commands.sizing import compare_rungs, size_up
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.job.appdef import render_appdef
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.masking import MASK
from orchestrator.domain.specs.ineffective_fields import list_ineffective
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.time_limit import list_limit_warnings
from orchestrator.wire.plans import MemoryView, PlanView, ReplicaPlanView, RungView
from trainer.contract import env

MOST_REPLICAS = 32  # replicas that are shown
_MASKED = frozenset({env.REPORT_TOKEN, env.CLAIM})


def render_plan(spec: JobSpec, cluster: Cluster) -> PlanView:
    """Render the first attempt of a spec. Stores, reserves and starts nothing."""
    job = draft_job(spec)
    return render_launch(job, draft_attempt(job, cluster), cluster)


def render_launch(job: Job, attempt: Attempt, cluster: Cluster) -> PlanView:
    """Return what is or would be submitted for this attempt."""
    spec = job.spec
    plan = _masked(cluster.plan(job, attempt), spec.run.secrets)
    objections = () if cluster.check is None else cluster.check(plan)
    native = cluster.backend.render(plan)
    memory = size_up(spec, gpus_per_node=cluster.gpus, gpu_type=cluster.gpu_type)
    rungs = _rungs(spec, cluster)
    return PlanView(
        rendezvous_id=plan.rendezvous_id,
        rendezvous_endpoint=f"{plan.rendezvous_host}:{plan.port}",
        replicas=[
            ReplicaPlanView(replica=replica, command=list(plan.command), env=plan.environment(replica))
            for replica in range(min(plan.max_nodes, MOST_REPLICAS))
        ],
        native_kind=native.kind,
        native_request=native.text,
        appdef=render_appdef(plan.app),
        memory=memory,
        rungs=rungs,
        fitting=next((rung.name for rung in rungs if rung.fits), None),
        restores=attempt.restore_from or spec.snapshot.source,
        warnings=[*objections, *_warnings(spec, plan, cluster, memory)],
    )


def _rungs(spec: JobSpec, cluster: Cluster) -> list[RungView]:
    compared = compare_rungs(spec, gpus_per_node=cluster.gpus, gpu_type=cluster.gpu_type)
    return [RungView(name=rung.name, total_bytes=need.total_bytes, fits=need.fits) for rung, need in compared]


def _masked(plan: LaunchPlan, secrets: Sequence[str]) -> LaunchPlan:
    """Return the plan with a mask in place of each secret, whose value is not read."""
    (role,) = plan.app.roles
    shown = {name: MASK if name in _MASKED else value for name, value in role.env.items()}
    masked = dataclasses.replace(role, env={**dict.fromkeys(secrets, MASK), **shown})
    return dataclasses.replace(plan, app=dataclasses.replace(plan.app, roles=[masked]))


def _warnings(spec: JobSpec, plan: LaunchPlan, cluster: Cluster, memory: MemoryView | None) -> list[str]:
    workers = plan.max_nodes * plan.workers_per_node
    config = spec.trainer_config()
    rows = (
        (
            memory is not None and memory.fits is False,
            f"not enough memory: {memory.advice if memory else ''}",
        ),
        (
            config is not None and config.global_batch < workers,
            f"global_batch is less than the {workers} workers: some workers will have nothing to do",
        ),
        (
            plan.max_nodes > MOST_REPLICAS,
            f"only the first {MOST_REPLICAS} of {plan.max_nodes} replicas are shown; the others start the same way",
        ),
        (
            config is None,
            "your program starts from the beginning after a failure unless it saves and loads snapshots",
        ),
        (
            spec.launcher == "torchrun",
            "under launcher torchrun every restart in place waits for a new rendezvous; elasticrun is faster",
        ),
    )
    return [
        *(sentence for holds, sentence in rows if holds),
        *list_ineffective(spec, cluster.traits, is_plan=True),
        *list_limit_warnings(spec, cluster.notice),
    ]
