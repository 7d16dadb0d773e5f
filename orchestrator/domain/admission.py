"""Who may start now: higher priority first, then first come, first served; nobody overtakes a job that waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.job import Job, JobState
from orchestrator.domain.launch import workers_per_node


@dataclass(frozen=True, slots=True)
class Admission:
    admitted: bool
    sentence: str  # for a job that waits: for what


def demand(job: Job, gpus_per_node: int) -> int:
    """How many slots a job takes: one per worker."""
    return job.spec.topology.max_nodes * workers_per_node(job.spec, gpus_per_node)


def admit(jobs: Iterable[Job], *, slots: int | None, gpus_per_node: int) -> dict[str, Admission]:
    """Judge every queued job among `jobs`, which are all of the cluster that are not at rest.

    `slots` None: the cluster has a queue of its own and everyone is admitted.
    """
    everyone = list(jobs)
    queue = sorted((job for job in everyone if job.state is JobState.QUEUED), key=_place)
    if slots is None:
        return {job.id: Admission(True, "the cluster queues it") for job in queue}
    free = slots - sum(demand(job, gpus_per_node) for job in everyone if job.state.holds_slots)
    admissions: dict[str, Admission] = {}
    waiting: Job | None = None
    for job in queue:
        needed = demand(job, gpus_per_node)
        if waiting is not None:
            admissions[job.id] = Admission(False, f"waits behind {waiting.id}, which waits for slots")
        elif needed <= free:
            free -= needed
            admissions[job.id] = Admission(True, f"{needed} of {slots} slots are free for it")
        else:
            waiting = job
            admissions[job.id] = Admission(False, f"waits for {needed} of {slots} slots; {max(free, 0)} free now")
    return admissions


def _place(job: Job) -> tuple[int, object, str]:
    return (-job.spec.priority, job.created_at, job.id)
