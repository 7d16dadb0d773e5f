"""Store the output of pods that share no files with the service, through one open log stream per pod.

A stream that breaks off continues where it stopped, even after a restart of the service. Pods beyond the maximum
number of streams wait for a free one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from orchestrator.backends.kubernetes.client import KubernetesClient, LogStream
from orchestrator.backends.kubernetes.printed import Held, Printed
from orchestrator.backends.kubernetes.site import CONTAINER
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.jobfolder.folder import JobFolder

log = structlog.get_logger()

MOST_STREAMS = 64
_LIMIT_BYTES = 16 * 1024 * 1024  # of each file, including its older half
_UNWANTED_S = 60.0  # stop following a pod that was not requested for this long; another service may own the cluster
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TRIES_AFTER_END = 5


@dataclass(frozen=True, slots=True)
class Followed:
    """A pod whose container runs or has ended. `place` is its replica's folder, relative to the job's."""

    uid: str
    pod: str
    job: JobFolder
    place: Path
    ended: bool


class LogKeeper:
    """Stores pods' logs. Threads start with the first pod. `limit_bytes` limits each file."""

    def __init__(
        self,
        client: KubernetesClient,
        *,
        most_streams: int = MOST_STREAMS,
        limit_bytes: int = _LIMIT_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._most, self._limit_bytes, self._monotonic = client, most_streams, limit_bytes, monotonic
        self._lock = threading.Lock()
        self._wanted: dict[str, tuple[Followed, float]] = {}  # the pod and when it was last wanted, by uid
        self._streams: dict[str, _Follower] = {}
        self._done: dict[str, float] = {}  # when the pod was last wanted, by uid
        self._closing = threading.Event()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self, pod: Followed) -> None:
        """Follow the pod's log. Call this again on each look at the cluster, or the pod is dropped."""
        with self._lock:
            now = self._monotonic()
            if pod.uid in self._done:
                self._done[pod.uid] = now
                return
            if self._closing.is_set():
                return
            known = self._wanted.get(pod.uid)
            self._wanted[pod.uid] = (pod, now)
            if known is None or known[0] != pod:
                self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pod logs", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            self._changed.set()
            for each in self._streams.values():
                each.stop()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.wait(_PAUSE_S)
            self._changed.clear()
            with self._lock:
                if not self._closing.is_set():
                    self._step()

    def _step(self) -> None:
        now = self._monotonic()
        self._done = {uid: wanted_at for uid, wanted_at in self._done.items() if now - wanted_at <= _UNWANTED_S}
        for uid, stream in list(self._streams.items()):
            if not stream.is_alive():
                del self._streams[uid]
                if stream.complete:
                    self._done[uid] = now
                    self._wanted.pop(uid, None)
        for uid, (pod, wanted_at) in list(self._wanted.items()):
            begun = self._streams.get(uid)
            if now - wanted_at > _UNWANTED_S:
                del self._wanted[uid]
                if begun is not None:
                    begun.stop()
            elif begun is not None:
                begun.ended = pod.ended
            elif len(self._streams) < self._most:
                self._streams[uid] = _Follower(self._client, pod, limit_bytes=self._limit_bytes)
                self._streams[uid].start()


class _Follower(threading.Thread):
    """Follows one pod, reopening its stream until the container has ended and all its output is stored."""

    def __init__(self, client: KubernetesClient, pod: Followed, *, limit_bytes: int) -> None:
        super().__init__(name=f"log of {pod.pod}", daemon=True)
        self._client, self._pod, self._limit_bytes = client, pod, limit_bytes
        self._stopping = threading.Event()
        self._stream: LogStream | None = None
        self.ended = pod.ended
        self.complete = False

    def stop(self) -> None:
        self._stopping.set()
        if self._stream is not None:
            self._stream.break_off()

    def run(self) -> None:
        try:
            with Printed(self._pod.job, self._pod.place, limit_bytes=self._limit_bytes) as printed:
                self._follow(printed)
        except Held:
            return  # another service stores it; retried as long as the pod is wanted
        except OSError as error:
            log.warning("cannot store a pod's output", pod=self._pod.pod, reason=str(error))
            self._stopping.wait(_LONGEST_PAUSE_S)
        except Exception:
            if self._stopping.is_set():
                return  # the client was closed
            # An edge: whatever the server sends, this pod is retried.
            log.exception("cannot read a pod's output", pod=self._pod.pod)
            self._stopping.wait(_LONGEST_PAUSE_S)

    def _follow(self, printed: Printed) -> None:
        failures = left = 0
        while not self._stopping.is_set():
            ended = self.ended  # read before the stream opens, so that a stream of an ended pod is complete
            try:
                printed.begin_again()
                with self._client.follow_log(self._pod.pod, CONTAINER, since=printed.since) as self._stream:
                    if self._stopping.is_set():  # stopped before the stream existed
                        return
                    for lines in self._stream:
                        printed.keep(lines)
                        failures = 0
                self.complete = ended
            except (BackendUnavailable, LaunchRefused):
                failures += 1
                left += ended
            self._stream = None
            if self.complete or left > _TRIES_AFTER_END:  # its node or its object is gone
                self.complete = True
                return
            self._stopping.wait(min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(failures, 8)))
