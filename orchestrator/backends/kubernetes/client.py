"""The API server's calls, each with a time-out. What they return is the server's JSON; nothing is judged here.

A server that does not answer, answers 5xx, is too busy (429) or knows us not (401) raises BackendUnavailable: a request
that changes something may have been carried out all the same. `rights.py` lists all that is asked.
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
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused, NotPermitted

Json = dict[str, Any]

_PAGE = 500
_MERGE = {"Content-Type": "application/merge-patch+json"}
_GROUPS = {"jobs": "apis/batch/v1"}  # the others are of the core group
_OF_THE_CLUSTER = frozenset({"nodes"})
_QUOTA = "exceeded quota"
_NO_RIGHT = ("cannot create resource", "cannot patch resource", "cannot get resource", "cannot delete resource")
_MOST_OF_A_LINE = 16 * 1024 * 1024
SILENT = "the Kubernetes API server does not answer"
_QUIET_S = 600.0  # a log's stream in which nothing came for so long may be none any more: it is begun anew


class Expired(Exception):
    """The resource version is too old to go on from: list again (410)."""


class Forbidden(NotPermitted):
    """There is no right to ask for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What of a resource is listed and watched."""

    resource: str
    labels: str | None = None
    fields: str | None = None


class LogStream:
    """Lines of a log as they come, those that came together in one list. Read in one thread."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[list[bytes]]:
        rest = b""
        for block in self._answer.iter_bytes():
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > _MOST_OF_A_LINE:
                rest = b""
            if whole:
                yield whole
        if rest:
            yield [rest]

    def break_off(self) -> None:
        """From another thread: whoever reads hears of an end."""
        stream = self._answer.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class KubernetesClient:
    """Of one namespace. Safe in several threads."""

    def __init__(
        self, access: Access, *, namespace: str, timeout_s: float, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.namespace = namespace
        self._timeout_s = timeout_s
        self._http = access.connect(timeout_s=timeout_s, transport=transport)

    def close(self) -> None:
        self._http.close()

    def create(self, resource: str, manifest: Mapping[str, Any], *, dry_run: bool = False) -> tuple[Json, list[str]]:
        """The created object and the server's warnings. Raises FileExistsError for a name that is taken, LaunchRefused,
        BackendBusy, BackendUnavailable."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        answer = self._ask("POST", self._path(resource), params=query, content=json.dumps(manifest))
        if answer.status_code == httpx.codes.CONFLICT and _reason(answer) == "AlreadyExists":
            raise FileExistsError(_message(answer))
        _require(answer)
        return _document(answer), answer.headers.get_list("warning")

    def job(self, name: str) -> Json | None:
        """None where the server says that there is none."""
        answer = self._ask("GET", f"{self._path('jobs')}/{name}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        _require(answer)
        return _document(answer)

    def patch_job(self, name: str, patch: Mapping[str, Any]) -> Json:
        """A JSON merge patch (RFC 7396); idempotent."""
        answer = self._ask("PATCH", f"{self._path('jobs')}/{name}", content=json.dumps(patch), headers=_MERGE)
        _require(answer)
        return _document(answer)

    def delete_job(self, name: str) -> bool:
        """Delete the Job and, behind it, all that it owns; False where there was none.

        Without a propagation policy a raw DELETE leaves running pods behind as orphans (seen).
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        return self._delete(f"{self._path('jobs')}/{name}", body)

    def delete_pod(self, name: str, *, grace_s: int) -> bool:
        """`grace_s` of 0 is refused: it forgets a pod that may still run."""
        if grace_s < 1:
            raise ValueError("a pod needs at least a second, else it is forgotten and not ended")
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_s}
        return self._delete(f"{self._path('pods')}/{name}", body)

    def version(self) -> Json:
        """The server's; everybody may ask."""
        answer = self._ask("GET", "/version")
        _require(answer)
        return _document(answer)

    def serves(self, group: str) -> bool:
        """Whether there is such an API group; everybody may ask (the cluster role system:discovery)."""
        answer = self._ask("GET", f"/apis/{group}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False
        _require(answer)
        return True

    def may(self, right: Right, verb: str) -> bool:
        """Whether this is granted; everybody may ask that of himself."""
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
        """What the container prints, each line with its time, until it ends; `since`: a second, of which all comes.

        Raises BackendUnavailable, here and while it is read, LaunchRefused where there is no such pod any more.
        """
        query = {"container": container, "follow": "true", "timestamps": "true"}
        query |= {} if since is None else {"sinceTime": since}
        patience = httpx.Timeout(self._timeout_s, read=_QUIET_S)
        try:
            with self._http.stream(
                "GET", f"{self._path('pods')}/{pod}/log", params=query, timeout=patience, headers={"Accept": "*/*"}
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    _require(answer)
                yield LogStream(answer)
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"the API server's log broke off: {_said(error)}") from error

    def list(self, selection: Selection) -> tuple[list[Json], str]:
        """All objects, and the resource version from which to watch. Raises Expired, Forbidden, BackendUnavailable."""
        items: list[Json] = []
        going_on: str | None = None
        while True:
            query = _query(selection) | {"limit": str(_PAGE)} | ({"continue": going_on} if going_on else {})
            answer = self._ask("GET", self._path(selection.resource), params=query)
            if answer.status_code == httpx.codes.GONE:
                raise Expired(_message(answer))
            _require(answer)
            page = _document(answer)
            meta = page.get("metadata") or {}
            items += page.get("items") or []
            going_on = meta.get("continue")
            if not going_on:
                return items, str(meta.get("resourceVersion", ""))

    def watch(self, selection: Selection, version: str, *, watch_s: float) -> Iterator[Json]:
        """Events from that version on, until the server ends the stream, which it does after `watch_s`.

        The first item is an empty one: the server has answered. Raises Expired, Forbidden, BackendUnavailable.
        """
        query = _query(selection) | {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
        }
        patience = httpx.Timeout(self._timeout_s, read=watch_s + self._timeout_s)
        try:
            with self._http.stream("GET", self._path(selection.resource), params=query, timeout=patience) as answer:
                if answer.status_code == httpx.codes.GONE:
                    raise Expired("the resource version is too old")
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    _require(answer)
                yield {}
                yield from _lines(answer)
        except httpx.HTTPError as error:
            raise BackendUnavailable(f"the API server's watch broke off: {_said(error)}") from error

    def _delete(self, path: str, body: Mapping[str, Any]) -> bool:
        answer = self._ask("DELETE", path, content=json.dumps(body))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False
        _require(answer)
        return True

    def _path(self, resource: str) -> str:
        group = _GROUPS.get(resource, "api/v1")
        return (
            f"/{group}/{resource}"
            if resource in _OF_THE_CLUSTER
            else f"/{group}/namespaces/{self.namespace}/{resource}"
        )

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
            raise BackendUnavailable(f"{SILENT}: {_said(error)}") from error


def _query(selection: Selection) -> dict[str, str]:
    given = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {name: value for name, value in given.items() if value is not None}


def _lines(answer: httpx.Response) -> Iterator[Json]:
    """One JSON object a line. An expired watch is answered 200, with a line of type ERROR (seen)."""
    for line in answer.iter_lines():
        if not line.strip():
            continue
        if len(line) > _MOST_OF_A_LINE:
            raise BackendUnavailable("the API server's watch sent a line that is too long")
        try:
            event = json.loads(line)
        except ValueError as error:
            raise BackendUnavailable("the API server's watch sent a line that is no JSON") from error
        if event.get("type") == "ERROR":
            status = event.get("object") or {}
            if status.get("code") == httpx.codes.GONE:
                raise Expired(str(status.get("message", "")))
            raise BackendUnavailable(f"the API server's watch ended: {status.get('message', 'no reason is given')}")
        yield event


def _require(answer: httpx.Response) -> None:
    """Raise what an answer without success means."""
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
        raise BackendUnavailable(f"the namespace is not there: {message}")
    if code in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT, httpx.codes.TOO_MANY_REQUESTS) or code >= 500:
        raise BackendUnavailable(f"the API server answers {code}: {message}")
    raise LaunchRefused(f"Kubernetes refuses it: {message}")


def _document(answer: httpx.Response) -> Json:
    try:
        document = answer.json()
    except ValueError as error:
        raise BackendUnavailable("the API server's answer is no JSON") from error
    if not isinstance(document, dict):
        raise BackendUnavailable("the API server's answer is no object")
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


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
