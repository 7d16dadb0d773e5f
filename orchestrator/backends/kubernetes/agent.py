"""Provide this project's package to a pod whose image lacks it. Pure.

The package comes from the shared run directory, from a ConfigMap that the container unpacks, or from an init container
that copies it out of our own image. One of the three is always configured.
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from orchestrator.backends.kubernetes.security import secure_container
from orchestrator.backends.kubernetes.site import CONTAINER, MANAGER, MANAGER_LABEL, UNPACKER, KubernetesSite

_AGENT_DIR = "/opt/elastic-orchestrator/agent"  # for a package that is not in the run directory
_PACKED_DIR, _PACKED_FILE = "/opt/elastic-orchestrator/packed", "agent.zip"
_UNPACK = (
    "import os, sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2]); "
    "os.execv(sys.executable, [sys.executable, '-m', 'trainer.elastic.pod', sys.argv[3]])"
)

Manifest = dict[str, Any]


def agent_path(site: KubernetesSite) -> Path | None:
    """Return the package's path in the pods. None if the image contains it."""
    return Path(_AGENT_DIR) if site.agent_image or site.agent_map else site.agent_dir


def render_agent(name: str, namespace: str, packed: bytes) -> Manifest:
    """Render the ConfigMap that all jobs of this service version share. Jobs do not own it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGER_LABEL: MANAGER}},
        "immutable": True,
        "binaryData": {_PACKED_FILE: b64encode(packed).decode()},
    }


def start_agent(site: KubernetesSite, launch: str) -> list[str]:
    """Return Python's arguments in the container. `launch` is the path of the launch document."""
    if site.agent_map is None:
        return ["-m", "trainer.elastic.pod", launch]
    return ["-c", _UNPACK, f"{_PACKED_DIR}/{_PACKED_FILE}", _AGENT_DIR, launch]


def agent_mounts(site: KubernetesSite) -> list[Manifest]:
    return [
        *([{"name": "agent", "mountPath": _AGENT_DIR}] if site.agent_image or site.agent_map else []),
        *([{"name": "packed", "mountPath": _PACKED_DIR, "readOnly": True}] if site.agent_map else []),
    ]


def agent_volumes(site: KubernetesSite) -> list[Manifest]:
    return [
        *([{"name": "agent", "emptyDir": {}}] if site.agent_image or site.agent_map else []),
        *([{"name": "packed", "configMap": {"name": site.agent_map}}] if site.agent_map else []),
    ]


def render_unpack_container(site: KubernetesSite) -> Manifest:
    """Render the init container that copies the agent from our image to where the user's image finds it."""
    return {
        "name": UNPACKER,
        "image": site.agent_image,
        "command": ["python3", "-m", "trainer.elastic.pod", "--unpack", _AGENT_DIR],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**secure_container(site), "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "agent", "mountPath": _AGENT_DIR}],
    }


def add_agent_path(job: Manifest, site: KubernetesSite) -> Manifest:
    """Add the package to the container's PYTHONPATH and return the Job.

    An overlay may set PYTHONPATH, for example for a mounted torch. The agent's path comes first.
    """
    agent = agent_path(site)
    if agent is None:
        return job
    template, pod = job["spec"]["template"], job["spec"]["template"]["spec"]
    containers = [_with_path(each, str(agent)) if each["name"] == CONTAINER else each for each in pod["containers"]]
    spec = {**job["spec"], "template": {**template, "spec": {**pod, "containers": containers}}}
    return {**job, "spec": spec}


def _with_path(container: Manifest, agent: str) -> Manifest:
    given = container.get("env") or []
    found = next((each.get("value", "") for each in given if each["name"] == "PYTHONPATH"), "")
    path = ":".join([agent, *(part for part in found.split(":") if part and part != agent)])
    rest = [each for each in given if each["name"] != "PYTHONPATH"]
    return {**container, "env": [*rest, {"name": "PYTHONPATH", "value": path}]}
