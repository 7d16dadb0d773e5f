"""Say what a running elastic job with fewer nodes than it may have waits for before it grows. Pure.

It follows the rule `grow_back`. Only a cluster with slots of its own tells the service what is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.counted import counted, lasting
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.queueing.admission import Admission, Contended, Limits, Quota, admit
from orchestrator.domain.queueing.waiting import ClusterQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunken:
    """A running elastic job with `nodes` nodes in its group, fewer than it may have."""

    job: Job
    attempt: Attempt
    training: Training
    nodes: int

    @property
    def since(self) -> datetime | None:
        """When the job got this number of nodes."""
        return max(filter(None, (self.attempt.started_at, self.training.resized_at)), default=None)


def is_shrunken(job: Job, attempt: Attempt, nodes: int) -> bool:
    """Whether an elastic job runs on fewer nodes than it may have, and nobody requested that or another change."""
    topology, desired = job.spec.topology, job.desired
    if job.state is not JobState.RUNNING or desired.suspended or desired.cancelled or attempt.asked != topology.nodes:
        return False
    return topology.min_nodes < topology.max_nodes and nodes < topology.max_nodes


def tell_growth(shrunken: Shrunken, queue: ClusterQueue, now: datetime) -> str:
    """Return the first thing that the growth of the job waits for.

    A job that waits for slots is named if it is of the same project.
    """
    job = shrunken.job
    if job.spec.supervise.grow_back_after_s is None:
        return "It does not grow back, because supervise.grow_back_after_s is null."
    admissions = admit(queue.claimants, queue.limits, dependencies=queue.dependencies)
    if job.id not in admissions:
        return f"It grows back when no other job waits for slots. {_tell_waiting(job, queue, admissions)}"
    room = admissions[job.id].nodes
    if room <= shrunken.nodes:
        return _tell_no_room(shrunken, queue.limits)
    return _tell_pause(shrunken, room, now)


def _tell_no_room(shrunken: Shrunken, limits: Limits) -> str:
    spec, nodes = shrunken.job.spec, shrunken.nodes + 1
    needed = nodes * spec.topology.count_workers(limits.gpus_per_node)
    quota = limits.quotas.get(spec.project, Quota()).max_devices
    if limits.slots is not None and limits.slots < needed:
        return f"It cannot grow: {nodes} nodes need {counted(needed, 'slot')}, and the cluster has {limits.slots}."
    if quota is None:
        return "It grows back when the slots of another node are free."
    if quota < needed:
        return (
            f"It cannot grow: {nodes} nodes need {counted(needed, 'device')}, and project {spec.project} has {quota}."
        )
    return f"It grows back when the slots of another node are free and project {spec.project} may use them."


def _tell_waiting(job: Job, queue: ClusterQueue, admissions: Mapping[str, Admission]) -> str:
    waiting = [each for each in queue.claimants if _waits(admissions.get(each.id))]
    mine = [each.id for each in waiting if each.spec.project == job.spec.project]
    if mine:
        more = f" and {counted(len(waiting) - 1, 'other job')}" if len(waiting) > 1 else ""
        return f"{min(mine)}{more} {'waits' if len(waiting) == 1 else 'wait'} now."
    return f"{counted(len(waiting), 'job')} of other projects {'waits' if len(waiting) == 1 else 'wait'} now."


def _waits(admission: Admission | None) -> bool:
    return admission is not None and admission.contended is Contended.SLOTS


def _tell_pause(shrunken: Shrunken, room: int, now: datetime) -> str:
    training, pause_s = shrunken.training, shrunken.job.spec.supervise.grow_back_after_s or 0.0
    if not training.snapshots and training.restored is None:
        return f"It grows back to {counted(room, 'node')} once it has taken a snapshot."
    waited_s = 0.0 if shrunken.since is None else (now - shrunken.since).total_seconds()
    if waited_s >= pause_s:
        return f"It grows back to {counted(room, 'node')} now."
    return f"It grows back to {counted(room, 'node')} in about {lasting(pause_s - waited_s)}, after a snapshot."
