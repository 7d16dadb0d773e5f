"""Judge an attempt from its cached objects and the traces in its folder: alive, dead or unknown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.backends.kubernetes.kueue import Workload, describe_wait, find_eviction, find_rejection
from orchestrator.backends.kubernetes.objects import JobObject, NodeObject, PodObject, WarningObject
from orchestrator.backends.kubernetes.states import (
    Judgment,
    Standing,
    describe_loss,
    find_job_cause,
    is_decided,
    is_over,
    is_refusal,
    is_replaced,
    judge,
)
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaEnd, ReplicaSighting, Sighting
from trainer.contract.failure import Failure, FailureKind

_RECORDS = frozenset({0, 1, 143})  # exit codes of an agent that left an exit record (elasticrun)
_NOT_BY_US = "but not by this service; Kubernetes does not record who deletes objects"
_RELEVANT = ("FailedCreate", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The cached objects of one attempt. `pods` includes deleted ones in their last state."""

    job: JobObject | None
    pods: tuple[PodObject, ...] = ()
    nodes: dict[str, NodeObject] | None = None  # None if they cannot be read
    warnings: tuple[WarningObject, ...] = ()
    workload: Workload | None = None  # Kueue's, of a Job in a queue
    has_workloads: bool = False  # whether Workloads can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What an attempt's folder shows."""

    replicas: int = 1  # the number that was to be launched
    submitted: bool = False  # its Job was created
    began: bool = False  # an agent started, or a pod was seen running
    recorded: frozenset[int] = frozenset()  # the replicas whose agents left an exit record
    cancelled: bool = False  # this service deletes or has deleted its Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SightContext:
    now: float  # seconds since the epoch on the service's clock
    settle_s: float = 30.0
    image_patience_s: float = 300.0
    late_s: float = 10.0  # a pod that outlives its grace period by this long is lost
    ours: bool = False  # this service deleted the Job


@dataclass(frozen=True, slots=True)
class _Replica:
    number: int
    pod: PodObject | None
    judgment: Judgment
    since: float | None = None  # when the trouble began, in seconds since the epoch
    end: ReplicaEnd | None = None  # of the newest agent, if it has ended


def sight(key: AttemptKey, view: View, traces: Traces, context: SightContext) -> Sighting:
    """Judge an attempt. One without objects is ABSENT only if no agent ever started for it."""
    job = view.job
    if job is None and not view.pods:
        return _judge_absent(key, traces, context)
    if job is not None and not job.whole and not view.pods:
        words = f"Job {job.name} was created, but its submission was interrupted"
        return Sighting(key=key, presence=Presence.ABSENT, evidence=words)
    if job is not None and job.queued_by_kueue:
        # Kueue may evict a Job before its pods run. It then starts the same Job again, with new pods.
        view = replace(view, pods=tuple(pod for pod in view.pods if _ran(pod) or not pod.removed))
    began = traces.began or bool(traces.recorded) or any(map(_ran, view.pods))
    least, most = (job.min_nodes, job.max_nodes) if job is not None else (traces.replicas, traces.replicas)
    replicas = [_judge_index(number, view, context, began=began) for number in range(max(most, 1))]
    dead = [one for one in replicas if one.judgment.standing in (Standing.OVER, Standing.LOST, Standing.RETURNS)]
    begun = [one for one in replicas if one.judgment.standing is not Standing.WAITS]
    gone = job is None or is_over(job) or job.deleting
    if not gone and len(begun) < least and len(dead) <= most - least:
        return _judge_pending(key, view, replicas, context)
    return _judge_started(key, view, replicas, traces, context)


def _ran(pod: PodObject) -> bool:
    container = pod.container
    return container is not None and (container.running or container.terminated is not None)


def _judge_absent(key: AttemptKey, traces: Traces, context: SightContext) -> Sighting:
    if not traces.submitted:
        return Sighting(key=key, presence=Presence.ABSENT, evidence="the cluster has no Job of this name")
    if not traces.began and not traces.recorded:
        words = "its Job was deleted or not created before any agent started"
        return Sighting(key=key, presence=Presence.ABSENT, evidence=words)
    words = "its Job and its pods are gone from the cluster"
    cause = None if context.ours else _deleted()
    replicas = tuple(
        ReplicaSighting(replica=number, liveness=Liveness.DEAD, evidence=f"replica {number}: {words}")
        for number in range(traces.replicas)
    )
    return Sighting(key=key, presence=Presence.GONE, evidence=words, replicas=replicas, cause=cause)


