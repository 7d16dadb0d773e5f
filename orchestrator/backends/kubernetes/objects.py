"""Parse the API's objects from JSON, keeping the needed fields. Absent fields become None or empty. Pure.

Field names and meanings: Kubernetes API reference, Job v1 batch, Pod v1 core, Node v1 core, Event v1 core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.backends.kubernetes.site import (
    ATTEMPT_LABEL,
    DISRUPTIONS_ANNOTATION,
    FAILURES_ANNOTATION,
    INDEX_LABEL,
    NODES_ANNOTATION,
    QUEUE_LABEL,
    WHOLE_ANNOTATION,
)

Json = Mapping[str, Any]
_OF_LOST_NODES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class Condition:
    """A status condition. `holds` means that its status is True."""

    type: str
    holds: bool
    reason: str
    message: str
    by: str = ""  # who set it last, from managedFields; empty if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObject:
    name: str
    uid: str
    conditions: tuple[Condition, ...] = ()
    suspended: bool = False
    suspended_by: str = ""  # who set it last, from managedFields; empty if unknown
    whole: bool = False  # its submission was completed
    queued_by_kueue: bool = False
    deleting: bool = False
    nodes: str = "1"  # "min:max" or one number, as the attempt requested
    completions: int | None = None  # how many indexes may have pods; Kueue may admit fewer than requested
    failed_indexes: frozenset[int] = frozenset()
    completed_indexes: frozenset[int] = frozenset()
    replacements: int = 0  # how many pods of an index the Job controller replaces; disrupted ones do not count

    @property
    def min_nodes(self) -> int:
        return int(self.nodes.partition(":")[0])

    @property
    def requested_nodes(self) -> int:
        return int(self.nodes.rpartition(":")[2])

    @property
    def max_nodes(self) -> int:
        """How many replicas it has: as many as requested, or as Kueue admitted."""
        return min(self.requested_nodes, self.completions or self.requested_nodes)

    def condition(self, *kinds: str) -> Condition | None:
        return next((each for each in self.conditions if each.holds and each.type in kinds), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerObject:
    """The state of one container: waiting, running or terminated, or none of them."""

    waiting: str | None = None  # the reason
    running: bool = False
    terminated: str | None = None  # the reason
    exit_code: int | None = None
    message: str = ""
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObject:
    name: str
    uid: str
    job: str | None  # the name of its attempt's Job
    index: int | None
    phase: str
    node: str | None = None
    reason: str = ""  # from the pod's status: Evicted, NodeLost, ...
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container: ContainerObject | None = None  # the agent's; None if not reported yet
    unpacking: ContainerObject | None = None  # the init container, if it waits or has failed
    created_at: float | None = None
    deletes_at: float | None = None  # when its grace period ends, possibly in the future
    removed: bool = False  # the object is gone; this is its last state
    failures: int = 0  # how many earlier pods of its index failed and were replaced
    disruptions: int = 0  # how many were disrupted and replaced
    preempted: str = ""  # the scheduler's event, which names the pod that took its place

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    name: str
    ready: bool
    reason: str = ""
    evicting: tuple[str, ...] = ()  # keys of NoExecute taints that somebody set to evict pods


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningObject:
    """An event of type Warning."""

    kind: str  # the kind of the object concerned
    name: str
    reason: str
    message: str
    at: float  # when it last occurred
    since: float  # when it first occurred; repeats are one event


def parse_job(document: Json) -> JobObject:
    meta, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    annotations = meta.get("annotations") or {}
    return JobObject(
        name=meta["name"],
        uid=meta.get("uid", ""),
        conditions=parse_conditions(document),
        suspended=bool(spec.get("suspend")),
        suspended_by=find_manager(document, "f:spec", "f:suspend"),
        whole=WHOLE_ANNOTATION in annotations,
        queued_by_kueue=QUEUE_LABEL in (meta.get("labels") or {}),
        deleting="deletionTimestamp" in meta,
        nodes=annotations.get(NODES_ANNOTATION) or str(spec.get("completions") or 1),
        completions=spec.get("completions"),
        failed_indexes=parse_indexes(status.get("failedIndexes")),
        completed_indexes=parse_indexes(status.get("completedIndexes")),
        replacements=int(spec.get("backoffLimitPerIndex") or 0),
    )


def parse_pod(document: Json, *, container: str) -> PodObject:
    """Parse a pod. `container` is the name of the agent's container."""
    meta, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    labels = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    index = labels.get(INDEX_LABEL)
    inits = [_container(each) for each in status.get("initContainerStatuses") or ()]
    return PodObject(
        name=meta["name"],
        uid=meta.get("uid", ""),
        job=labels.get(ATTEMPT_LABEL) or labels.get("batch.kubernetes.io/job-name"),
        index=int(index) if index is not None and str(index).isdecimal() else None,
        phase=status.get("phase") or "Pending",
        node=spec.get("nodeName") or None,
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        conditions=parse_conditions(document),
        container=next(
            (_container(each) for each in status.get("containerStatuses") or () if each.get("name") == container), None
        ),
        unpacking=next((each for each in inits if each.waiting is not None or each.exit_code not in (None, 0)), None),
        created_at=parse_time(meta.get("creationTimestamp")),
        deletes_at=parse_time(meta.get("deletionTimestamp")),
        failures=_count(labels.get(FAILURES_ANNOTATION)),
        disruptions=_count(labels.get(DISRUPTIONS_ANNOTATION)),
    )


