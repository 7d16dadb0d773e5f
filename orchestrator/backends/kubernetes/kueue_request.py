"""What a Job in a queue tells Kueue: its queue and priority, its smallest size, and its topology. Pure.

Labels and annotations: Kueue, "Labels and Annotations".
"""

from __future__ import annotations

from typing import Any

from orchestrator.backends.kubernetes.site import (
    EQUAL_COMPLETIONS_ANNOTATION,
    MIN_PARALLELISM_ANNOTATION,
    PREFERRED_TOPOLOGY_ANNOTATION,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    REQUIRED_TOPOLOGY_ANNOTATION,
)
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.specs.spec import Placement

Manifest = dict[str, Any]


def label_job(place: Placement) -> dict[str, str]:
    if place.queue is None:
        return {}
    given = {QUEUE_LABEL: place.queue, PRIORITY_LABEL: place.priority_class}
    return {name: value for name, value in given.items() if value is not None}


def annotate_job(place: Placement, plan: LaunchPlan) -> dict[str, str]:
    """Let Kueue admit an elastic job with as few pods as it can train on (partial admission)."""
    if place.queue is None or plan.min_nodes == plan.max_nodes:
        return {}
    return {MIN_PARALLELISM_ANNOTATION: str(plan.min_nodes), EQUAL_COMPLETIONS_ANNOTATION: "true"}


def annotate_pods(place: Placement) -> Manifest:
    """Return the annotations of the pod template's metadata, if there are any."""
    if place.queue is None:
        return {}
    given = {
        REQUIRED_TOPOLOGY_ANNOTATION: place.required_topology,
        PREFERRED_TOPOLOGY_ANNOTATION: place.preferred_topology,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    return {"annotations": wanted} if wanted else {}
