"""List and then watch one kind of objects in a thread, for as long as the service runs.

It lists again when the server has dropped the version (410), and from time to time, because a server restored from a
backup sends nothing until it reaches the watched version again. When a stream ends, it continues from the last version.
While the server does not answer, the pauses grow. A cache that is not fresh proves nothing, so the time of the last
answer is always known.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from orchestrator.backends.kubernetes.client import Expired, Forbidden, KubernetesClient, Selection
from orchestrator.backends.kubernetes.mirror import Mirror
from orchestrator.domain.errors import BackendUnavailable

log = structlog.get_logger()

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_ASK_AGAIN_S = 300.0  # after a missing right
_LIST_AGAIN_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """A stream stays open for `watch_s`. After `silent_s` without an answer, the server counts as silent."""

    watch_s: float = 30.0
    silent_s: float = 60.0


class Watcher:
    """Keeps a Mirror up to date."""

    def __init__(
        self,
        client: KubernetesClient,
        selection: Selection,
        mirror: Mirror[Any],
        *,
        times: WatchTimes,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._selection, self._mirror = client, selection, mirror
        self._times = times
        self._monotonic, self._now = monotonic, now
        self._heard_at: float | None = None
        self.answered_at = now()  # seconds since the epoch of the last answer, or of our start
        self._listed_at = float("-inf")
        self._problem: str | None = "it has not answered yet"
        self._closing = threading.Event()
        self._failures = 0
        self.first_answer = threading.Event()  # or the first failure
        self.forbidden = False
        self._thread = threading.Thread(target=self._run, name=f"watch {selection.resource}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after the open stream, which ends by itself or with its client."""
        self._closing.set()

    def problem(self) -> str | None:
        """Return why the cache is not fresh, or None."""
        if self._problem is not None:
            return self._problem
        silent_s = self._monotonic() - (self._heard_at or 0.0)
        return (
            f"no news about {self._selection.resource} for {silent_s:.0f} s"
            if silent_s > self._times.silent_s
            else None
        )

    def step(self) -> None:
        """List if needed, then read one stream. Raises BackendUnavailable."""
        try:
            began = self._monotonic()
            if self._mirror.version is None or began - self._listed_at > _LIST_AGAIN_S:
                documents, version = self._client.list(self._selection)
                self._mirror.replace(documents, version)
                self._listed_at = began
                self._note_answer()
            for event in self._client.watch(self._selection, self._mirror.version or "", watch_s=self._times.watch_s):
                self._mirror.apply(event)
                self._note_answer()
                if self._closing.is_set():
                    return
        except Expired:
            self._mirror.version = None

    def _note_answer(self) -> None:
        self._heard_at, self._problem, self._failures, self.forbidden = self._monotonic(), None, 0, False
        self.answered_at = self._now()
        self.first_answer.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                began = self._monotonic()
                self.step()
                if self._monotonic() - began < _SHORTEST_PAUSE_S:
                    self._closing.wait(_SHORTEST_PAUSE_S)  # a proxy may end every stream at once
            except BackendUnavailable as error:
                self._fail(error)
            except Exception as error:
                if self._closing.is_set():
                    return
                # An edge: whatever the server sends, the thread continues with a list.
                log.exception("watch failed", resource=self._selection.resource)
                self._mirror.version = None
                self._fail(BackendUnavailable(f"cannot read its answer: {error}"))

    def _fail(self, error: BackendUnavailable) -> None:
        if self._failures == 0:
            log.warning("watch interrupted", resource=self._selection.resource, reason=str(error))
        self._failures += 1
        self._problem, self.forbidden = str(error), isinstance(error, Forbidden)
        self.first_answer.set()
        self._closing.wait(_ASK_AGAIN_S if self.forbidden and self._selection.is_optional else pause_s(self._failures))


def pause_s(failures: int) -> float:
    """Return a growing, random pause, so that many services do not return at the same moment."""
    longest = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** min(failures, 16))
    return longest * random.uniform(0.5, 1.0)
