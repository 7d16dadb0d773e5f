"""What a job that has not started waits for, and what happens next. The first obstacle that matches counts. Pure.

The patterns match the job's reason. Those of _OWN match the service's own sentences, those of _SLURM match
backends/slurm/states.py, and those of KUEUE match the words of Kueue 0.19. Most others match the words of Kubernetes
1.36 (kube-scheduler, kubelet, quota and RBAC of the API server).
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


# The patterns match the words of Kueue 0.19 (its scheduler and its controller of Workloads).
KUEUE: tuple[Obstacle, ...] = (
    Obstacle(
        name="larger than its queue",
        pattern=r"waits for Kueue(?!.*more needed).*(> maximum capacity|ExceedsMaxQuota)",
        next="The job requests more than its queue can ever have. Ask for a larger quota, or request less with "
        f"{_CHANGE.replace('{field}', 'resources.NAME')}.",
    ),
    Obstacle(
        name="missing queue",
        pattern=r"waits for Kueue.*(Queue \S+ (doesn't exist|not found|is terminating or missing)|Misconfigured)",
        next="Ask the cluster's administrator for the queue's name, and run "
        f"{_CHANGE.replace('{field}', 'placement.queue')}. The job starts by itself if the queue is created.",
    ),
    Obstacle(
        name="stopped queue",
        pattern=r"waits for Kueue.*(is inactive|is stopped|Suspended: )",
        next="Kueue admits the job once the cluster's administrator has started its queue again.",
    ),
    Obstacle(
        name="admission check",
        pattern=r"waits for Kueue.*admission check",
        next="Kueue starts the job once the check has passed.",
    ),
    Obstacle(
        name="admitted",
        pattern=r"waits for Kueue.*(\(admitted; |has reserved quota)",
        next="Kueue starts the job's pods within seconds.",
    ),
    Obstacle(
        name="deactivated",
        pattern=r"waits for Kueue.*its Workload is deactivated",
        next="The job waits until the Workload's `spec.active` is true again. `orchestrator cancel {job}` takes it out "
        "of the queue.",
    ),
    Obstacle(
        name="preemption for it",
        pattern=r"waits for Kueue.*(Pending the preemption|WaitingForPreemptedWorkloads)",
        next="Kueue admits the job once the workloads that it preempts for it have ended.",
    ),
    Obstacle(
        name="topology",
        pattern=r"waits for Kueue.*(TopologyPlacementFailed|allows to fit only|no topology domains)",
        next="Kueue admits the job once enough nodes with one value of the label are free. To change the label, run "
        f"{_CHANGE.replace('{field}', 'placement.required_topology')}.",
    ),
    Obstacle(
        name="no flavor",
        pattern=r"waits for Kueue.*(NoMatchingFlavor|untolerated taint|doesn't match node affinity)",
        next="No flavor of the queue has nodes for the job. Check `placement.node_selector`, `placement.tolerations` "
        "and `resources.gpu_type`.",
    ),
    Obstacle(
        name="pause",
        pattern=r"waits for Kueue.*next try at",
        next="Kueue pauses after an eviction. It tries again at that time.",
    ),
    Obstacle(
        name="gate",
        pattern=r"waits for Kueue.*(AdmissionGated|may not preempt|OnHold)",
        next="The job waits until the controller that holds its Workload lets it go.",
    ),
    Obstacle(
        name="pods of others",
        pattern=r"waits for Kueue.*(PodsReady)",
        next="Kueue admits the job once all pods of the workloads that it has admitted before are ready.",
    ),
    Obstacle(
        name="no Workload",
        pattern=r"Kueue has no Workload",
        next="Kueue makes it within seconds. If it does not, ask the cluster's administrator whether Kueue runs.",
    ),
    Obstacle(
        name="Kueue",
        pattern=r"waits for Kueue",
        next="Kueue admits the job once its queue has room: when other jobs of the queue or its cohort end.",
    ),
)
# What the service itself says of a job: its admission, and what it does with the job's attempt.
_OWN: tuple[Obstacle, ...] = (
    Obstacle(
        name="stopping",
        pattern=r"^stopping(?!.*; cannot continue now: )",
        next="Nothing to do. The attempt ends.",
    ),
    Obstacle(
        name="too many nodes",
        pattern=r"^needs .*; scale or cancel it",
        next="The job can never start with so many nodes. Run `orchestrator scale {job} NODES` with fewer, or run "
        "`orchestrator cancel {job}`.",
    ),
    Obstacle(
        name="too many workers on a node",
        pattern=r"^needs .*; cancel it",
        next="One node of the job already exceeds the limit. Run `orchestrator cancel {job}`, then submit the job with "
        "fewer workers on each node, or ask for a larger limit.",
    ),
    Obstacle(
        name="deleted dependency",
        pattern=r"^waits for job .* no longer exists",
        next="The job can never start. Run `orchestrator cancel {job}`.",
    ),
    Obstacle(
        name="suspended dependency",
        pattern=r"^waits for job .* to succeed; it is SUSPENDED",
        next="The job that it waits for is suspended. Run `orchestrator resume` on that job, or "
        "`orchestrator cancel {job}`.",
    ),
    Obstacle(
        name="dependency",
        pattern=r"^waits for job .* to succeed; it is ",
        next="The job starts after the job that it waits for has succeeded. Run `orchestrator why` on that job to see "
        "what it does.",
    ),
    Obstacle(
        name="ended dependency",
        pattern=r"^waits for job .*cancel this job",
        next="The job starts only after the job that it waits for succeeds. Retry that one, or run "
        "`orchestrator cancel {job}`.",
    ),
)
_SLURM: tuple[Obstacle, ...] = (
    Obstacle(
        name="held in Slurm",
        pattern=r"waits in Slurm's queue.*(release it with|an administrator holds it)",
        next="The job starts after the hold is released. `orchestrator cancel {job}` takes the job out of the queue.",
    ),
    Obstacle(
        name="failed dependency in Slurm",
        pattern=r"waits in Slurm's queue.*can never be satisfied",
        next="The job can never start. Run `orchestrator cancel {job}`.",
    ),
    Obstacle(
        name="error in Slurm",
        pattern=r"waits in Slurm's queue.*ask its administrator",
        next="The job starts after the administrator has corrected the error and released the job. "
        "`orchestrator cancel {job}` takes the job out of the queue.",
    ),
)
OBSTACLES: tuple[Obstacle, ...] = (
    *_OWN,
    Obstacle(
        name="never",
        pattern=re.escape(CAN_NEVER_START),
        next="Run `orchestrator cancel {job}`, then submit it with other resources, topology or placement.",
    ),
    Obstacle(
        name="no right",
        pattern=r"service has no right to do this|cannot (create|list|watch) resource",
        next="Grant the service the missing rights, which `orchestrator doctor --cluster {cluster}` lists. The "
        "service tries again at most a minute later.",
    ),
    Obstacle(
        name="no answer",
        pattern=r"has not answered (since|for) |Slurm cannot be observed: ",
        next="The service starts and stops nothing on the cluster until it answers. "
        "`orchestrator doctor --cluster {cluster}` checks the cluster.",
    ),
    Obstacle(
        name="error",
        pattern=r"(^|; )cannot continue now: ",
        next="The service tries again by itself. If the message stays, `orchestrator doctor --cluster {cluster}` "
        "checks the cluster.",
    ),
    *KUEUE,
    *_SLURM,
    Obstacle(
        name="missing claim",
        pattern=r'persistentvolumeclaim "[^"]*" (is )?not found|unbound immediate PersistentVolumeClaims',
        next="Ask the cluster's administrator to create the claim, or to correct the cluster's `claim`. The scheduler "
        "tries again once the claim exists and is bound.",
    ),
    Obstacle(
        name="image",
        pattern=r"ErrImagePull|ImagePullBackOff|RegistryUnavailable|ImageInspectError",
        next="The node pulls the image again. After some minutes another attempt starts, until the launch budget is "
        f"spent. To use another image, run {_CHANGE.replace('{field}', 'run.image')}.",
    ),
    Obstacle(
        name="container",
        pattern=r"CreateContainerConfigError|CreateContainerError|RunContainerError",
        next="The node tries again for some minutes. Then the job fails with this message.",
    ),
    Obstacle(
        name="volume",
        pattern=r"FailedMount|FailedAttachVolume",
        next="Ask the cluster's administrator to check the volume. The node tries again by itself.",
    ),
    Obstacle(
        name="full quota",
        pattern=r"exceeded quota|quota of the namespace is reached",
        next="The job starts once other jobs in the namespace have ended, or the namespace's quota is raised.",
    ),
    Obstacle(
        name="refused pods",
        pattern=r"is forbidden: |is invalid: |denied the request",
        next="The cluster tries again for some minutes. Then the job fails with this message.",
    ),
    Obstacle(
        name="no room",
        pattern=r"Insufficient \S+|Too many pods",
        next="The scheduler places the job once enough of it is free. To request less, run "
        f"{_CHANGE.replace('{field}', 'resources.NAME')}.",
    ),
    Obstacle(
        name="node labels",
        pattern=r"untolerated taint|didn't match (Pod's )?node (affinity|selector)",
        next="Check `placement` and the cluster's overlay, because no node may take the job now. The scheduler tries "
        "again when a node changes.",
    ),
    Obstacle(
        name="no node",
        pattern=r"Unschedulable|has no node \(",
        next="The scheduler tries again whenever the cluster changes.",
    ),
)


def tell_next(job: Job, attempt: Attempt | None, obstacles: Iterable[Obstacle] = OBSTACLES) -> str:
    """Return what happens next to a job without workers. `attempt` is its newest."""
    live = attempt is not None and not attempt.state.terminal
    between = job.state is JobState.RECOVERING and not live
    # Between two attempts the reason quotes the program that failed, unless the next attempt waits.
    quotes_program = between and not job.reason.startswith(("waits: ", "needs "))
    found = next((each for each in obstacles if not quotes_program and re.search(each.pattern, job.reason)), None)
    if found is not None:
        return found.next.format(job=job.id, cluster=job.spec.cluster)
    if between:
        return "Nothing to do. The next attempt starts by itself."
    if attempt is not None and attempt.state is AttemptState.PENDING:
        return f"The cluster starts the job once it has room. `orchestrator cancel {job.id}` takes it out of the queue."
    return "Nothing to do. The job starts by itself."
