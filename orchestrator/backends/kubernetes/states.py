"""Translate the reasons that Kubernetes gives for waiting and ending, one table per field. Pure.

A cause that is in no table is never guessed. The agent's own record must then name it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.backends.kubernetes.objects import ContainerObject, JobObject, NodeObject, PodObject
from trainer.contract.failure import Failure, FailureKind, find_telling_line, signal_name
from trainer.contract.pod import parse_last_words


class Standing(StrEnum):
    WAITS = "waits"
    RUNS = "runs"
    SILENT = "silent"  # its node does not answer; it may run
    LOST = "lost"  # its node does not answer, and the cluster gave the pod up
    OVER = "over"
    RETURNS = "returns"  # its pod is over, and the Job controller starts another one or has done so


@dataclass(frozen=True, slots=True)
class Meaning:
    kind: FailureKind | None  # None if the reason explains nothing
    words: str
    may_resolve: bool = False  # without a new attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """The judgment of one pod."""

    standing: Standing
    evidence: str
    cause: Failure | None = None  # why it ended, or why the cluster ends it
    disruption: Failure | None = None  # the same, if the cluster ends it; None for our own deletions
    unexplained: bool = False  # it was deleted without a reason
    trouble: Failure | None = None  # why it does not start
    may_resolve: bool = False  # the trouble may end without a new attempt


# Why a container waits (kubelet: pkg/kubelet/images/types.go, kuberuntime). Other reasons are part of a normal start.
WAITING: dict[str, Meaning] = {
    "ErrImagePull": Meaning(FailureKind.INFRASTRUCTURE, "its image cannot be pulled", may_resolve=True),
    "ImagePullBackOff": Meaning(FailureKind.INFRASTRUCTURE, "its image cannot be pulled", may_resolve=True),
    "RegistryUnavailable": Meaning(FailureKind.INFRASTRUCTURE, "its registry does not answer", may_resolve=True),
    "ImageInspectError": Meaning(FailureKind.INFRASTRUCTURE, "its image cannot be inspected", may_resolve=True),
    "SignatureValidationFailed": Meaning(FailureKind.LAUNCH, "its image's signature is not valid"),
    "InvalidImageName": Meaning(FailureKind.LAUNCH, "the name of its image is invalid"),
    "ErrImageNeverPull": Meaning(FailureKind.LAUNCH, "its image is not on the node and must not be pulled"),
    "CreateContainerConfigError": Meaning(FailureKind.LAUNCH, "its container cannot be configured", may_resolve=True),
    "CreateContainerError": Meaning(FailureKind.LAUNCH, "its container cannot be created", may_resolve=True),
    "RunContainerError": Meaning(FailureKind.LAUNCH, "its container cannot be started", may_resolve=True),
}
# A registry's messages for an image that can never be pulled (containerd and CRI-O, distribution's error codes).
_NO_SUCH_IMAGE = re.compile(
    r"code = NotFound|: not found|manifest unknown|name unknown|repository does not exist|pull access denied"
    r"|unauthorized|authentication required|denied:|no match for platform|403 Forbidden|401 Unauthorized"
)

# The Job controller's messages for refused pods: pod security, limits, policies, a missing priority class or service
# account (Kubernetes, "Admission Controllers"). A full quota is not a refusal; the job waits.
_REFUSED = re.compile(r"is forbidden: |is invalid: |denied the request")
_FULL = "exceeded quota"

# Why a container ended. "Error" and "Completed" add nothing to the exit code.
TERMINATED: dict[str, Meaning] = {
    "OOMKilled": Meaning(FailureKind.HOST_OOM, "it used more memory than its limit"),
    "StartError": Meaning(FailureKind.LAUNCH, "its program could not be started"),
    "ContainerCannotRun": Meaning(FailureKind.LAUNCH, "its program could not be started"),
    "DeadlineExceeded": Meaning(FailureKind.TIMEOUT, "it reached its time limit"),
    "Unknown": Meaning(FailureKind.NODE, "its node returned without it"),
    "ContainerStatusUnknown": Meaning(FailureKind.NODE, "its node returned without it"),
}

# The reasons of the pod condition DisruptionTarget (Kubernetes, "Disruptions", pod disruption conditions).
DISRUPTIONS: dict[str, Meaning] = {
    "PreemptionByScheduler": Meaning(FailureKind.PREEMPTED, "a pod with higher priority took its place"),
    "EvictionByEvictionAPI": Meaning(
        FailureKind.PREEMPTED,
        "it was evicted, as by a drain of its node; Kubernetes does not record who requested that",
    ),
    "TerminationByKubelet": Meaning(FailureKind.PREEMPTED, "its node was shut down or short of a resource"),
    "DeletionByTaintManager": Meaning(
        FailureKind.NODE, "its node did not answer, or has a taint that it does not tolerate"
    ),
    "DeletionByPodGC": Meaning(FailureKind.NODE, "its node is gone"),
}

_LOSSES = {
    "PreemptionByScheduler": "was preempted",
    "EvictionByEvictionAPI": "was evicted",
    "TerminationByKubelet": "was evicted by its node",
    "DeletionByTaintManager": "was evicted from its node",
    "DeletionByPodGC": "was lost with its node",
}

# The reason in the status of a pod that its node or its controller ended.
POD_REASONS: dict[str, Meaning] = {
    "Evicted": Meaning(FailureKind.PREEMPTED, "its node was short of a resource"),
    "Preempting": Meaning(FailureKind.PREEMPTED, "its node needed room for a critical pod"),
    "Terminated": Meaning(FailureKind.PREEMPTED, "its node was shut down"),
    "NodeShutdown": Meaning(FailureKind.PREEMPTED, "its node was shut down"),
    "Shutdown": Meaning(FailureKind.PREEMPTED, "its node was shut down"),
    "NodeLost": Meaning(FailureKind.NODE, "its node is lost"),
    "DeadlineExceeded": Meaning(FailureKind.TIMEOUT, "it reached its time limit"),
    "NodeAffinity": Meaning(FailureKind.INFRASTRUCTURE, "its node refused it"),
    "OutOfcpu": Meaning(FailureKind.INFRASTRUCTURE, "its node refused it"),
    "OutOfmemory": Meaning(FailureKind.INFRASTRUCTURE, "its node refused it"),
    "OutOfpods": Meaning(FailureKind.INFRASTRUCTURE, "its node refused it"),
    "UnexpectedAdmissionError": Meaning(FailureKind.INFRASTRUCTURE, "its node refused it"),
}
# The resource that a node lacks, from the message of an eviction (kubelet: pkg/kubelet/eviction/helpers.go).
_EVICTED: tuple[tuple[str, FailureKind], ...] = (
    ("ephemeral-storage", FailureKind.STORAGE),
    ("ephemeral local storage", FailureKind.STORAGE),
    ("EmptyDir volume", FailureKind.STORAGE),
    ("memory", FailureKind.HOST_OOM),
)

# Why a Job is over (Kubernetes, "Jobs"). Other reasons only summarize its pods.
JOB_REASONS: dict[str, Meaning] = {
    "DeadlineExceeded": Meaning(FailureKind.TIMEOUT, "it reached its time limit"),
}
_FINAL = ("Complete", "Failed")
_DECIDED = ("SuccessCriteriaMet", "FailureTarget", *_FINAL)
_EXIT_NOT_STARTED = (126, 127)  # not executable, not found: POSIX, Shell Command Language, 2.8.2
_EXIT_KILLED = (137, 143)  # SIGKILL, SIGTERM
EXIT_REPLACED = (*_EXIT_KILLED, 255)  # 255: the node restarted (recorded: 09b)
# Exit codes of an agent that could not start, and of Python without the package (trainer/elastic/pod.py,
# elasticrun.py). The container's message is then the end of its output. An agent that started leaves its record there.
_EXIT_NOT_BEGUN = (1, 2)


def is_replaced(pod: PodObject, job: JobObject) -> bool:
    """Whether the Job controller starts another pod for the index of this one, which has ended.

    A disrupted pod is replaced, and one whose agent was killed by a signal. An agent that ended by itself says what
    became of its replica.
    """
    if job.replacements == 0 or job.deleting or job.suspended or is_decided(job) or pod.phase == "Succeeded":
        return False
    if pod.index in job.failed_indexes | job.completed_indexes:
        return False
    if _disruption(pod):
        return True
    codes = {each.exit_code for each in (pod.container, pod.unpacking) if each is not None}
    return pod.failures < job.replacements and codes <= {None, *EXIT_REPLACED}


def is_over(job: JobObject) -> bool:
    """Whether the Job is over, so that none of its pods runs or will run."""
    return job.condition(*_FINAL) is not None


def is_decided(job: JobObject) -> bool:
    """Whether the Job's controller itself ends the remaining pods."""
    return job.condition(*_DECIDED) is not None


