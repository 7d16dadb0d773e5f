"""Which jobs may start now, and on how many nodes.

Higher priority first, then first come, first served. No job overtakes one that waits for slots. A job that waits for
another job, for its array or for its project's quota lets others pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from orchestrator.domain.counted import counted
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.specs.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one project may use of a cluster at a time. None is no limit. Each worker runs on one device."""

    max_jobs: int | None = None
    max_devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a cluster. `slots` None means that the cluster has its own queue and accepts every job."""

    slots: int | None = None
    gpus_per_node: int = 0
    max_jobs: int | None = None
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # by project


class Contended(StrEnum):
    """What a waiting job competes for with other jobs."""

    SLOTS = "slots"
    CLUSTER = "cluster"  # the cluster's limit of jobs
    PROJECT = "project"  # the quota of the job's project


@dataclass(frozen=True, slots=True)
class Admission:
    """`nodes` is how many the job may have. A running elastic job could have so many if it started now."""

    admitted: bool
    sentence: str  # what a waiting job waits for
    nodes: int = 0
    blocks: bool = False  # whether the jobs behind it wait as well
    contended: Contended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A job that is not at rest, as far as `admit` reads it. The supervisor keeps one of each, so it is small."""

    id: str
    spec: JobSpec = field(compare=False)  # shared by many jobs, so its name may be another job's
    state: JobState
    created_at: datetime
    number: int  # of its requests; the spec changes only with it
    suspended: bool
    cancelled: bool
    live: AttemptKey | None = None  # its attempt that has not ended
    held_nodes: int = 0  # those it has, or keeps for its next attempt so that no other job takes them in between
    held_width: int | None = None  # the workers on each of them; None means as in the spec
    asked: str | None = None  # the nodes that its newest attempt was to have; None without an attempt

    def held_devices(self, gpus_per_node: int) -> int:
        """Return the devices of the held nodes: one per worker, even if the spec has changed since."""
        width = self.held_width
        return self.held_nodes * (self.spec.topology.count_workers(gpus_per_node) if width is None else width)


def claimant_of(job: Job, attempt: Attempt | None, shared_spec: JobSpec | None = None) -> Claimant:
    """`attempt` is the newest one. `shared_spec` takes the place of the job's spec; only its name may differ."""
    suspended, cancelled = job.desired.suspended, job.desired.cancelled
    keeps = job.state.holds_slots and not suspended and not cancelled
    live = attempt is not None and not attempt.state.terminal
    return Claimant(
        id=job.id,
        spec=shared_spec or job.spec,
        state=job.state,
        created_at=job.created_at,
        number=job.desired.number,
        suspended=suspended,
        cancelled=cancelled,
        live=AttemptKey(job.id, attempt.key.number) if attempt is not None and live else None,  # one id, not two equal
        held_nodes=attempt.max_nodes if attempt is not None and (live or keeps) else 0,
        held_width=None if attempt is None else attempt.workers_per_node,
        asked=None if attempt is None else attempt.asked,
    )


def admit(
    claimants: Iterable[Claimant], limits: Limits, *, dependencies: Mapping[str, JobState] | None = None
) -> dict[str, Admission]:
    """Judge each job that is queued or between attempts, and how far each running elastic job could grow.

    `dependencies` are the states of the jobs that queued jobs name in `after`. A job that is missing there does not
    exist.
    """
    use = _Use(limits)
    everyone = list(claimants)
    for each in everyone:
        use.take(each, each.held_devices(limits.gpus_per_node))
    admissions: dict[str, Admission] = {}
    behind: Admission | None = None  # the answer for all jobs behind the first one that waits for slots
    line = sorted(everyone, key=queue_key)
    for each in line:
        if _awaits_next_attempt(each):
            admissions[each.id] = use.judge(each, held=each.held_devices(limits.gpus_per_node))
            behind = behind or (_judge_behind(each) if admissions[each.id].blocks else None)
        elif each.state is JobState.QUEUED and each.held_nodes == 0 and not each.suspended:
            own = _waits_for_others(each, dependencies or {}) or use.too_large(each) or use.over_quota(each)
            admissions[each.id] = own or behind or use.judge(each, held=0)
            behind = behind or (_judge_behind(each) if admissions[each.id].blocks else None)
    admissions |= use.make_way([each for each in line if _awaits_next_attempt(each) and admissions[each.id].blocks])
    if behind is None:
        admissions |= {each.id: use.room(each) for each in everyone if _may_grow(each, limits)}
    return admissions


