"""What a job that has not started waits for, and what happens next. The first obstacle that matches counts. Pure data.

The job's reason quotes the scheduler, the kubelet or the API server. The patterns match the words of Kubernetes 1.36
(kube-scheduler, kubelet, quota and RBAC of the API server).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.observation import CAN_NEVER_START

_CHANGE = "`orchestrator retry {job} --set {field}=...`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """`pattern` is searched in the job's reason. `next` may name {job} and {cluster}."""

    name: str
    pattern: str
    next: str


OBSTACLES: tuple[Obstacle, ...] = (
    Obstacle(
        name="never",
        pattern=re.escape(CAN_NEVER_START),
        next="`orchestrator cancel {job}`, then submit it with other resources, topology or placement",
    ),
    Obstacle(
        name="no right",
        pattern=r"service has no right to do this|cannot (create|list|watch) resource",
        next="the service tries again by itself, at most a minute after the right is granted; `orchestrator doctor "
        "{cluster}` names each right that is missing",
    ),
    Obstacle(
        name="no answer",
        pattern=r"has not answered since",
        next="it starts by itself once the cluster answers; until then nothing of it is started or stopped",
    ),
    Obstacle(
        name="missing claim",
        pattern=r'persistentvolumeclaim "[^"]*" (is )?not found|unbound immediate PersistentVolumeClaims',
        next="the scheduler tries again by itself once that claim exists and is bound; ask whoever runs the cluster "
        "to create it, or to correct the cluster's `claim`",
    ),
    Obstacle(
        name="image",
        pattern=r"ErrImagePull|ImagePullBackOff|RegistryUnavailable|ImageInspectError",
        next="the node pulls again by itself; after some minutes another attempt starts, until the launch budget is "
        f"spent. To use another image: {_CHANGE.replace('{field}', 'run.image')}",
    ),
    Obstacle(
        name="container",
        pattern=r"CreateContainerConfigError|CreateContainerError|RunContainerError",
        next="the node tries again by itself, for some minutes; then the job fails with these words",
    ),
    Obstacle(
        name="volume",
        pattern=r"FailedMount|FailedAttachVolume",
        next="the node tries again by itself; ask whoever runs the cluster to check the volume that is named",
    ),
    Obstacle(
        name="full quota",
        pattern=r"exceeded quota|quota of the namespace is reached",
        next="it starts by itself once others in the namespace have ended, or its quota is raised",
    ),
    Obstacle(
        name="refused pods",
        pattern=r"is forbidden: |is invalid: |denied the request",
        next="the cluster tries again by itself, for some minutes; then the job fails with these words",
    ),
    Obstacle(
        name="no room",
        pattern=r"Insufficient \S+|Too many pods",
        next="the scheduler places it once enough of that is free; it tries for as long as the job waits. To ask for "
        f"less: {_CHANGE.replace('{field}', 'resources.NAME')}",
    ),
    Obstacle(
        name="node labels",
        pattern=r"untolerated taint|didn't match (Pod's )?node (affinity|selector)",
        next="no node may take it now, and the scheduler tries again when a node changes: check `placement` and the "
        "cluster's overlay",
    ),
    Obstacle(
        name="no node",
        pattern=r"Unschedulable|has no node \(",
        next="the scheduler tries again whenever the cluster changes, for as long as the job waits",
    ),
    Obstacle(name="Kueue", pattern=r"waits for Kueue", next="Kueue admits it once its queue has room"),
)


def tell_next(job: Job, attempt: Attempt | None, obstacles: Iterable[Obstacle] = OBSTACLES) -> str:
    """What happens next to a job that has no worker yet. `attempt` is its newest."""
    live = attempt is not None and not attempt.state.terminal
    between = job.state is JobState.RECOVERING and not live
    # Between two attempts the reason tells of the last one, in the words of its program, unless the next one waits.
    foreign = between and not job.reason.startswith("waits: ")
    found = next((each for each in obstacles if not foreign and re.search(each.pattern, job.reason)), None)
    if found is not None:
        return found.next.format(job=job.id, cluster=job.spec.cluster)
    if between:
        return "nothing to do; the next attempt starts by itself"
    if live and attempt is not None and attempt.state is AttemptState.PENDING:
        return f"the cluster starts it once it has room; `orchestrator cancel {job.id}` takes it out of the queue"
    return "nothing to do; it starts by itself"
