"""A real cluster for the tests: their namespace, and direct calls to the API server."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from orchestrator.backends.kubernetes.kubeconfig import load_access
from orchestrator.backends.kubernetes.site import MANAGER, MANAGER_LABEL
from tests.kubernetes.live.options import Options

CLAIM = "runs"
MADE_BY_TESTS = {"app.kubernetes.io/part-of": "elastic-orchestrator-tests"}  # a label of the namespace
_BRIEF = (429, 500, 502, 503, 504)  # from a busy API server or a proxy in front of it
_OF_CONTROL = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


class Cluster:
    """Direct calls to the API server."""

    def __init__(self, options: Options) -> None:
        access = load_access(None, options["context"] or None)
        self.proxy = access.proxy  # of the kubeconfig: a relay must connect to it
        parts = urlsplit(access.proxy or access.server)
        self.host, self.port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
        self.namespace = options["namespace"] or f"orchestrator-test-{secrets.token_hex(4)}"
        self._http = access.connect(timeout_s=30)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, kind: str = "json") -> Any:
        """Send a request and return the answer's JSON. Raises httpx.HTTPError."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": f"application/{kind}"}
        sent = self._http.request
        answer = self._look(path) if method == "GET" else sent(method, path, content=content, headers=headers)
        if answer.is_error:
            raise httpx.HTTPStatusError(f"{method} {path}: {answer.text}", request=answer.request, response=answer)
        return answer.json()

    def _look(self, path: str) -> httpx.Response:
        """Send a GET and repeat it after temporary errors."""
        for pause_s in (1, 2, 4, 8):
            with suppress(httpx.TransportError):
                answer = self._http.get(path)
                if answer.status_code not in _BRIEF:
                    return answer
            time.sleep(pause_s)
        return self._http.get(path)

    def items(self, resource: str, group: str = "api/v1") -> list[Any]:
        found: list[Any] = self.ask("GET", f"/{group}/namespaces/{self.namespace}/{resource}")["items"]
        return found

    def jobs(self, job_id: str) -> list[Any]:
        return [each for each in self.items("jobs", "apis/batch/v1") if each["metadata"]["name"].startswith(job_id)]

    def pods(self, job_id: str) -> list[Any]:
        """Return the running pods of a job, by index."""
        found = [each for each in self.items("pods") if each["metadata"]["name"].startswith(job_id)]
        alive = [each for each in found if each["status"].get("phase") == "Running"]
        return sorted(alive, key=lambda each: str(each["metadata"]["name"]))

    def delete_pod(self, name: str) -> None:
        self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}", {"gracePeriodSeconds": 1})

    def delete_job(self, name: str) -> None:
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"
        self.ask("DELETE", path, {"propagationPolicy": "Background"})

    def delete_all_jobs(self) -> None:
        """Delete the service's Jobs. Other Jobs in the namespace stay."""
        for job in self.items("jobs", "apis/batch/v1"):
            if (job["metadata"].get("labels") or {}).get(MANAGER_LABEL) == MANAGER:
                with suppress(httpx.HTTPStatusError):
                    self.delete_job(job["metadata"]["name"])

    def nodes(self) -> dict[str, Any]:
        """Return the nodes that are ready and accept pods, by name. Empty without the right to list nodes."""
        answer = self._look("/api/v1/nodes")
        found = [] if answer.is_error else answer.json()["items"]
        return {each["metadata"]["name"]: each for each in found if _fit(each)}

    def expendable(self, pods: Sequence[Any]) -> list[str]:
        """Return the nodes of these pods that may be lost, the last pod's first.

        Control-plane nodes are left out. If there is only one node, the list is empty.
        """
        fit = self.nodes()
        names = [str(each["spec"]["nodeName"]) for each in reversed(pods)]
        return [] if len(fit) == 1 else [name for name in names if not _controls(fit.get(name) or {})]

    def cordon(self, node: str, *, unschedulable: bool) -> None:
        patch = {"spec": {"unschedulable": unschedulable}}
        self.ask("PATCH", f"/api/v1/nodes/{node}", patch, kind="merge-patch+json")

    def evict(self, pod: str) -> None:
        """Evict a pod, as a drain does."""
        meta = {"name": pod, "namespace": self.namespace}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.ask("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})

    @contextmanager
    def own_namespace(self, options: Options) -> Iterator[None]:
        """Create the namespace and remove it at the end. An existing namespace stays."""
        made = not self._has_namespace(options) and self._make_namespace()
        claimed = False
        try:
            # Pods are refused until the default service account exists.
            soon(lambda: not made or bool(self.items("serviceaccounts")), "the namespace has no account")
            claimed = bool(options["storage-class"]) and self._claim(options["storage-class"], options["access-mode"])
            yield
        finally:
            if made:
                self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}")
                soon(
                    lambda: not self._has_namespace(options),
                    f"namespace {self.namespace} is not removed",
                    timeout_s=300,
                )
                if options["service-root"] and not (options["claim"] or options["storage-class"]):
                    shutil.rmtree(Path(options["service-root"], self.namespace), ignore_errors=True)
            elif claimed:
                self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{CLAIM}")
            self._http.close()

    def _has_namespace(self, options: Options) -> bool:
        """Return whether the namespace exists. Without the right to see it, a named one counts as existing."""
        code = self._look(f"/api/v1/namespaces/{self.namespace}").status_code
        return code != httpx.codes.NOT_FOUND and (code != httpx.codes.FORBIDDEN or bool(options["namespace"]))

    def _make_namespace(self) -> bool:
        # The standards `baseline` and `restricted` do not allow hostPath.
        labels = {"pod-security.kubernetes.io/enforce": "privileged", **MADE_BY_TESTS}
        meta = {"name": self.namespace, "labels": labels}
        self.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        return True

    def _claim(self, storage_class: str, access_mode: str) -> bool:
        """Create the claim if it does not exist. Returns whether it was created."""
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": {
                "accessModes": [access_mode],
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": "5Gi"}},
            },
        }
        try:
            self.ask("POST", f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims", claim)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
            return False
        return True


def soon(holds: Callable[[], bool], what: str, *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def _fit(node: Any) -> bool:
    spec, conditions = node.get("spec") or {}, node["status"].get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    tainted = any(each["effect"] != "PreferNoSchedule" for each in spec.get("taints") or ())
    return ready and not tainted and not spec.get("unschedulable")


def _controls(node: Any) -> bool:
    labels = (node.get("metadata") or {}).get("labels") or {}
    return any(label in labels for label in _OF_CONTROL)
