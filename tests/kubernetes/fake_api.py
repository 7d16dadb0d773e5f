"""A fake API server with a few resources over HTTP: list, watch, create, patch and delete.

Refusals have recorded bodies. Every call is recorded under its RBAC name.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from orchestrator.backends.kubernetes.overlay import apply_overlay
from tests.kubernetes import records

Json = dict[str, Any]
KINDS = {
    "jobs": ("batch/v1", "Job"),
    "pods": ("v1", "Pod"),
    "services": ("v1", "Service"),
    "secrets": ("v1", "Secret"),
    "configmaps": ("v1", "ConfigMap"),
    "namespaces": ("v1", "Namespace"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "selfsubjectaccessreviews": ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
    "events": ("v1", "Event"),
    "nodes": ("v1", "Node"),
    "workloads": ("kueue.x-k8s.io/v1beta2", "Workload"),
}
_VERSION = "1.36"


class Refusal(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(body.get("message"))
        self.status, self.body = status, body


def recorded(name: str, old: str = "", new: str = "") -> Refusal:
    """Return the recorded answer with this name. `new` replaces `old` in its body."""
    found = records.answer(name)
    text = json.dumps(found["body"])
    return Refusal(found["status"], json.loads(text.replace(old, new) if old else text))


@dataclass
class Store:
    """The objects and the history of their changes. Guarded by `changed`."""

    namespace: str = "training"
    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 100
    oldest: int = 0  # older versions have expired
    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {name: {} for name in KINDS})
    history: list[tuple[int, str, str, Json]] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # (API group, resource, verb)
    groups: set[str] = field(default_factory=lambda: {"batch", "kueue.x-k8s.io"})  # API groups of the server
    denied: set[tuple[str, str]] = field(default_factory=set)  # (resource, verb)
    next_refusal: dict[tuple[str, str], Refusal] = field(default_factory=dict)  # for the next such call
    silent: threading.Event = field(default_factory=threading.Event)  # while it is set, no request is answered
    closing: threading.Event = field(default_factory=threading.Event)
    on_delete: Callable[[str, Json, Json], None] = lambda resource, document, options: None
    on_evict: Callable[[str], None] = lambda name: None
    stream_s: float = 30.0  # the longest duration of a watch
    logs: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)  # by pod: lines with their times
    printing: set[str] = field(default_factory=set)  # pods whose log is not complete
    cut_logs_after: int | None = None  # a log stream breaks after so many lines
    log_streams: list[tuple[str, str | None]] = field(default_factory=list)  # (pod, sinceTime) of each request

    def put(self, resource: str, document: Json, kind: str) -> Json:
        """Store an object and send the event `kind`: ADDED, MODIFIED or DELETED."""
        with self.changed:
            self.version += 1
            document = copy.deepcopy(document)
            document["metadata"]["resourceVersion"] = str(self.version)
            name = document["metadata"]["name"]
            if kind == "DELETED":
                self.objects[resource].pop(name, None)
            else:
                self.objects[resource][name] = document
            self.history.append((self.version, resource, kind, document))
            self.changed.notify_all()
            return document

    def get(self, resource: str, name: str) -> Json | None:
        with self.changed:
            return copy.deepcopy(self.objects[resource].get(name))

    def all(self, resource: str) -> list[Json]:
        with self.changed:
            return copy.deepcopy(list(self.objects[resource].values()))

    def forget_history(self) -> None:
        """Compact the history: watches from older versions get 410."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()


@dataclass(frozen=True)
class Call:
    verb: str
    resource: str
    name: str | None
    subresource: str | None
    query: Mapping[str, str]
    body: Json


