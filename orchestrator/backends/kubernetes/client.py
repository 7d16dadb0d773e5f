"""Call the API server, each call with a timeout, and return its JSON. Nothing is judged here.

A server that does not answer, or answers 5xx, 429 (too busy) or 401 (unknown credentials), raises BackendUnavailable.
It may have carried out the request all the same. `rights.py` lists the rights that the calls need.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from orchestrator.backends.kubernetes.kubeconfig import Access
from orchestrator.backends.kubernetes.rights import Right
from orchestrator.backends.kubernetes.site import KUEUE
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused, NotPermitted

Json = dict[str, Any]

_PAGE = 500
_MERGE = {"Content-Type": "application/merge-patch+json"}
_GROUPS = {"jobs": "apis/batch/v1"}  # others are of the core group, except _EXTENSIONS
_EXTENSIONS = {"workloads": KUEUE}  # their groups; the server names the version
_CLUSTER_SCOPED = frozenset({"nodes"})
_QUOTA = "exceeded quota"
_NO_RIGHT = ("cannot create resource", "cannot patch resource", "cannot get resource", "cannot delete resource")
_MAX_LINE_BYTES = 16 * 1024 * 1024
SILENT = "the Kubernetes API server does not answer"
_QUIET_S = 600.0  # a log stream that is quiet for this long may be dead, so it is reopened


class Expired(Exception):
    """The resource version is too old to watch from (410). List again."""


class Forbidden(NotPermitted):
    """The service has no right to make this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects the objects of a resource to list and watch."""

    resource: str
    labels: str | None = None
    fields: str | None = None
    is_optional: bool = False  # the service works without the right to read it


class LogStream:
    """Yields a log's lines in lists, as they arrive. Read it in one thread."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[list[bytes]]:
        rest = b""
        for block in self._answer.iter_bytes():
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                rest = b""
            if whole:
                yield whole
        if rest:
            yield [rest]

    def break_off(self) -> None:
        """End the stream for its reader. Call this from another thread."""
        stream = self._answer.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class KubernetesClient:
    """A client for one namespace. Thread-safe."""

    def __init__(
        self, access: Access, *, namespace: str, timeout_s: float, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.namespace = namespace
        self._timeout_s = timeout_s
        self._http = access.connect(timeout_s=timeout_s, transport=transport)

    def close(self) -> None:
        self._http.close()

    def create(self, resource: str, manifest: Mapping[str, Any], *, dry_run: bool = False) -> tuple[Json, list[str]]:
        """Create an object; return it and the server's warnings.

        Raises FileExistsError if the name is taken, LaunchRefused, BackendBusy, BackendUnavailable.
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        answer = self._ask("POST", self._path(resource), params=query, content=json.dumps(manifest))
        if answer.status_code == httpx.codes.CONFLICT and _reason(answer) == "AlreadyExists":
            raise FileExistsError(_message(answer))
        _require(answer)
        return _document(answer), answer.headers.get_list("warning")

    def job(self, name: str) -> Json | None:
        """Return the Job. None if the server says that it does not exist."""
        answer = self._ask("GET", f"{self._path('jobs')}/{name}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        _require(answer)
        return _document(answer)

    def patch_job(self, name: str, patch: Mapping[str, Any]) -> Json:
        """Apply a JSON merge patch (RFC 7396). Idempotent."""
        answer = self._ask("PATCH", f"{self._path('jobs')}/{name}", content=json.dumps(patch), headers=_MERGE)
        _require(answer)
        return _document(answer)

    def delete_job(self, name: str) -> bool:
        """Delete the Job and, in the background, all that it owns. Returns False if there was no Job.

        Without a propagation policy, a raw DELETE leaves running pods as orphans (observed).
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        return self._delete(f"{self._path('jobs')}/{name}", body)

    def delete_pod(self, name: str, *, grace_s: int) -> bool:
        """Delete a pod. Raises ValueError if `grace_s` is 0, since that drops the object of a pod that may run."""
        if grace_s < 1:
            raise ValueError("grace_s must be at least 1; with 0 the pod's object is removed but the pod may still run")
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_s}
        return self._delete(f"{self._path('pods')}/{name}", body)

    def version(self) -> Json:
        """Return the server's version. Needs no right."""
        answer = self._ask("GET", "/version")
        _require(answer)
        return _document(answer)

    def preferred_version(self, group: str) -> str | None:
        """Return the group's preferred version, such as kueue.x-k8s.io/v1beta2. None if the server lacks the group.

        Needs no right beyond the cluster role system:discovery.
        """
        answer = self._ask("GET", f"/apis/{group}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        _require(answer)
        version = (_document(answer).get("preferredVersion") or {}).get("groupVersion")
        if not version:
            raise BackendUnavailable(f"the API server names no version of {group}")
        return str(version)

    def may(self, right: Right, verb: str) -> bool:
        """Whether the service has this right. Every user may ask for its own rights."""
        resource, _, subresource = right.resource.partition("/")
        asked: Json = {"group": right.api_group, "resource": resource, "subresource": subresource, "verb": verb}
        asked |= {"namespace": self.namespace} if right.namespaced else {}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._ask("POST", path, content=json.dumps(review))
        _require(answer)
        return (_document(answer).get("status") or {}).get("allowed") is True

    @contextmanager
    def follow_log(self, pod: str, container: str, *, since: str | None) -> Iterator[LogStream]:
        """Stream the container's output until it ends, each line with its time, from the whole second `since` on.

        Raises BackendUnavailable (also while reading), and LaunchRefused if the pod no longer exists.
        """
        query = {"container": container, "follow": "true", "timestamps": "true"}
        query |= {} if since is None else {"sinceTime": since}
        timeouts = httpx.Timeout(self._timeout_s, read=_QUIET_S)
        try:
            with self._http.stream(
                "GET", f"{self._path('pods')}/{pod}/log", params=query, timeout=timeouts, headers={"Accept": "*/*"}
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    _require(answer)
                yield LogStream(answer)
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"the API server's log stream failed: {_describe(error)}") from error

    def list(self, selection: Selection) -> tuple[list[Json], str]:
        """Return all objects and the version to watch from. Raises Expired, Forbidden, BackendUnavailable."""
        items: list[Json] = []
        path = self._path(selection.resource)
        continue_token: str | None = None
        while True:
            query = _query(selection) | {"limit": str(_PAGE)} | ({"continue": continue_token} if continue_token else {})
            answer = self._ask("GET", path, params=query)
            if answer.status_code == httpx.codes.GONE:
                raise Expired(_message(answer))
            _require(answer)
            page = _document(answer)
            meta = page.get("metadata") or {}
            items += page.get("items") or []
            continue_token = meta.get("continue")
            if not continue_token:
                return items, str(meta.get("resourceVersion", ""))

    def watch(self, selection: Selection, version: str, *, watch_s: float) -> Iterator[Json]:
        """Yield events from `version` on. The server ends the stream after `watch_s`.

        The first item is empty and means that the server answered. Raises Expired, Forbidden, BackendUnavailable.
        """
        query = _query(selection) | {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
        }
        timeouts = httpx.Timeout(self._timeout_s, read=watch_s + self._timeout_s)
        try:
            with self._http.stream("GET", self._path(selection.resource), params=query, timeout=timeouts) as answer:
                if answer.status_code == httpx.codes.GONE:
                    raise Expired("the resource version is too old")
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    _require(answer)
                yield {}
                yield from _lines(answer)
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"the API server's watch failed: {_describe(error)}") from error

    def _delete(self, path: str, body: Mapping[str, Any]) -> bool:
        answer = self._ask("DELETE", path, content=json.dumps(body))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False
        _require(answer)
        return True

    def _path(self, resource: str) -> str:
        group = self._find_group(resource)
        return (
            f"/{group}/{resource}"
            if resource in _CLUSTER_SCOPED
            else f"/{group}/namespaces/{self.namespace}/{resource}"
        )

    def _find_group(self, resource: str) -> str:
        if resource not in _EXTENSIONS:
            return _GROUPS.get(resource, "api/v1")
        version = self.preferred_version(_EXTENSIONS[resource])
        if version is None:
            raise BackendUnavailable(f"the cluster has no {_EXTENSIONS[resource]}")
        return f"apis/{version}"

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        given = {"Content-Type": "application/json"} if content is not None else {}
        try:
            return self._http.request(
                method, path, params=params, content=content, headers={**given, **(headers or {})}
            )
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"{SILENT}: {_describe(error)}") from error