def find_job_cause(job: JobObject) -> Failure | None:
    """Return the Job's own cause for its end. None if only its pods can name it."""
    said = job.condition(*_DECIDED)
    if said is None:
        return None
    meaning = JOB_REASONS.get(said.reason)
    if meaning is None or meaning.kind is None:
        return None
    return Failure(kind=meaning.kind, message=f"{meaning.words} (Job {job.name}, {said.reason}: {said.message})")


def judge(pod: PodObject, nodes: dict[str, NodeObject] | None, *, now: float, late_s: float) -> Judgment:
    """Judge a pod by its status. `nodes` is None if they cannot be read."""
    container = pod.container
    if (
        pod.phase in ("Succeeded", "Failed")
        or pod.removed
        or (container is not None and container.terminated is not None)
    ):
        cause = _find_cause(pod, nodes)
        return Judgment(
            standing=Standing.OVER,
            evidence=_how_it_ended(pod),
            cause=cause,
            disruption=_find_disruption(pod, nodes),
            unexplained=cause is None and pod.deletes_at is not None,
        )
    if is_silent(pod, nodes):
        return _silent(pod, _find_disruption(pod, nodes), now=now, late_s=late_s)
    if container is not None and container.running:
        ending = "" if pod.deletes_at is None else " and is being deleted"
        disruption = _find_disruption(pod, nodes)
        return Judgment(
            standing=Standing.RUNS,
            evidence=f"pod {pod.name} runs on {pod.node}{ending}",
            cause=disruption,
            disruption=disruption,
            unexplained=disruption is None and pod.deletes_at is not None,
        )
    return _waiting(pod)


