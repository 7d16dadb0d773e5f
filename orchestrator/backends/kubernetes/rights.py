"""Every call that the client makes of the API server, as rights: what a Role must grant, and why.

The client's tests compare this table with what it really calls, and the tests of the manifests with what those grant.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Verbs on a resource, as RBAC names them. `namespaced`: granted by a Role; else by a ClusterRole, and optional."""

    api_group: str  # "" is the core group
    resource: str
    verbs: tuple[str, ...]
    why: str
    namespaced: bool = True


RIGHTS: tuple[Right, ...] = (
    Right(
        api_group="batch",
        resource="jobs",
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="an attempt is a Job: it is created suspended, patched to run once it is whole, watched, and deleted",
    ),
    Right(
        api_group="",
        resource="pods",
        verbs=("delete", "list", "watch"),
        why="a replica is a pod: watched, and deleted at once where it does not heed its Job's end",
    ),
    Right(
        api_group="",
        resource="pods/log",
        verbs=("get",),
        why="what agents and workers print is kept, where their pods share no files with the service",
    ),
    Right(api_group="", resource="services", verbs=("create",), why="the name under which the first replica is found"),
    Right(api_group="", resource="secrets", verbs=("create",), why="a job's command and environment"),
    Right(
        api_group="",
        resource="configmaps",
        verbs=("create",),
        why="the agent, for pods that share no files with the service: one for each version",
    ),
    Right(
        api_group="",
        resource="events",
        verbs=("list", "watch"),
        why="why pods do not start: refused by a quota, volumes that cannot be mounted",
    ),
    Right(
        api_group="",
        resource="nodes",
        verbs=("list", "watch"),
        why="whether a silent node is lost; without it the pods' own conditions must tell",
        namespaced=False,
    ),
)