def _judge_behind(job: Claimant) -> Admission:
    return Admission(False, f"waits behind {job.id}, which waits for slots", contended=Contended.SLOTS)


class _Use:
    """Slots, jobs and devices in use, by project."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free = limits.slots
        self._jobs: Counter[str] = Counter()
        self._devices: Counter[str] = Counter()
        self._members: Counter[str] = Counter()  # by array

    def take(self, job: Claimant, devices: int) -> None:
        if devices:
            self._jobs[job.spec.project] += 1
            self._members.update(_arrays_of(job))
            self._devices[job.spec.project] += devices
            self._free = None if self._free is None else self._free - devices

    def judge(self, job: Claimant, *, held: int) -> Admission:
        """Admit the job to as many nodes as are free for it, if that is enough, and take them."""
        refusal = self.too_large(job)
        if refusal is not None:
            return refusal
        wpn = self._width(job)
        least, most = job.spec.topology.min_nodes, job.spec.topology.max_nodes
        fitting = self._fitting(job, held)
        if fitting < least:
            return self._too_few(job, least * wpn, held)
        nodes = min(most, fitting)
        self._give_back(job, held)
        self.take(job, nodes * wpn)
        slots = self._limits.slots
        if slots is None:
            return Admission(True, "the cluster queues it", nodes)
        part = "" if nodes == most else f" ({nodes} of up to {most} nodes)"
        return Admission(True, f"it takes {nodes * wpn} of {counted(slots, 'slot')}{part}", nodes)

    def too_large(self, job: Claimant) -> Admission | None:
        """Refuse a job that needs more slots than the cluster has, even on its least number of nodes, or its GPUs."""
        if self._width(job) == 0:
            return Admission(False, "needs GPUs, but the cluster has none; cancel it")
        needed = self._least(job)
        slots = self._limits.slots
        if slots is None or needed <= slots:
            return None
        return self._refuse(job, f"needs {counted(needed, 'slot')}, but the cluster has {slots}")

    def _too_few(self, job: Claimant, needed: int, held: int) -> Admission:
        """Return what a job between attempts waits for. It blocks the jobs behind it only if it waits for slots."""
        slots, free = self._limits.slots, max(0, (self._free or 0) + held)
        if slots is not None and free < needed:
            verb = "is" if free == 1 else "are"
            sentence = f"needs {counted(needed, 'slot')}; {free} of {slots} {verb} free"
            return Admission(False, sentence, blocks=True, contended=Contended.SLOTS)
        beyond = self._beyond_quota(job, held)
        assert beyond is not None, "with enough slots and devices it fits"
        return beyond

    def _beyond_quota(self, job: Claimant, held: int) -> Admission | None:
        """Return the quota of devices that the job would exceed even on its least number of nodes."""
        project = job.spec.project
        most = self._limits.quotas.get(project, Quota()).max_devices
        needed = self._least(job)
        used = self._devices[project] - held
        if most is None or used + needed <= most:
            return None
        sentence = f"needs {counted(needed, 'device')}"
        if needed > most:
            return self._refuse(job, f"{sentence}, more than the {most} of project {project}")
        sentence += f"; project {project} uses {used} of its {most}"
        return Admission(False, sentence, contended=Contended.PROJECT)

    def _least(self, job: Claimant) -> int:
        """Return the devices of the job's least number of nodes."""
        return job.spec.topology.min_nodes * self._width(job)

    def _width(self, job: Claimant) -> int:
        """Return the devices of one node of the job. 0 if it has a worker for each GPU, and the cluster has none."""
        return job.spec.topology.count_workers(self._limits.gpus_per_node)

    def _refuse(self, job: Claimant, sentence: str) -> Admission:
        """Refuse a job that exceeds a limit. Scaling helps if a single node is within every limit."""
        limits = self._limits.slots, self._limits.quotas.get(job.spec.project, Quota()).max_devices
        fits_on_one = all(most is None or self._width(job) <= most for most in limits)
        return Admission(False, f"{sentence}; {'scale or cancel it' if fits_on_one else 'cancel it'}")

    def make_way(self, stuck: Sequence[Claimant]) -> dict[str, Admission]:
        """If several jobs between attempts wait for nodes that they keep from each other, the first one gets them."""
        kept = {each.id: each.held_devices(self._limits.gpus_per_node) for each in stuck}
        for each in stuck:
            self._give_back(each, kept[each.id])
        admissions = {}
        for each in stuck:
            admission = admissions[each.id] = self.judge(each, held=0)
            if not admission.admitted:
                self.take(each, kept[each.id])
        return admissions

    def over_quota(self, job: Claimant) -> Admission | None:
        """Return the limit that the job would exceed even on its least number of nodes: its cluster's, array's or
        project's."""
        project, limits, array = job.spec.project, self._limits, job.spec.array
        quota = limits.quotas.get(project, Quota())
        if limits.max_jobs is not None and self._jobs.total() >= limits.max_jobs:
            running = counted(self._jobs.total(), "job")
            sentence = f"waits: the cluster runs {running}; its limit is {limits.max_jobs}"
            return Admission(False, sentence, contended=Contended.CLUSTER)
        if array is not None and array.at_once is not None and self._members[array.id] >= array.at_once:
            running = counted(self._members[array.id], "job")
            return Admission(False, f"waits: array {array.id} runs {running}; its limit is {array.at_once}")
        if quota.max_jobs is not None and self._jobs[project] >= quota.max_jobs:
            running = counted(self._jobs[project], "job")
            sentence = f"waits: project {project} runs {running}; its limit is {quota.max_jobs}"
            return Admission(False, sentence, contended=Contended.PROJECT)
        return self._beyond_quota(job, held=0)

    def room(self, claimant: Claimant) -> Admission:
        """Return how many nodes a running elastic job could have now. Takes none."""
        held = claimant.held_devices(self._limits.gpus_per_node)
        nodes = self._fitting(claimant, held)
        return Admission(False, f"could have {counted(nodes, 'node')}", nodes)

    def _fitting(self, job: Claimant, held: int) -> int:
        """Return how many of the job's nodes fit into free and held devices, within its project's quota."""
        wpn = self._width(job) or 1
        most = job.spec.topology.max_nodes
        if self._free is not None:
            most = min(most, (self._free + held) // wpn)
        quota = self._limits.quotas.get(job.spec.project, Quota())
        if quota.max_devices is not None:
            unused = quota.max_devices - self._devices[job.spec.project] + held
            most = min(most, max(held, unused) // wpn)
        return most

    def _give_back(self, job: Claimant, devices: int) -> None:
        if devices:
            self._jobs[job.spec.project] -= 1
            self._members.subtract(_arrays_of(job))
            self._devices[job.spec.project] -= devices
            self._free = None if self._free is None else self._free + devices


def _arrays_of(job: Claimant) -> tuple[str, ...]:
    return () if job.spec.array is None else (job.spec.array.id,)


def _waits_for_others(job: Claimant, states: Mapping[str, JobState]) -> Admission | None:
    """Return what the job waits for. A failed dependency does not end the job, because its owner may retry it."""
    for name in job.spec.after:
        state = states.get(name)
        if state is None:
            return Admission(False, f"waits for job {name}, which no longer exists; cancel this job")
        if state is not JobState.SUCCEEDED:
            if state.terminal:
                return Admission(False, f"waits for job {name}, which is {state}; retry {name} or cancel this job")
            return Admission(False, f"waits for job {name} to succeed; it is {state}")
    return None


def _awaits_next_attempt(each: Claimant) -> bool:
    return each.state is JobState.RECOVERING and not each.suspended and not each.cancelled


def _may_grow(each: Claimant, limits: Limits) -> bool:
    """A cluster with its own queue does not show free nodes, so a job grows there only on its owner's request."""
    topology = each.spec.topology
    if each.state is not JobState.RUNNING:
        return False
    elastic = topology.min_nodes < topology.max_nodes and limits.slots is not None
    return elastic or each.asked != topology.nodes


def queue_key(each: Claimant) -> tuple[bool, int, object, str]:
    """Return the sort key of the queue. Jobs between attempts come first, because they keep their nodes."""
    return (each.state is not JobState.RECOVERING, -each.spec.priority, each.created_at, each.id)


def dependencies_of(jobs: Iterable[Claimant]) -> set[str]:
    """Return the ids of the jobs that queued jobs wait for."""
    return {name for job in jobs if job.state is JobState.QUEUED for name in job.spec.after}