def _count(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def parse_node(document: Json) -> NodeObject:
    ready = next((each for each in parse_conditions(document) if each.type == "Ready"), None)
    return NodeObject(
        name=document["metadata"]["name"],
        ready=ready is not None and ready.holds,
        reason="" if ready is None else ready.reason,
        evicting=tuple(_evicting_taints(document)),
    )


def _evicting_taints(document: Json) -> Iterator[str]:
    """Skip the taints that Kubernetes sets on lost nodes ("Well-Known Labels, Annotations and Taints")."""
    for taint in (document.get("spec") or {}).get("taints") or ():
        key = taint.get("key") or ""
        if taint.get("effect") == "NoExecute" and not key.startswith(_OF_LOST_NODES):
            yield key


def parse_warning(document: Json) -> WarningObject:
    """Parse a warning. The scheduler's events have `eventTime` but no `lastTimestamp`. Some lack a message."""
    about = document.get("involvedObject") or {}
    times = (document.get("lastTimestamp"), document.get("eventTime"), document.get("firstTimestamp"))
    known = [moment for each in times if (moment := parse_time(each)) is not None] or [0.0]
    return WarningObject(
        kind=about.get("kind") or "",
        name=about.get("name") or "",
        reason=document.get("reason") or "",
        message=document.get("message") or "",
        at=known[0],
        since=min(known),
    )


def parse_indexes(text: str | None) -> frozenset[int]:
    """Parse indexes: "0,3-5" gives 0, 3, 4 and 5."""
    found: set[int] = set()
    for part in (text or "").split(","):
        low, _, high = part.partition("-")
        if low.isdecimal():
            found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def parse_time(text: object) -> float | None:
    """Parse the API's RFC 3339 time as seconds since the epoch."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def find_manager(document: Json, *path: str) -> str:
    """Return the owner of a field, by its path in `fieldsV1` (Kubernetes, "Server-Side Apply", field management).

    The owner's name is the first word of its user agent or the `fieldManager` of its request. Empty if unknown.
    """
    for entry in document["metadata"].get("managedFields") or ():
        fields: Any = entry.get("fieldsV1") or {}
        for name in path:
            fields = fields.get(name) if isinstance(fields, Mapping) else None
        if fields is not None:
            return entry.get("manager") or ""
    return ""


def parse_conditions(document: Json) -> tuple[Condition, ...]:
    found = (document.get("status") or {}).get("conditions") or ()
    return tuple(
        Condition(
            type=each.get("type") or "",
            holds=each.get("status") == "True",
            reason=each.get("reason") or "",
            message=each.get("message") or "",
            by=find_manager(document, "f:status", "f:conditions", f'k:{{"type":"{each.get("type")}"}}'),
        )
        for each in found
    )


def _container(status: Json) -> ContainerObject:
    state = status.get("state") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    known: Json = waiting or ended or {}
    return ContainerObject(
        waiting=None if waiting is None else waiting.get("reason") or "",
        running="running" in state,
        terminated=None if ended is None else ended.get("reason") or "",
        exit_code=None if ended is None else ended.get("exitCode"),
        message=known.get("message") or "",
        finished_at=None if ended is None else parse_time(ended.get("finishedAt")),
    )