class FakeApi:
    """Serves a Store on a free loopback port between `start` and `close`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cluster: Any = None  # the FakeCluster, if there is one
        self._server = _Server(("127.0.0.1", 0), _handler(store))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.store.closing.set()
        with self.store.changed:
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect during a watch."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(store: Store) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve()

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length) if length else b""
            while store.silent.is_set() and not store.closing.is_set():
                time.sleep(0.02)
            if store.closing.is_set():
                self.close_connection = True
                return
            try:
                call = _parse(self.command, self.path, content)
                _permit(store, call)
                if call.verb == "watch":
                    self._stream("application/json", _events(store, call))
                    return
                if call.subresource == "log":
                    self._stream("text/plain", _printed(store, call))
                    return
                status, body = _answer(store, call)
            except Refusal as refusal:
                status, body = refusal.status, refusal.body
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(body, bytes) else "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def _stream(self, kind: str, parts: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for part in parts:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

    return Handler


def _parse(method: str, target: str, content: bytes) -> Call:
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.path == "/version":
        return Call("version", "version", None, None, query, {})
    words = parts.path.strip("/").split("/")
    if words[0] == "apis" and len(words) == 2:
        return Call("discover", words[1], None, None, query, {})
    words = words[3:] if words[0] == "apis" else words[2:]
    if words[:1] == ["namespaces"] and len(words) > 2:
        words = words[2:]
    resource, name, subresource = (*words, None, None)[:3]
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    reading = "get" if name else "watch" if query.get("watch") else "list"
    return Call(
        verb=verbs.get(method, reading),
        resource=str(resource),
        name=name,
        subresource=subresource,
        query=query,
        body=json.loads(content) if content else {},
    )


def _permit(store: Store, call: Call) -> None:
    if call.verb == "discover" or call.resource in ("version", "selfsubjectaccessreviews"):
        return  # allowed for every user
    if call.resource not in KINDS:
        raise Refusal(404, {"message": "the server could not find the requested resource"})
    resource = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    group, slash, _ = KINDS[call.resource][0].rpartition("/")
    store.calls.append((group if slash else "", resource, call.verb))
    refusal = store.next_refusal.pop((call.resource, call.verb), None)
    if refusal is not None:
        raise refusal
    if (call.resource, call.verb) in store.denied:
        found = recorded("forbidden: a service account without a role, create")
        message = str(found.body["message"]).replace("cannot create", f"cannot {call.verb}")
        raise Refusal(found.status, {**found.body, "message": message.replace("jobs", call.resource)})


def _answer(store: Store, call: Call) -> tuple[int, Json | bytes]:
    match call.verb:
        case "version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
        case "discover" if call.resource in store.groups:
            preferred = {"groupVersion": f"{call.resource}/v1beta2", "version": "v1beta2"}
            return 200, {"kind": "APIGroup", "name": call.resource, "preferredVersion": preferred}
        case "discover":
            return 404, b"404 page not found\n"
        case "create" if call.resource == "selfsubjectaccessreviews":
            asked = call.body["spec"]["resourceAttributes"]
            return 201, {**call.body, "status": {"allowed": (asked["resource"], asked["verb"]) not in store.denied}}
        case "list":
            return 200, _list(store, call)
        case "get":
            return 200, _find(store, call)
        case "create" if call.subresource == "eviction":
            store.on_evict(str(call.name))
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        case "create":
            return 201, _create(store, call)
        case "patch":
            return 200, store.put(call.resource, apply_overlay(_find(store, call), call.body), "MODIFIED")
        case "delete":
            document = _find(store, call)
            if call.resource in ("jobs", "pods"):
                store.on_delete(call.resource, document, call.body)
            else:
                store.put(call.resource, document, "DELETED")
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
    raise AssertionError(call)


def _list(store: Store, call: Call) -> Json:
    with store.changed:
        items = [each for each in store.objects[call.resource].values() if _selected(each, call)]
        items.sort(key=lambda each: str(each["metadata"]["name"]))
        begin, limit = int(call.query.get("continue", "0")), int(call.query.get("limit", "500"))
        more = {"continue": str(begin + limit)} if begin + limit < len(items) else {}
        meta = {"resourceVersion": str(store.version), **more}
        return {"metadata": meta, "items": copy.deepcopy(items[begin : begin + limit])}


def _find(store: Store, call: Call) -> Json:
    found = store.get(call.resource, str(call.name))
    if found is None:
        raise recorded("get of a missing job", "nosuch", str(call.name))
    return found


def _create(store: Store, call: Call) -> Json:
    document = call.body
    name = document["metadata"]["name"]
    try:
        kubernetes_validate.validate(document, _VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        unknown, found = json.dumps('unknown field "spec.paralelism"')[1:-1], json.dumps(error.message)[1:-1]
        raise recorded("unknown field, fieldValidation=Strict", unknown, found) from error
    if store.get(call.resource, name) is not None:
        raise recorded("create of an existing name", "train", name)
    meta = {
        **document["metadata"],
        "namespace": store.namespace,
        "uid": f"uid-{call.resource}-{name}-{store.version}",
        "creationTimestamp": now_text(),
    }
    made = {**document, "metadata": meta}
    return made if call.query.get("dryRun") else store.put(call.resource, made, "ADDED")


def _events(store: Store, call: Call) -> Iterator[bytes]:
    since = int(call.query["resourceVersion"])
    deadline = time.monotonic() + min(store.stream_s, float(call.query.get("timeoutSeconds", "30")))
    if since < store.oldest:
        yield _line(records.answer("watch with an expired resourceVersion (pods)")["body"])
        return
    while time.monotonic() < deadline and not store.closing.is_set():
        with store.changed:
            news = [each for each in store.history if each[0] > since and each[1] == call.resource]
            if not news:
                store.changed.wait(0.1)
        if store.silent.is_set():
            continue
        for version, _, kind, document in news:
            since = version
            if _selected(document, call):
                yield _line({"type": kind, "object": document})


def _line(document: Json) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _printed(store: Store, call: Call) -> Iterator[bytes]:
    """Yield the log lines from sinceTime on while the pod prints."""
    if store.get("pods", str(call.name)) is None:
        raise recorded("get of a missing job", "nosuch", str(call.name))
    assert (call.query["follow"], call.query["timestamps"]) == ("true", "true")
    store.log_streams.append((str(call.name), call.query.get("sinceTime")))
    return _lines_of(store, str(call.name), call.query.get("sinceTime", ""))


def _lines_of(store: Store, name: str, since: str) -> Iterator[bytes]:
    known = given = 0
    while not store.closing.is_set():
        with store.changed:
            lines, goes_on = store.logs.get(name, [])[known:], name in store.printing
            if not lines and goes_on:
                store.changed.wait(0.1)
        known += len(lines)
        for stamp, text in lines:
            if stamp[:19] >= since[:19]:
                yield f"{stamp} ".encode() + text + b"\n"
                given += 1
                if given == store.cut_logs_after:
                    return
        if not lines and not goes_on:
            return


def _selected(document: Json, call: Call) -> bool:
    name, _, value = call.query.get("labelSelector", "").partition("=")
    if name and (document["metadata"].get("labels") or {}).get(name) != value:
        return False
    name, _, value = call.query.get("fieldSelector", "").partition("=")
    return not name or document.get(name) == value


def now_text(at: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() if at is None else at))
