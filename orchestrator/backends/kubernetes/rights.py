"""The rights that a Role must grant for the client's calls to the API server, and why.

Tests compare this table with the client's calls and with the rights that the manifests grant.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.backends.kubernetes.site import KUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Verbs on a resource, in RBAC terms. A Role grants namespaced ones. Others need a ClusterRole."""

    api_group: str  # "" is the core group
    resource: str
    verbs: tuple[str, ...]
    why: str
    namespaced: bool = True
    optional: bool = False  # jobs run without it


RIGHTS: tuple[Right, ...] = (
    Right(
        api_group="batch",
        resource="jobs",
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="an attempt is a Job, which is created suspended, patched to run once complete, watched, and deleted",
    ),
    Right(
        api_group="",
        resource="pods",
        verbs=("delete", "list", "watch"),
        why="a replica is a pod, which is watched, and deleted at once if it outlives its Job",
    ),
    Right(
        api_group="",
        resource="pods/log",
        verbs=("get",),
        why="the service stores the output of pods that share no files with it",
    ),
    Right(api_group="", resource="services", verbs=("create",), why="the name of the first replica"),
    Right(api_group="", resource="secrets", verbs=("create",), why="a job's command and environment"),
    Right(
        api_group="",
        resource="configmaps",
        verbs=("create",),
        why="the agent's package for pods that share no files with the service, one per version",
    ),
    Right(
        api_group="",
        resource="events",
        verbs=("list", "watch"),
        why="why pods do not start, such as a quota or a volume that cannot be mounted",
        optional=True,
    ),
    Right(
        api_group=KUEUE,
        resource="workloads",
        verbs=("list", "watch"),
        why="what a job in a queue of Kueue waits for, and why Kueue evicts it; without it, every eviction counts as a "
        "preemption",
        optional=True,
    ),
    Right(
        api_group="",
        resource="nodes",
        verbs=("list", "watch"),
        why="whether a silent node is lost; without this right the pods' own conditions decide",
        namespaced=False,
        optional=True,
    ),
)
