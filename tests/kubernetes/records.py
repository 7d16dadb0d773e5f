"""Recordings of a real API server, Kubernetes 1.36: watch streams, and answers to single requests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.backends.kubernetes.mirror import Mirror
from orchestrator.backends.kubernetes.objects import (
    JobObject,
    NodeObject,
    PodObject,
    WarningObject,
    parse_job,
    parse_node,
    parse_pod,
    parse_time,
    parse_warning,
)
from orchestrator.backends.kubernetes.sight import SightContext, Traces, View, sight
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Sighting

FOLDER = Path(__file__).parent / "records"
JOB = "train"
KEY = AttemptKey("train-abc", 1)
STREAMS = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.gz") if path.name[:2] != "17")


@dataclass(frozen=True)
class Line:
    t: float  # seconds since the watches began
    resource: str
    event: dict[str, Any]


@cache
def read(name: str) -> tuple[dict[str, Any], ...]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return tuple(json.loads(line) for line in file)


def lines(name: str) -> list[Line]:
    """Return the watch events of a scenario in the order of their arrival."""
    rows = [row for row in read(name) if "step" not in row]
    return [Line(row["t"], row["resource"], {"type": row["type"], "object": row["object"]}) for row in rows]


def epoch(name: str) -> float:
    """Return when the watches began, by the server's clock, to within a second."""
    first = next(line for line in lines(name) if line.resource == "jobs" and line.event["type"] == "ADDED")
    created = parse_time(first.event["object"]["metadata"]["creationTimestamp"])
    assert created is not None
    return created - first.t


def answer(name: str) -> dict[str, Any]:
    """Return the recorded answer with this name."""
    return next(row for row in read("17-api-answers") if row["name"] == name)


class Watched:
    """The backend's mirrors, fed with recorded lines. The container has the recorded name."""

    def __init__(self) -> None:
        # The recorded Jobs lack our annotation, so they count as complete here.
        self.jobs: Mirror[JobObject] = Mirror(lambda document: replace(parse_job(document), whole=True))
        self.pods: Mirror[PodObject] = Mirror(
            lambda document: parse_pod(document, container="worker"), keeps_removed=True
        )
        self.nodes: Mirror[NodeObject] = Mirror(parse_node)
        self.warnings: Mirror[WarningObject] = Mirror(parse_warning)
        self.preemptions: Mirror[WarningObject] = Mirror(parse_warning)

    def feed(self, many: Iterable[Line]) -> None:
        for line in many:
            mirror = {"jobs": self.jobs, "pods": self.pods, "nodes": self.nodes}.get(line.resource)
            if mirror is not None:
                mirror.apply(line.event)
            elif line.resource == "events" and line.event["object"].get("type") == "Warning":
                self.warnings.apply(line.event)
            elif line.resource == "events" and line.event["object"].get("reason") == "Preempted":
                self.preemptions.apply(line.event)

    def view(self, *, sees_nodes: bool = True) -> View:
        messages = {event.name: event.message for event in self.preemptions.objects()}
        found = [replace(pod, removed=True) for pod in self.pods.removed()] + self.pods.objects()
        pods = [replace(pod, preempted=messages.get(pod.name, "")) for pod in found]
        return View(
            job=next((job for job in self.jobs.objects() if job.name == JOB), None),
            pods=tuple(pod for pod in pods if pod.job == JOB),
            nodes={node.name: node for node in self.nodes.objects()} if sees_nodes else None,
            warnings=tuple(self.warnings.objects()),
        )


def look(
    watched: Watched, name: str, t: float, *, traces: Traces | None = None, sees_nodes: bool = True, **context: Any
) -> Sighting:
    """Return the sighting at that second."""
    given = SightContext(**{"now": epoch(name) + t, "settle_s": 0.0, **context})
    began = traces or Traces(replicas=2, submitted=True, began=True)
    return sight(KEY, watched.view(sees_nodes=sees_nodes), began, given)


def shorten(seen: Sighting) -> tuple[str, str, str | None]:
    """Return the presence, the replicas and the kind of the cause.

    A replica is A(live), D(ead) or U(nknown), then + if it has leftovers, then its node.
    """
    letters = {"alive": "A", "dead": "D", "unknown": "U"}
    replicas = " ".join(
        letters[one.liveness.value] + ("+" if one.leftovers else "") + (f"@{one.node}" if one.node else "")
        for one in seen.replicas
    )
    return seen.presence.value, replicas, None if seen.cause is None else seen.cause.kind.value


def until(many: Sequence[Line], t: float) -> list[Line]:
    return [line for line in many if line.t <= t]
