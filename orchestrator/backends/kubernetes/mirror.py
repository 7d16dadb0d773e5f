"""Cache the objects of one kind from a list and a watch's events. Uses no thread and no network.

Events may repeat, and a list may arrive at any time; the result is the same. A deleted object is kept in its last state
until `forget`, because a pod's last event is often the only one that says how it ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

from orchestrator.backends.kubernetes.client import Json

Object = TypeVar("Object")
_MOST_GONE = 20_000


class Mirror(Generic[Object]):
    """`parse` turns JSON into an object. Thread-safe."""

    def __init__(self, parse: Callable[[Json], Object], *, keeps_removed: bool = False) -> None:
        self._parse = parse
        self._keeps_removed = keeps_removed
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}  # by uid
        self._versions: dict[str, int] = {}
        self._unlisted: set[str] = set()  # uids from `put` that no list has confirmed yet
        self._removed: dict[str, Object] = {}
        self._gone: dict[str, None] = {}  # uids of deleted objects, oldest first
        self.version: str | None = None  # the version to watch from; None means list first

    def replace(self, documents: Iterable[Json], version: str) -> None:
        """Replace the cache by a full list. Objects not in it are gone, except newer ones from `put`."""
        listed = list(documents)
        objects = {_uid(document): self._parse(document) for document in listed}
        versions = {_uid(document): _version(document) for document in listed}
        listed_at = _number(version)
        with self._lock:
            for uid in self._objects.keys() - objects.keys():
                if uid in self._unlisted and self._versions[uid] > listed_at:
                    objects[uid], versions[uid] = self._objects[uid], self._versions[uid]
                else:
                    self._bury(uid, self._objects[uid])
            for uid in objects:
                self._gone.pop(uid, None)
                self._removed.pop(uid, None)
            self._unlisted.clear()  # a server restored from a backup lists lower versions from then on
            self._objects, self._versions = objects, versions
            self.version = version

    def apply(self, event: Json) -> None:
        """Apply a watch event: ADDED, MODIFIED, DELETED or BOOKMARK. An empty event changes nothing."""
        document: Any = event.get("object")
        if not isinstance(document, dict):
            return
        version = (document.get("metadata") or {}).get("resourceVersion")
        if event.get("type") in ("ADDED", "MODIFIED"):
            with self._lock:
                self._store(document)
        elif event.get("type") == "DELETED":
            with self._lock:
                uid = _uid(document)
                self._objects.pop(uid, None)
                self._versions.pop(uid, None)
                self._bury(uid, self._parse(document))
        if version:
            self.version = str(version)

    def put(self, document: Json) -> None:
        """Store an object from another answer. Older versions and deleted objects are ignored."""
        with self._lock:
            self._store(document)
            self._unlisted.add(_uid(document))

    def objects(self) -> list[Object]:
        with self._lock:
            return list(self._objects.values())

    def removed(self) -> list[Object]:
        with self._lock:
            return list(self._removed.values())

    def forget(self, uids: Collection[str]) -> None:
        """Drop deleted objects."""
        with self._lock:
            for uid in uids:
                self._removed.pop(uid, None)

    def _store(self, document: Json) -> None:
        uid, version = _uid(document), _version(document)
        if uid not in self._gone and version >= self._versions.get(uid, 0):
            self._objects[uid] = self._parse(document)
            self._versions[uid] = version

    def _bury(self, uid: str, last: Object) -> None:
        self._gone[uid] = None
        if len(self._gone) > _MOST_GONE:
            self._gone.pop(next(iter(self._gone)))
        if self._keeps_removed:
            self._removed[uid] = last


def _version(document: Json) -> int:
    return _number(str(document["metadata"].get("resourceVersion") or ""))


def _number(version: str) -> int:
    """Parse a resource version, which increases (Kubernetes API concepts, "Resource versions"). 0 if not a number."""
    return int(version) if version.isdecimal() else 0


def _uid(document: Json) -> str:
    meta = document["metadata"]
    return str(meta.get("uid") or meta.get("name"))
