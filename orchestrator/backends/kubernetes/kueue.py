"""What Kueue says about a queued Job in its Workload: why the Job waits, and why it was evicted. Pure.

Conditions and reasons: Kueue API reference, Workload, v1beta2 (v1beta1 has the same fields).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.backends.kubernetes.objects import Condition, Json, parse_conditions, parse_time
from orchestrator.domain.counted import counted
from trainer.contract.failure import Failure, FailureKind

# Why Kueue evicts a workload. Any other reason counts as a preemption too, since Kueue took the nodes away.
EVICTIONS: dict[str, tuple[FailureKind, str]] = {
    "Preempted": (FailureKind.PREEMPTED, "Kueue preempted it"),
    "PodsReadyTimeout": (FailureKind.INFRASTRUCTURE, "Kueue evicted it because its pods were not ready in time"),
    "AdmissionCheck": (FailureKind.PREEMPTED, "Kueue evicted it because an admission check no longer holds"),
    "ClusterQueueStopped": (FailureKind.PREEMPTED, "Kueue evicted it because its ClusterQueue is stopped"),
    "LocalQueueStopped": (FailureKind.PREEMPTED, "Kueue evicted it because its LocalQueue is stopped"),
    "NodeFailures": (FailureKind.NODE, "Kueue evicted it because a node failed"),
    "Deactivated": (FailureKind.PREEMPTED, "Kueue evicted it because its Workload was deactivated"),
    "DeactivatedDueToMaximumExecutionTimeExceeded": (FailureKind.TIMEOUT, "Kueue's time limit ended it"),
    "DeactivatedDueToRequeuingLimitExceeded": (
        FailureKind.INFRASTRUCTURE,
        "Kueue deactivated its Workload, which was requeued too often",
    ),
    "DeactivatedDueToAdmissionCheck": (
        FailureKind.INFRASTRUCTURE,
        "Kueue deactivated its Workload, which an admission check rejected",
    ),
}
_EVICTED = (FailureKind.PREEMPTED, "Kueue evicted it")


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """`state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Kueue's object for one Job."""

    uid: str
    job_uid: str
    active: bool = True
    cluster_queue: str = ""  # that has reserved quota for it
    conditions: tuple[Condition, ...] = ()
    checks: tuple[AdmissionCheck, ...] = ()
    created_at: float = 0.0  # in seconds since the epoch
    requeues: int = 0
    requeue_at: float | None = None  # when Kueue tries again after an eviction, in seconds since the epoch

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.holds


def parse_workload(document: Json) -> Workload:
    meta, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    owners = (each.get("uid") for each in meta.get("ownerReferences") or () if each.get("controller"))
    requeue = status.get("requeueState") or {}
    return Workload(
        uid=meta.get("uid", ""),
        job_uid=next(owners, None) or "",
        active=spec.get("active") is not False,
        cluster_queue=(status.get("admission") or {}).get("clusterQueue") or "",
        conditions=parse_conditions(document),
        checks=tuple(
            AdmissionCheck(each.get("name") or "", each.get("state") or "", each.get("message") or "")
            for each in status.get("admissionChecks") or ()
        ),
        created_at=parse_time(meta.get("creationTimestamp")) or 0.0,
        requeues=int(requeue.get("count") or 0),
        requeue_at=parse_time(requeue.get("requeueAt")),
    )


def by_job(workloads: Iterable[Workload]) -> dict[str, Workload]:
    """Return the Workload of each Job, by the Job's uid. Of several, the newest that is not finished."""
    ranked = sorted(workloads, key=lambda each: (not each.holds("Finished"), each.created_at))
    return {each.job_uid: each for each in ranked if each.job_uid}


def describe_wait(workload: Workload | None, *, now: float) -> str:
    """Say in a clause what a suspended Job waits for. None: Kueue has made no Workload for it."""
    if workload is None:
        return "Kueue has no Workload for it yet"
    if not workload.active:
        return _quote("its Workload is deactivated", workload.condition("Evicted"))
    evicted = workload.condition("Evicted")
    if workload.holds("Evicted") and workload.holds("QuotaReserved"):
        return _quote("Kueue evicts it", evicted)
    if workload.holds("Admitted"):
        return "admitted; Kueue starts it"
    if workload.holds("QuotaReserved"):
        return _describe_checks(workload)
    if workload.requeue_at is not None and workload.requeue_at > now:
        often = f"requeued {counted(workload.requeues, 'time')}, " if workload.requeues else ""
        return _quote(f"{often}next try at {datetime.fromtimestamp(workload.requeue_at, UTC):%H:%M:%S} UTC", evicted)
    gated, quota = workload.condition("BlockedOnPreemptionGates"), workload.condition("QuotaReserved")
    if gated is not None and gated.holds:
        return _quote("it may not preempt other workloads", gated)
    return "Kueue has not looked at it yet" if quota is None else f"{quota.reason}: {quota.message}"


def _describe_checks(workload: Workload) -> str:
    open_checks = [each for each in workload.checks if each.state != "Ready"]
    quota = f"ClusterQueue {workload.cluster_queue} has reserved quota"
    if not open_checks:
        return _quote(quota, workload.condition("Admitted"))
    said = [f"{each.name} is {each.state}" + (f": {each.message}" if each.message else "") for each in open_checks]
    return f"{quota}; admission check {'; '.join(said)}"


def find_eviction(workload: Workload) -> Failure | None:
    """Return why Kueue evicted the Job. None if it did not."""
    evicted = workload.condition("Evicted")
    if evicted is None or not evicted.holds:
        return None
    reason, preempted = evicted.reason, workload.condition("Preempted")
    kind, words = EVICTIONS.get(reason) or EVICTIONS.get(reason.partition("DueTo")[0], _EVICTED)
    said = f"{reason}: {evicted.message}"
    if preempted is not None and preempted.holds:
        said = f"{said}; {preempted.reason}"
    return Failure(kind=kind, message=f"{words} ({said})")


def find_rejection(workload: Workload) -> Failure | None:
    """Return why Kueue itself deactivated the Workload, so that the Job never starts. None if it did not.

    A reason with `DueTo` is Kueue's. A person who deactivates a Workload gives none.
    """
    evicted = workload.condition("Evicted")
    gave_up = not workload.active and evicted is not None and "DueTo" in evicted.reason
    return find_eviction(workload) if gave_up else None


def _quote(words: str, said: Condition | None) -> str:
    return words if said is None else f"{words} ({said.reason}: {said.message})"