def is_refusal(said: str) -> bool:
    """Whether a pod is refused for a reason that no other pod's end resolves."""
    return _REFUSED.search(said) is not None and _FULL not in said


def is_silent(pod: PodObject, nodes: dict[str, NodeObject] | None) -> bool:
    """Whether the pod's node has stopped answering.

    The node's controller then sets the pod's condition Ready instead of the kubelet, without a reason (observed).
    """
    if pod.phase == "Unknown" or pod.reason == "NodeLost":
        return True
    if nodes is not None and pod.node is not None:
        return pod.node not in nodes or not nodes[pod.node].ready
    ready = pod.condition("Ready")
    runs = pod.container is not None and pod.container.running
    return runs and ready is not None and not ready.holds and not ready.reason


def _silent(pod: PodObject, disruption: Failure | None, *, now: float, late_s: float) -> Judgment:
    """Judge a pod on a silent node. A returning kubelet ends an evicted pod before its node is ready again."""
    if pod.deletes_at is None or now < pod.deletes_at + late_s:
        words = f"node {pod.node} does not answer; pod {pod.name} may run there"
        return Judgment(standing=Standing.SILENT, evidence=words, cause=disruption, disruption=disruption)
    words = f"node {pod.node} does not answer, and the cluster gave up its pod {pod.name}"
    return Judgment(standing=Standing.LOST, evidence=words, cause=Failure(kind=FailureKind.NODE, message=words))


def _waiting(pod: PodObject) -> Judgment:
    waits = next(
        (each for each in (pod.unpacking, pod.container) if each is not None and each.waiting is not None), None
    )
    if waits is not None and waits.waiting in WAITING:
        return _troubled(pod, waits)
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and not scheduled.holds:
        said = f"{scheduled.reason}: {scheduled.message}".strip(": ")
        return Judgment(standing=Standing.WAITS, evidence=f"pod {pod.name} has no node ({said})")
    where = "has no node yet" if pod.node is None else f"is being started on {pod.node}"
    return Judgment(standing=Standing.WAITS, evidence=f"pod {pod.name} {where}")


def _troubled(pod: PodObject, waits: ContainerObject) -> Judgment:
    meaning = WAITING[waits.waiting or ""]
    kind, may_resolve = meaning.kind or FailureKind.LAUNCH, meaning.may_resolve
    if may_resolve and "mage" in (waits.waiting or "") and _NO_SUCH_IMAGE.search(waits.message):
        kind, may_resolve = FailureKind.LAUNCH, False
    words = f"{meaning.words} (pod {pod.name}, {waits.waiting}: {waits.message or 'no message'})"
    return Judgment(
        standing=Standing.WAITS, evidence=words, trouble=Failure(kind=kind, message=words), may_resolve=may_resolve
    )


def describe_loss(pod: PodObject) -> str:
    """Say in a clause what ended a pod: an eviction, a preemption, the loss of its node, a deletion, or its exit."""
    verb = _LOSSES.get(_disruption(pod)) or ("was deleted" if pod.deletes_at is not None else None)
    where = "" if pod.node is None else f" on {pod.node}"
    return _how_it_ended(pod) if verb is None else f"pod {pod.name}{where} {verb}"


