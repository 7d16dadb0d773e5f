"""Sample what this node's ranks use, in a thread of its own. Nothing that goes wrong here reaches the training."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from trainer.contract.resource_sample import LastMinute, Sample, summarize
from trainer.elastic.health.oom import read_memory_limit
from trainer.elastic.health.rank_meter import RankMeter
from trainer.elastic.records.files import say
from trainer.elastic.records.record import now
from trainer.elastic.records.resource_journal import ResourceJournal

_EVERY_S = 2.0
_COST = 100  # a sample that takes long is followed by a pause of this many times its duration
_MINUTE_S = 60.0
_CLOSE_S = 2.0


class ResourceSampler:
    """`begin`, `end` and `close` are for the agent's thread. `monotonic` is in seconds."""

    def __init__(
        self, meter: RankMeter, journal: ResourceJournal, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._meter, self._journal, self._monotonic = meter, journal, monotonic
        self._group: tuple[int, Mapping[int, int]] | None = None  # the generation and its pids by rank
        self._minute: deque[tuple[float, Sample]] = deque()  # samples of the newest generation
        self._lock = threading.Lock()  # of the deque
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resources", daemon=True)

    def begin(self, generation: int, pids: Mapping[int, int]) -> None:
        """Sample the workers of a generation from now on. `pids` is by rank."""
        with self._lock:
            self._minute.clear()
        self._group = (generation, dict(pids))
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """The generation's workers have ended."""
        self._group = None

    def close(self) -> None:
        """End the thread. Do not wait for a file system that does not answer."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def find_last_minute(self, rank: int, *, of_gpu: bool) -> LastMinute | None:
        """The memory of a rank until now, of the host or of its GPUs. None without a sample of it."""
        with self._lock:
            minute = list(self._minute)
        limit = self._meter.gpu_bytes.get(rank) if of_gpu else read_memory_limit()
        return summarize(minute, rank, self._monotonic(), of_gpu=of_gpu, limit_bytes=limit)

    def _run(self) -> None:
        pause_s = _EVERY_S
        while not self._closing.wait(pause_s):
            began_s = self._monotonic()
            try:
                self._look(began_s)
            except Exception as error:  # noqa: BLE001  # an edge: training goes on without samples
                say(f"stopped sampling resources: {error!r}")
                return
            pause_s = max(_EVERY_S, _COST * (self._monotonic() - began_s))

    def _look(self, now_s: float) -> None:
        group = self._group
        if group is None:
            return
        generation, pids = group
        sample = Sample(at=now(), generation=generation, ranks=self._meter.measure(pids, now_s))
        if self._group is not group or not sample.ranks:  # they have ended meanwhile
            return
        with self._lock:
            self._minute.append((now_s, sample))
            while self._minute[0][0] < now_s - _MINUTE_S:
                self._minute.popleft()
        with suppress(OSError):  # a full disk costs samples
            self._journal.append(sample)
