"""The dry run: the first attempt of a job that was not submitted, as commands, native request and torchx AppDef."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import Enum

from torchx import specs

from orchestrator.clusters import Cluster
from orchestrator.domain.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.launch import LaunchPlan
from orchestrator.domain.spec import JobSpec
from orchestrator.sizing import size_up
from orchestrator.wire import MemoryView, PlanView, ReplicaPlanView
from trainer.contract import env

NONCE = "preview"
_MASKED = frozenset({env.REPORT_TOKEN, env.CLAIM})
_MASK = "********"


def render_plan(spec: JobSpec, cluster: Cluster, now: datetime) -> PlanView:
    """Nothing is stored, reserved or started."""
    job = Job(
        id=f"{spec.name}-{NONCE}",
        spec=spec,
        state=JobState.QUEUED,
        reason="is a dry run",
        desired=Desired(),
        created_at=now,
        updated_at=now,
    )
    attempt = Attempt(
        key=AttemptKey(job.id, 1),
        state=AttemptState.INTENDED,
        reason="is a dry run",
        nonce=NONCE,
        nodes=job.spec.topology.nodes,
        asked=job.spec.topology.nodes,
        port=cluster.ports.start,
        created_at=now,
    )
    plan = _masked(cluster.plan(job, attempt))
    native = cluster.backend.render(plan)
    memory = size_up(spec, gpus_per_node=cluster.gpus, gpu_type=cluster.gpu_type)
    return PlanView(
        rendezvous_id=plan.rendezvous_id,
        rendezvous_endpoint=f"{plan.rendezvous_host}:{plan.port}",
        replicas=[
            ReplicaPlanView(replica=replica, command=list(command), env=environment)
            for replica, (command, environment) in enumerate(zip(plan.commands, plan.environments, strict=True))
        ],
        native_kind=native.kind,
        native_request=native.text,
        appdef=render_appdef(plan, spec, gpus_per_node=cluster.gpus),
        memory=memory,
        warnings=list(_warnings(spec, plan, cluster, memory)),
    )


def render_appdef(plan: LaunchPlan, spec: JobSpec, *, gpus_per_node: int) -> dict[str, object]:
    """The launch as a torchx AppDef (torchx.specs), in plain values. Only replica 0's own values are shown."""
    memory_gb = spec.resources.memory_gb
    gpus = gpus_per_node if spec.topology.workers_per_node == "gpu" else spec.resources.gpus
    role = specs.Role(
        name=spec.name,
        image=spec.run.image or plan.workdir,
        min_replicas=plan.min_nodes if plan.min_nodes != plan.max_nodes else None,
        entrypoint=plan.commands[0][0],
        args=list(plan.commands[0][1:]),
        env=dict(plan.environments[0]),
        num_replicas=plan.max_nodes,
        # torchx writes -1 where nothing was asked for (torchx.specs.NULL_RESOURCE).
        resource=specs.Resource(
            cpu=-1 if spec.resources.cpus is None else max(1, round(spec.resources.cpus)),
            gpu=gpus,
            memMB=-1 if memory_gb is None else round(memory_gb * 1024),
        ),
        port_map={"rendezvous": plan.port},
    )
    document = _plain(dataclasses.asdict(specs.AppDef(name=plan.name, roles=[role], metadata=dict(spec.labels))))
    return document if isinstance(document, dict) else {}


def _masked(plan: LaunchPlan) -> LaunchPlan:
    environments = tuple(
        {name: _MASK if name in _MASKED else value for name, value in environment.items()}
        for environment in plan.environments
    )
    return dataclasses.replace(plan, environments=environments)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, (str, int)) else value.name
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _warnings(spec: JobSpec, plan: LaunchPlan, cluster: Cluster, memory: MemoryView | None) -> list[str]:
    workers = plan.max_nodes * plan.workers_per_node
    config = spec.trainer_config()
    resources = spec.resources
    rows = (
        (
            memory is not None and memory.fits is False,
            f"the memory will not suffice: {memory.advice if memory else ''}",
        ),
        (
            config is not None and config.global_batch < workers,
            f"global_batch is below the {workers} workers: some of them will have nothing to do",
        ),
        (
            config is None,
            "a program of your own starts from its beginning after a failure, unless it saves and loads snapshots",
        ),
        (
            cluster.kind == "local" and (resources.cpus is not None or resources.memory_gb is not None),
            "cluster kind local counts workers only: resources.cpus and resources.memory_gb are not enforced",
        ),
        (
            spec.launcher == "torchrun",
            "under launcher torchrun every restart in place waits for a new rendezvous; elasticrun is faster",
        ),
    )
    return [sentence for holds, sentence in rows if holds]