def _query(selection: Selection) -> dict[str, str]:
    given = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {name: value for name, value in given.items() if value is not None}


def _lines(answer: httpx.Response) -> Iterator[Json]:
    """Parse one JSON object per line. The server answers an expired watch with 200 and an ERROR line (observed)."""
    for line in answer.iter_lines():
        if not line.strip():
            continue
        if len(line) > _MAX_LINE_BYTES:
            raise BackendUnavailable("the API server's watch sent a line that is too long")
        try:
            event = json.loads(line)
        except ValueError as error:
            raise BackendUnavailable("the API server's watch sent a line that is not JSON") from error
        if event.get("type") == "ERROR":
            status = event.get("object") or {}
            if status.get("code") == httpx.codes.GONE:
                raise Expired(str(status.get("message", "")))
            raise BackendUnavailable(f"the API server's watch ended: {status.get('message', 'no reason given')}")
        yield event


def _require(answer: httpx.Response) -> None:
    """Raise the error that an unsuccessful answer means."""
    code, message = answer.status_code, _message(answer)
    if answer.is_success:
        return
    if code == httpx.codes.FORBIDDEN and _QUOTA in message:
        raise BackendBusy(f"a quota of the namespace is reached: {message}")
    if code == httpx.codes.FORBIDDEN and (answer.request.method == "GET" or any(no in message for no in _NO_RIGHT)):
        raise Forbidden(f"the service has no right to do this in the cluster: {message}")
    if code == httpx.codes.UNAUTHORIZED:
        raise BackendUnavailable(f"the API server does not accept the service's credentials: {message}")
    if code == httpx.codes.NOT_FOUND and "namespaces" in message:
        raise BackendUnavailable(f"the namespace does not exist: {message}")
    if code in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT, httpx.codes.TOO_MANY_REQUESTS) or code >= 500:
        raise BackendUnavailable(f"the API server answered {code}: {message}")
    raise LaunchRefused(f"Kubernetes refused the request: {message}")


def _document(answer: httpx.Response) -> Json:
    try:
        document = answer.json()
    except ValueError as error:
        raise BackendUnavailable("the API server's answer is not JSON") from error
    if not isinstance(document, dict):
        raise BackendUnavailable("the API server's answer is not an object")
    return document


def _status(answer: httpx.Response) -> Json:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _reason(answer: httpx.Response) -> str:
    return str(_status(answer).get("reason", ""))


def _message(answer: httpx.Response) -> str:
    return str(_status(answer).get("message") or answer.reason_phrase)[:1000]


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
