"""Apply a strategic merge patch, as far as Jobs need it (kubernetes.io/docs, "Update API Objects in Place"). Pure.

Objects are merged, null removes a field, lists with a merge key are merged by it, and any other list is replaced.
`$patch: delete` in an object or an element removes it. `$patch: replace` replaces instead of merging.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The merge key of each list: `patchMergeKey` in the API's schema.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_OPTIONAL = ("labels", "annotations")
_OBJECTS = (
    *(("metadata", *rest) for rest in ((), ("labels",), ("annotations",))),
    *(("spec", "template", *rest) for rest in (("spec",), ("metadata",), ("metadata", "labels"))),
)


def apply_overlay(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patched document. Changes neither argument."""
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    merged = dict(document)
    for name, value in patch.items():
        if value is None or (isinstance(value, Mapping) and value.get("$patch") == "delete"):
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            found = merged.get(name)
            merged[name] = apply_overlay(found if isinstance(found, Mapping) else {}, value)
        elif isinstance(value, (list, tuple)) and name in _KEYS and all(isinstance(each, Mapping) for each in value):
            merged[name] = _merge_lists(merged.get(name) or [], value, _KEYS[name])
        else:
            merged[name] = list(value) if isinstance(value, tuple) else value
    return merged


def find_fault(job: Mapping[str, Any], container: str) -> str | None:
    """Return the first missing or malformed field that makes a patched Job unusable, or None."""
    for path in _OBJECTS:
        found: Any = job
        for name in path:
            found = found.get(name, {} if name in _OPTIONAL else None)
            if not isinstance(found, Mapping):
                return f"{'.'.join(path)} is not an object"
    pod = job["spec"]["template"]["spec"]
    containers = pod.get("containers")
    if not _is_named(containers) or not _is_named(pod.get("initContainers", [])):
        return "spec.template.spec.containers or initContainers is not a list of containers with names"
    found = next((each for each in containers if each["name"] == container), None)
    if found is None:
        return f"no container is named {container}"
    if not _is_named(found.get("env", [])):
        return f"env of container {container} is not a list of variables"
    number = next((each["name"] for each in found.get("env", []) if not isinstance(each.get("value", ""), str)), None)
    return None if number is None else f"the value of {number} in env of container {container} is not text"


def _is_named(given: object) -> bool:
    return isinstance(given, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in given
    )


def _merge_lists(found: list[Any], patch: list[Any] | tuple[Any, ...], key: str) -> list[Any]:
    if any(each.get("$patch") == "replace" for each in patch):
        return [dict(each) for each in patch if "$patch" not in each]
    merged = [dict(each) for each in found]
    for each in patch:
        place = next((at for at, one in enumerate(merged) if one.get(key) == each.get(key)), None)
        if each.get("$patch") == "delete":
            merged = [one for at, one in enumerate(merged) if at != place]
        elif place is None:
            merged.append(apply_overlay({}, each))
        else:
            merged[place] = apply_overlay(merged[place], each)
    return merged