def _judge_index(number: int, view: View, context: SightContext, *, began: bool) -> _Replica:
    """Judge the newest pod of an index. `began`: an agent of the attempt has started."""
    pods = sorted(
        (pod for pod in view.pods if pod.index == number),
        key=lambda one: (not one.removed, one.failures + one.disruptions, one.created_at or 0.0, one.name),
    )
    if pods:
        judgment = judge(pods[-1], view.nodes, now=context.now, late_s=context.late_s)
        returning = None if view.job is None else _judge_returning(pods, judgment, view)
        end = _find_end(pods, judgment, view, context)
        return _Replica(number, pods[-1], returning or judgment, since=pods[-1].created_at, end=end)
    job = view.job
    if job is None and any(not pod.removed for pod in view.pods):
        # The caches of Jobs and pods do not change at the same moment.
        words = f"replica {number} has no pod, and its Job is not in the cache"
        return _Replica(number, None, Judgment(standing=Standing.SILENT, evidence=words))
    if job is None or is_over(job) or job.deleting or (job.suspended and began):
        return _Replica(number, None, Judgment(standing=Standing.OVER, evidence=f"replica {number}'s pod is gone"))
    if number in job.failed_indexes | job.completed_indexes:
        how = "failed" if number in job.failed_indexes else "completed"
        words = f"replica {number}'s pod is gone; Job {job.name} calls it {how}"
        return _Replica(number, None, Judgment(standing=Standing.OVER, evidence=words))
    return _judge_podless(number, job, view.warnings)


def _judge_returning(pods: Sequence[PodObject], judgment: Judgment, view: View) -> Judgment | None:
    """Judge an index whose pod ended and is replaced. None for any other. `pods` are in the order of their creation."""
    pod, job = pods[-1], view.job
    assert job is not None
    if judgment.standing is Standing.OVER and is_replaced(pod, job):
        words = f"{describe_loss(pod)}; Kubernetes starts another one"
        return replace(judgment, standing=Standing.RETURNS, evidence=words)
    if judgment.standing is not Standing.WAITS or job.replacements == 0 or pod.failures + pod.disruptions == 0:
        return None
    lost = _describe_before(pods)
    return replace(judgment, standing=Standing.RETURNS, evidence=f"{lost}; its replacement: {judgment.evidence}")


def _describe_before(pods: Sequence[PodObject]) -> str:
    """Say what ended the pod before the newest one. This service may not have seen it."""
    if len(pods) > 1:
        return describe_loss(pods[-2])
    return f"its pod {'was disrupted' if pods[-1].disruptions else 'ended'}"


def _find_end(pods: Sequence[PodObject], judgment: Judgment, view: View, context: SightContext) -> ReplicaEnd | None:
    """Return how the newest agent of an index ended. Its incarnation follows from the number of pods before its own."""
    pod = pods[-1]
    earlier = pod.failures + pod.disruptions
    if judgment.standing is Standing.WAITS and earlier > 0:
        before = pods[-2] if len(pods) > 1 else None
        ended = None if before is None else judge(before, view.nodes, now=context.now, late_s=context.late_s)
        failure = None if before is None or ended is None else _explain_end(before, ended)
        return ReplicaEnd(incarnation=earlier, words=_describe_before(pods), failure=failure)
    if judgment.standing is Standing.OVER:
        return ReplicaEnd(incarnation=earlier + 1, words=describe_loss(pod), failure=_explain_end(pod, judgment))
    if judgment.standing in (Standing.LOST, Standing.SILENT):
        return ReplicaEnd(incarnation=earlier + 1, words=judgment.evidence, failure=judgment.cause)
    return None


def _explain_end(pod: PodObject, ended: Judgment) -> Failure | None:
    if not ended.unexplained:
        return ended.cause
    return Failure(kind=FailureKind.PREEMPTED, message=f"{describe_loss(pod)} in the cluster, {_NOT_BY_US}")


def _judge_podless(number: int, job: JobObject, warnings: Sequence[WarningObject]) -> _Replica:
    """Judge a replica whose pod does not exist yet or is refused."""
    detail = _newest_warning(warnings, "Job", job.name)
    words = f"replica {number} has no pod yet" + (f" ({detail})" if detail else "")
    if not is_refusal(detail):
        return _Replica(number, None, Judgment(standing=Standing.WAITS, evidence=words))
    refused = Failure(kind=FailureKind.LAUNCH, message=f"the cluster refuses the pods of Job {job.name} ({detail})")
    judgment = Judgment(standing=Standing.WAITS, evidence=words, trouble=refused, may_resolve=True)
    since = min(each.since for each in _relevant(warnings, "Job", job.name) if is_refusal(each.message))
    return _Replica(number, None, judgment, since=since)


