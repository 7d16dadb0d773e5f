"""What a queued job waits for: jobs ahead of it, jobs that hold what it needs, and when it starts at the latest.

The estimate is an upper bound. It exists only if the ends of enough jobs are known. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.domain.counted import counted, lasting
from orchestrator.domain.job.job import JobState
from orchestrator.domain.queueing.admission import Admission, Claimant, Contended, Limits, admit, queue_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterQueue:
    """All jobs of a cluster that are not at rest. `ends_by` has the latest expected end of jobs that run."""

    claimants: Sequence[Claimant]
    limits: Limits
    dependencies: Mapping[str, JobState] = field(default_factory=dict)
    ends_by: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds devices. `ends_by` is None if its end is not known."""

    job: Claimant
    devices: int
    ends_by: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWait:
    """`holders` are sorted by devices, the most first. `starts_by` is None if no time can be derived."""

    ahead: int
    holders: tuple[Holder, ...]
    starts_by: datetime | None


def find_queue_wait(queue: ClusterQueue, job: Claimant) -> QueueWait | None:
    """Return what a queued job waits for. None if it waits for nothing that other jobs hold."""
    admissions = admit(queue.claimants, queue.limits, dependencies=queue.dependencies)
    mine = admissions.get(job.id)
    if job.state is not JobState.QUEUED or mine is None or mine.contended is None:
        return None
    holders = _list_holders(queue, job, mine.contended)
    ahead = _list_ahead(queue, job, admissions)
    starts_by = _find_start(queue, job, ahead, holders) if mine.contended is Contended.SLOTS else None
    return QueueWait(ahead=len(ahead), holders=tuple(holders), starts_by=starts_by)


def tell_queue_wait(wait: QueueWait, now: datetime) -> list[str]:
    """Render the place in the queue and the estimate, if any."""
    sentences = []
    if wait.ahead:
        sentences.append(f"{counted(wait.ahead, 'job')} {'starts' if wait.ahead == 1 else 'start'} before it.")
    if wait.starts_by is not None:
        within = lasting(max(1.0, (wait.starts_by - now).total_seconds()))
        sentences.append(f"It starts within about {within} if no job ahead of it slows down or fails.")
    return sentences


def _list_holders(queue: ClusterQueue, job: Claimant, contended: Contended) -> list[Holder]:
    """Return the jobs that hold devices: all of the cluster, or only those of the job's project for its quota."""
    holders = [
        Holder(job=each, devices=devices, ends_by=queue.ends_by.get(each.id))
        for each in queue.claimants
        if (devices := each.held_devices(queue.limits.gpus_per_node))
        and (contended is not Contended.PROJECT or each.spec.project == job.spec.project)
    ]
    return sorted(holders, key=lambda each: (-each.devices, each.job.id))


def _list_ahead(queue: ClusterQueue, job: Claimant, admissions: Mapping[str, Admission]) -> list[Claimant]:
    """Return the waiting jobs that start first because they need the same. A project's quota concerns only its jobs."""
    contended = admissions[job.id].contended
    return [
        each
        for each in queue.claimants
        if (other := admissions.get(each.id)) is not None
        and (other.contended is contended or (other.admitted and each.state is JobState.QUEUED))
        and (contended is not Contended.PROJECT or each.spec.project == job.spec.project)
        and queue_key(each) < queue_key(job)
    ]


def _find_start(
    queue: ClusterQueue, job: Claimant, ahead: Sequence[Claimant], holders: Sequence[Holder]
) -> datetime | None:
    """Return when known ends have freed enough slots for the job, and for every job ahead of it at its full size."""
    slots = queue.limits.slots
    if slots is None or (ahead and _may_reach_other_limits(queue.limits, job, len(ahead) + len(holders))):
        return None
    width = queue.limits.gpus_per_node
    needed = job.spec.topology.min_nodes * job.spec.topology.count_workers(width)
    needed += sum(each.spec.topology.max_nodes * each.spec.topology.count_workers(width) for each in ahead)
    free = slots - sum(each.devices for each in holders)
    known = [(each.ends_by, each.devices) for each in holders if each.ends_by is not None]
    for ends_by, devices in sorted(known):
        free += devices
        if free >= needed:
            return ends_by
    return None


def _may_reach_other_limits(limits: Limits, job: Claimant, others: int) -> bool:
    """Whether the jobs ahead may use up another limit of the job when they start: of project, array or cluster."""
    is_bounded = job.spec.project in limits.quotas or job.spec.array is not None
    return is_bounded or (limits.max_jobs is not None and others >= limits.max_jobs)
