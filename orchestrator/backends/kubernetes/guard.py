"""Limit what a job's own overlay may patch, so that its pods gain no further rights. Pure.

The service may create any pod, and a submitter acts through it. Without this limit, a submitter could mount the
namespace's Secrets (including the service's own token) or the node's files, use another service account, or receive
the service's traffic through its labels. The lists name allowed fields, so fields that Kubernetes adds later are
refused. A job may not change what the cluster's own overlay adds, or its command could use another container's mounts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

_ALLOWED: dict[str, frozenset[str]] = {
    "": frozenset({"metadata", "spec"}),
    "metadata": frozenset({"annotations", "labels"}),
    "spec": frozenset({"activeDeadlineSeconds", "template"}),
    "spec.template": frozenset({"metadata", "spec"}),
    # Services and policies select pods by labels. Clusters grant roles, networks and containers by annotations.
    "spec.template.metadata": frozenset(),
}
_POD = frozenset(
    {"affinity", "containers", "dnsConfig", "enableServiceLinks", "hostAliases", "imagePullSecrets", "initContainers"}
    | {"nodeSelector", "resourceClaims", "schedulerName", "tolerations"}
    | {"topologySpreadConstraints", "volumes"}
)
_CONTAINER = frozenset(
    {"args", "command", "env", "image", "imagePullPolicy", "name", "ports", "resources", "restartPolicy", "stdin"}
    | {"tty", "volumeDevices", "volumeMounts", "workingDir"}
)
_VOLUME = frozenset({"configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "name", "persistentVolumeClaim"})
_SOURCE = frozenset({"configMapKeyRef", "fieldRef", "resourceFieldRef"})
_PORT = frozenset({"containerPort", "name", "protocol"})
_CLAIM = frozenset(
    {"accessModes", "resources", "storageClassName", "volumeMode"}
)  # excludes dataSource, which copies another volume
_RESERVED = ("elastic-orchestrator/", "kueue.x-k8s.io/")  # labels and annotations that control Jobs
_NAMED = ("containers", "initContainers", "volumes")
_SHARED = frozenset(
    {*_NAMED, "hostAliases", "imagePullSecrets", "tolerations"}
)  # both overlays may add entries to these
_PATCH = "$patch"  # replacing or deleting instead of merging would drop what the service sets


def find_excess(overlay: Mapping[str, Any], *, cluster_overlay: Mapping[str, Any], agent: str) -> str | None:
    """Return the path of the first field that a job may not set, or None.

    `cluster_overlay` is the cluster's own overlay. `agent` is the name of the container that runs the job.
    """
    return next(_excess(overlay, cluster_overlay, agent), None)


def _excess(overlay: Mapping[str, Any], cluster_overlay: Mapping[str, Any], agent: str) -> Iterator[str]:
    for path, allowed in _ALLOWED.items():
        yield from _beyond(_at(overlay, path), allowed, path)
    for path in ("metadata.labels", "metadata.annotations"):
        yield from (f"{path}.{name}" for name in _at(overlay, path) if str(name).startswith(_RESERVED))
    path = "spec.template.spec"
    pod, fixed = _at(overlay, path), _at(cluster_overlay, path)
    yield from _beyond(pod, _POD - (fixed.keys() - _SHARED), path)
    for kind in _NAMED:
        taken = {each.get("name") for each in _objects(fixed.get(kind))} - {agent, None}
        yield from (f"{path}.{kind}.{name}" for name in map(_name_of, _objects(pod.get(kind))) if name in taken)
        if kind in fixed and pod.get(kind, ()) is None:
            yield f"{path}.{kind}"  # null would remove the cluster's list
    volumes = {each.get("name") for each in _objects(fixed.get("volumes"))}
    for kind in ("containers", "initContainers"):
        for each in _objects(pod.get(kind)):
            yield from _beyond_container(each, f"{path}.{kind}", volumes)
    for each in _objects(pod.get("volumes")):
        yield from _beyond(each, _VOLUME | {_PATCH}, f"{path}.volumes")
        yield from _beyond(_at(each, "ephemeral.volumeClaimTemplate.spec"), _CLAIM, f"{path}.volumes.ephemeral")


def _beyond_container(container: Mapping[str, Any], path: str, fixed: Collection[object]) -> Iterator[str]:
    yield from _beyond(container, _CONTAINER, path)
    for each in _objects(container.get("volumeMounts")):
        if (name := _name_of(each)) in fixed:
            yield f"{path}.volumeMounts.{name}"
    for each in _objects(container.get("env")):
        source = each.get("valueFrom")
        yield from _beyond(source if isinstance(source, Mapping) else {}, _SOURCE, f"{path}.env.valueFrom")
    for each in _objects(container.get("ports")):
        yield from _beyond(each, _PORT, f"{path}.ports")


def _beyond(given: Mapping[str, Any], allowed: frozenset[str], path: str) -> Iterator[str]:
    for name in given:
        if name not in allowed:
            yield f"{path}.{name}".lstrip(".")


def _at(overlay: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the object at a path. Anything else counts as empty; the Job is refused for it later."""
    found: Any = overlay
    for name in path.split(".") if path else ():
        found = found.get(name)
        if not isinstance(found, Mapping):
            return {}
    return found if isinstance(found, Mapping) else {}


def _name_of(given: Mapping[str, Any]) -> str | None:
    """Return the name. Anything but text counts as no name; the Job is refused for it later."""
    name = given.get("name")
    return name if isinstance(name, str) else None


def _objects(given: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, (list, tuple)) else []