def _judge_pending(key: AttemptKey, view: View, replicas: Sequence[_Replica], context: SightContext) -> Sighting:
    job = view.job
    assert job is not None
    if job.suspended:
        words = f"Job {job.name} is suspended in the cluster, so no pod runs"
        if job.queued_by_kueue:
            detail = f" ({describe_wait(view.workload, now=context.now)})" if view.has_workloads else ""
            words = f"Job {job.name} waits for Kueue{detail}"
        rejection = None if view.workload is None else find_rejection(view.workload)
        if rejection is not None:
            return _judge_hopeless(key, replicas, rejection)
        return Sighting(key=key, presence=Presence.PENDING, evidence=words)
    hopeless = _find_trouble(replicas, context)
    if hopeless is not None:
        return _judge_hopeless(key, replicas, hopeless)
    waiting = [one for one in replicas if one.judgment.standing is Standing.WAITS]
    first = max(waiting, key=lambda one: (one.judgment.trouble is not None, "has no node (" in one.judgment.evidence))
    detail = "" if first.pod is None else _newest_warning(view.warnings, "Pod", first.pod.name)
    evidence = first.judgment.evidence + (f"; {detail}" if detail else "")
    if len(waiting) < len(replicas):
        evidence = f"{len(replicas) - len(waiting)} of {len(replicas)} pods have started; {evidence}"
    return Sighting(key=key, presence=Presence.PENDING, evidence=evidence)


def _judge_hopeless(key: AttemptKey, replicas: Sequence[_Replica], cause: Failure) -> Sighting:
    ended = tuple(
        ReplicaSighting(replica=one.number, liveness=Liveness.DEAD, evidence=cause.message, leftovers=True)
        for one in replicas
    )
    return Sighting(key=key, presence=Presence.GONE, evidence=cause.message, replicas=ended, cause=cause)


def _find_trouble(replicas: Sequence[_Replica], context: SightContext) -> Failure | None:
    """Return why the attempt cannot start, once the cause is certain or has lasted too long."""
    for one in replicas:
        judgment = one.judgment
        if judgment.trouble is None:
            continue
        waited_s = 0.0 if one.since is None else context.now - one.since
        if not judgment.may_resolve or waited_s >= context.image_patience_s:
            return judgment.trouble
    return None


def _judge_started(
    key: AttemptKey, view: View, replicas: Sequence[_Replica], traces: Traces, context: SightContext
) -> Sighting:
    job = view.job
    seen = tuple(_replica(one, traces, context, has_job=job is not None) for one in replicas)
    if job is not None and job.suspended and not is_over(job):
        # A suspended Job may be resumed, so its resources are not free before it is deleted.
        seen = tuple(replace(one, leftovers=True) for one in seen)
    still = any(one.liveness is Liveness.ALIVE or one.leftovers for one in seen)
    unknown = any(one.liveness is Liveness.UNKNOWN for one in seen)
    every = all(one.liveness is Liveness.DEAD for one in seen) and not any(
        one.judgment.standing in (Standing.WAITS, Standing.RETURNS) for one in replicas
    )
    presence = Presence.GONE if every else Presence.RUNNING
    if not every and unknown and not still:
        presence = Presence.UNKNOWN  # every replica that is not dead is unknown
    return Sighting(
        key=key,
        presence=presence,
        evidence=_describe_job(job, key),
        replicas=seen,
        cause=_find_own_cause(job, replicas) if context.ours else _find_cause(job, replicas, view.workload),
        nodes=job.max_nodes if job is not None and job.max_nodes < job.requested_nodes else None,
    )


def _replica(one: _Replica, traces: Traces, context: SightContext, *, has_job: bool) -> ReplicaSighting:
    judgment, pod = one.judgment, one.pod
    sighting = ReplicaSighting(replica=one.number, liveness=Liveness.DEAD, evidence=judgment.evidence, end=one.end)
    match judgment.standing:
        case Standing.RUNS:
            return replace(sighting, liveness=Liveness.ALIVE, node=None if pod is None else pod.node)
        case Standing.SILENT:
            # Without a pod, no node is known to be silent.
            node = None if pod is None else pod.node
            return replace(sighting, liveness=Liveness.UNKNOWN, node=node, node_unreachable=node is not None)
        case Standing.LOST:
            return replace(sighting, node=None if pod is None else pod.node, node_unreachable=True)
        case Standing.RETURNS:
            seen = _ended(sighting, one, traces, context) if pod is not None and pod.container else sighting
            return replace(seen, liveness=Liveness.DEAD, leftovers=True, returns=True)
        case Standing.WAITS if not has_job:
            return replace(sighting, liveness=Liveness.UNKNOWN)
        case Standing.WAITS:
            return replace(sighting, leftovers=True)
        case Standing.OVER:
            return _ended(sighting, one, traces, context)