def _how_it_ended(pod: PodObject) -> str:
    ended = next(
        (each for each in (pod.container, pod.unpacking) if each is not None and each.terminated is not None), None
    )
    where = "" if pod.node is None else f" on {pod.node}"
    if ended is None:
        said = pod.reason or (f"{_disruption(pod)}" if _disruption(pod) else pod.phase)
        return f"pod {pod.name}{where} is gone ({said})"
    code = ended.exit_code
    signal = None if code is None else signal_name(code)
    detail = f", {signal}" if signal else ""
    return f"pod {pod.name}{where} ended with exit code {code} ({ended.terminated}{detail})"


def _find_cause(pod: PodObject, nodes: dict[str, NodeObject] | None) -> Failure | None:
    """Return the cluster's cause for a pod's end. None if only its agent's record can name it."""
    container = pod.container
    code, message = (None, "") if container is None else (container.exit_code, container.message)
    if container is not None and container.terminated == "OOMKilled":
        return _failure(TERMINATED["OOMKilled"], pod, "OOMKilled", code)
    if (disruption := _find_disruption(pod, nodes)) is not None:
        return disruption
    if pod.unpacking is not None and pod.unpacking.exit_code and not _was_killed(pod.unpacking, pod):
        failed = Meaning(FailureKind.LAUNCH, "the agent could not be copied into it")
        return _failure(failed, pod, pod.unpacking.message or "the init container failed", pod.unpacking.exit_code)
    if container is not None and container.terminated in TERMINATED:
        said = f"{container.terminated} {container.message}".strip()
        return _failure(TERMINATED[container.terminated], pod, said, code)
    if code in _EXIT_NOT_STARTED:
        return _failure(Meaning(FailureKind.LAUNCH, "its program could not be started"), pod, message, code)
    return _unbegun(pod, message, code) if code in _EXIT_NOT_BEGUN and message.strip() else None


def _find_disruption(pod: PodObject, nodes: dict[str, NodeObject] | None) -> Failure | None:
    """Return why the cluster ends or ended a pod: eviction, preemption, a node's shutdown or loss.

    Names who set the reason, if Kubernetes records it. Kubernetes does not record who requested an eviction.
    """
    code = None if pod.container is None else pod.container.exit_code
    condition = pod.condition("DisruptionTarget")
    if condition is not None and condition.holds and condition.reason in DISRUPTIONS:
        said = [f"{condition.reason}: {condition.message}".rstrip(": ")]
        if pod.reason:
            said.append(f"{pod.reason}: {pod.message}".rstrip(": "))
        if pod.preempted:
            said.append(pod.preempted)
        if condition.by:
            said.append(f"set by {condition.by}")
        meaning = _tainted(pod, nodes) if condition.reason == "DeletionByTaintManager" else None
        return _failure(meaning or DISRUPTIONS[condition.reason], pod, "; ".join(said), code)
    if pod.reason not in POD_REASONS:
        return None
    meaning = POD_REASONS[pod.reason]
    if pod.reason == "Evicted":
        kind = next((kind for text, kind in _EVICTED if text in pod.message), meaning.kind)
        meaning = Meaning(kind, meaning.words)
    return _failure(meaning, pod, f"{pod.reason}: {pod.message}".rstrip(": "), code)


def _tainted(pod: PodObject, nodes: dict[str, NodeObject] | None) -> Meaning | None:
    """Explain the eviction from a node that answers and has an evicting taint. None for any other node."""
    node = None if nodes is None or pod.node is None else nodes.get(pod.node)
    if node is None or not node.ready or not node.evicting:
        return None
    return Meaning(
        FailureKind.PREEMPTED, f"its node has the taint {', '.join(node.evicting)}, which it does not tolerate"
    )


def _was_killed(container: ContainerObject, pod: PodObject) -> bool:
    """Whether the container ended because its pod was deleted."""
    return pod.deletes_at is not None and container.exit_code in _EXIT_KILLED


def _unbegun(pod: PodObject, printed: str, code: int | None) -> Failure | None:
    """Explain an agent that could not start. None if the message is an agent's exit record."""
    if parse_last_words(printed) is not None:
        return None
    telling = find_telling_line(exit_code=code, output=printed)
    kind = FailureKind.LAUNCH if telling is None else telling[0]
    return _failure(Meaning(kind, "its agent could not start"), pod, printed.strip().splitlines()[-1], code)


def _disruption(pod: PodObject) -> str:
    condition = pod.condition("DisruptionTarget")
    return condition.reason if condition is not None and condition.holds else ""


def _failure(meaning: Meaning, pod: PodObject, said: str, code: int | None) -> Failure:
    where = f"pod {pod.name}" + (f" on {pod.node}" if pod.node else "")
    detail = f"{where}, {said}" if said else where
    return Failure(
        kind=meaning.kind or FailureKind.UNKNOWN,
        message=f"{meaning.words} ({detail})",
        exit_code=code,
        signal=None if code is None else signal_name(code),
    )
