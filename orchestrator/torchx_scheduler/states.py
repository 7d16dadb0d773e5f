"""Map a job's state and description to torchx."""

from __future__ import annotations

import json
from collections.abc import Collection

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus

from orchestrator.domain.job.job import JobState
from orchestrator.domain.terminal import clean, clean_line
from orchestrator.torchx_scheduler.translate import ROLE_LABEL
from orchestrator.wire.job_views import JobView

_NONE = str(NONE)  # torchx's word for absent

APP_STATES = {
    JobState.QUEUED: AppState.SUBMITTED,
    JobState.STARTING: AppState.PENDING,
    JobState.RUNNING: AppState.RUNNING,
    JobState.RECOVERING: AppState.RUNNING,  # the job recovers by itself
    JobState.SUSPENDED: AppState.PENDING,  # until its owner resumes it
    JobState.SUCCEEDED: AppState.SUCCEEDED,
    JobState.FAILED: AppState.FAILED,
    JobState.CANCELLED: AppState.CANCELLED,
}


def describe(job: JobView, url: str, absent: Collection[int] = ()) -> DescribeAppResponse:
    """Describe the job for torchx. `absent` are an elastic job's replicas that have no worker now."""
    state = APP_STATES[job.state]
    role = _role(job)
    replicas = [
        ReplicaStatus(
            id=number,
            role=role.name,
            state=AppState.PENDING if number in absent else state,
            hostname="",
            structured_error_msg=_replica_error(job, number),
        )
        for number in range(role.num_replicas)
    ]
    return DescribeAppResponse(
        app_id=clean_line(job.id),
        state=state,
        num_restarts=job.restarts + max(0, job.attempts - 1),
        msg=clean(job.reason),
        structured_error_msg=_structured(job),
        ui_url=f"{url}/jobs/{job.id}",
        roles=[role],
        roles_statuses=[RoleStatus(role.name, replicas)],
    )


def _structured(job: JobView) -> str:
    """Return why a job waits, or else the newest attempt's failure, as JSON. Otherwise torchx's word for absent."""
    if APP_STATES[job.state] in (AppState.SUBMITTED, AppState.PENDING):
        return json.dumps({"state": job.state.value, "reason": job.reason, "pending": job.pending})
    return _NONE if job.failure is None else json.dumps(job.failure.model_dump(mode="json", exclude_none=True))


def _role(job: JobView) -> Role:
    run, topology, resources = job.spec.run, job.spec.topology, job.spec.resources
    program = next((text for text in (run.script, run.module) if text is not None), "trainer")
    words = run.command or (program, *run.args)
    return Role(
        name=clean_line(job.labels.get(ROLE_LABEL, "trainer")),
        image=clean_line(run.image or run.workdir),
        min_replicas=topology.min_nodes,
        num_replicas=topology.max_nodes,
        entrypoint=clean(words[0]),
        args=[clean(word) for word in words[1:]],
        env={clean(name): clean(value) for name, value in run.env.items()},
        # torchx's -1 means not requested
        resource=Resource(
            cpu=-1 if resources.cpus is None else max(1, round(resources.cpus)),
            gpu=resources.gpus,
            memMB=-1 if resources.memory_gb is None else round(resources.memory_gb * 1024),
        ),
    )


def _replica_error(job: JobView, replica: int) -> str:
    """Render the failure like torchelastic's error file, for the replica of the failed rank."""
    failure = job.failure
    if failure is None or job.state is not JobState.FAILED:
        return _NONE
    workers = job.spec.topology.workers_per_node
    guilty = failure.rank // workers if failure.rank is not None and isinstance(workers, int) else 0
    if replica != guilty:
        return _NONE
    ended = job.finished_at or job.updated_at
    extra = {"timestamp": str(int(ended.timestamp())), "py_callstack": failure.traceback or ""}
    message = {"message": failure.message, "errorCode": failure.exit_code, "extraInfo": extra}
    return json.dumps({"message": message})