def _ended(sighting: ReplicaSighting, one: _Replica, traces: Traces, context: SightContext) -> ReplicaSighting:
    """Judge an ended replica. A network file system may show its exit record late. A lost node is blamed."""
    if one.number in traces.recorded:
        return replace(sighting, evidence=f"replica {one.number}'s agent left its record; {sighting.evidence}")
    container = None if one.pod is None else one.pod.container
    finished_at = None if container is None or container.exit_code not in _RECORDS else container.finished_at
    if finished_at is not None and context.now - finished_at < context.settle_s:
        words = f"{sighting.evidence}; the exit record of replica {one.number} may still appear"
        return replace(sighting, liveness=Liveness.UNKNOWN, evidence=words)
    cause = one.judgment.cause
    lost = cause is not None and cause.kind is FailureKind.NODE
    return replace(sighting, node=one.pod.node if lost and one.pod is not None else None, node_unreachable=lost)


def _find_own_cause(job: JobObject | None, replicas: Sequence[_Replica]) -> Failure | None:
    """Return the cluster's own cause for an attempt whose Job we deleted. Missing pods explain nothing then."""
    return (None if job is None else find_job_cause(job)) or _first(
        [(one, one.judgment.disruption) for one in replicas if one.judgment.disruption is not None]
    )


def _find_cause(job: JobObject | None, replicas: Sequence[_Replica], workload: Workload | None) -> Failure | None:
    """Return the cluster's cause: the Job's own, that of the pod that ended first, a deleted Job, or Kueue's."""
    by_job = None if job is None else find_job_cause(job)
    by_pod = _first([(one, one.judgment.cause) for one in replicas if one.judgment.cause is not None])
    if by_job is not None or by_pod is not None:
        return by_job or by_pod
    if job is None or job.deleting:
        return _deleted()
    if is_decided(job):
        return None
    by_kueue = None if workload is None else find_eviction(workload)
    if by_kueue is not None:
        return by_kueue
    if job.suspended:
        by = f" by {job.suspended_by}" if job.suspended_by else ""
        return Failure(kind=FailureKind.PREEMPTED, message=f"Job {job.name} was suspended in the cluster{by}")
    deleted = next((one for one in replicas if one.judgment.unexplained), None)
    if deleted is None:
        return None
    words = f"one of its pods was deleted in the cluster, {_NOT_BY_US} ({deleted.judgment.evidence})"
    return Failure(kind=FailureKind.PREEMPTED, message=words)


def _first(causes: Sequence[tuple[_Replica, Failure]]) -> Failure | None:
    """Return the cause of the pod that ended first."""
    of_pods = [(_ended_at(one.pod), one.number, cause) for one, cause in causes if one.pod is not None]
    return min(of_pods, key=lambda each: each[:2])[2] if of_pods else None


def _ended_at(pod: PodObject) -> float:
    """Return when the pod ended, in seconds since the epoch. Infinity if unknown."""
    container = pod.container
    if container is not None and container.finished_at is not None:
        return container.finished_at
    return float("inf") if pod.deletes_at is None else pod.deletes_at


def _deleted() -> Failure:
    words = f"its Job was deleted in the cluster, {_NOT_BY_US}"
    return Failure(kind=FailureKind.PREEMPTED, message=words)


def _describe_job(job: JobObject | None, key: AttemptKey) -> str:
    if job is None:
        return f"the Job of attempt {key} is deleted"
    condition = job.condition("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")
    if condition is None:
        return f"Job {job.name} is running" + (" and is being deleted" if job.deleting else "")
    return f"Job {job.name}: {condition.type} ({condition.reason})"


def _newest_warning(warnings: Sequence[WarningObject], kind: str, name: str) -> str:
    newest = max(_relevant(warnings, kind, name), key=lambda each: each.at, default=None)
    return "" if newest is None else f"{newest.reason}: {newest.message}"


def _relevant(warnings: Sequence[WarningObject], kind: str, name: str) -> list[WarningObject]:
    return [each for each in warnings if (each.kind, each.name) == (kind, name) and each.reason in _RELEVANT]
