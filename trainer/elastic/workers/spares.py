"""Workers that are forked before they are needed: a restart finds them waiting for nothing but their order.

A forked process shares its memory until one of the two writes to it, and maps the libraries anew: each page that it
uses for the first time costs a fault, for a small model a quarter of a restart in all. A spare has that behind it, most
of all after a warm-up: a module's `warm_up(folder)`, which goes once through what the program does at its start.
Spares are raised one by one while training runs, and stand still while a group starts. When memory runs out they are
the first to go (proc(5), oom_score_adj), and no more are raised.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from trainer.elastic import child
from trainer.elastic.channel import Channel
from trainer.elastic.records.files import say
from trainer.elastic.records.scratch import Scratch
from trainer.elastic.workers.forked import HELD

_OOM_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO = "1000"


class Spares:
    """Belongs to the fork server, whose children spares are. `wanted` of them, each warmed up by the named module."""

    def __init__(self) -> None:
        self.wanted = 0
        self.warmup: str | None = None
        self._ready: dict[int, Channel] = {}  # by pid
        self._rising: dict[int, Channel] = {}
        self._stands_still = False
        self._scratch: Scratch | None = None  # for warm-ups

    @property
    def pids(self) -> set[int]:
        return {*self._ready, *self._rising}

    @property
    def ends(self) -> list[Channel]:
        """Readable once a spare that warms up is ready."""
        return list(self._rising.values())

    @property
    def is_wanting(self) -> bool:
        return self._stands_still or (not self._rising and len(self._ready) < self.wanted)

    def raise_one(self) -> dict[str, object] | None:
        """Fork one more, or let the one that stands still go on. Returns None, and in the spare itself its order.

        Raises OSError when there can be no process or folder.
        """
        if self._stands_still:
            self._stands_still = False
            self._signal(signal.SIGCONT)
            return None
        if self.warmup is not None and self._scratch is None:
            self._scratch = Scratch()
        ours, theirs = Channel.pair()
        server, pid = os.getpid(), os.fork()
        if pid:
            theirs.close()
            self._rising[pid] = ours
            return None
        ours.close()
        folder = None if self._scratch is None else self._scratch.path
        self.close()
        child.die_with_parent(server)
        signal.set_wakeup_fd(-1)  # the server's
        return _wait_for_order(theirs, self.warmup, folder)

    def take_in(self) -> dict[int, int]:
        """Who is ready by now, with the memory in bytes that is its own alone."""
        reported = {}
        for pid, end in list(self._rising.items()):
            if select.select([end], [], [], 0)[0]:
                messages = end.receive()
                if messages:
                    reported[pid] = int(str(messages[0]["bytes"]))
                    self._ready[pid] = self._rising.pop(pid)
                else:
                    self._rising.pop(pid).close()  # it failed, and said why
                    self.wanted = 0
        return reported

    def stand_still(self) -> None:
        """A spare that warms up leaves the processors to the group that starts."""
        self._stands_still = bool(self._rising)
        self._signal(signal.SIGSTOP)

    def give(self, order: Mapping[str, object]) -> int | None:
        """Turn a spare into the worker of the order: its pid, None when none is ready."""
        while self._ready:
            pid, end = self._ready.popitem()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # it may have been made to stand still when it was ready already
            with closing(end):
                if end.send(order):  # else it is dead, and the server will hear of it
                    return pid
        return None

    def forget(self, pid: int) -> None:
        """One is dead. What killed it, the lack of memory most likely, shall not meet another."""
        end = self._ready.pop(pid, None) or self._rising.pop(pid, None)
        if end is not None:
            end.close()
            self.wanted, self._stands_still = 0, False

    def close(self) -> None:
        """In a worker: let go of what belongs to the server."""
        for end in (*self._ready.values(), *self._rising.values()):
            end.close()
        self._ready.clear()
        self._rising.clear()
        if self._scratch is not None:
            self._scratch.release()
            self._scratch = None

    def sweep(self) -> None:
        """In the server, when all are dead."""
        if self._scratch is not None:
            self._scratch.sweep()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._rising:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _wait_for_order(end: Channel, warmup: str | None, folder: Path | None) -> dict[str, object]:
    usual_score = _OOM_SCORE.read_text()
    _OOM_SCORE.write_text(_FIRST_TO_GO)
    try:
        if warmup is not None and folder is not None:
            importlib.import_module(warmup).warm_up(folder / str(os.getpid()))
    except Exception as error:  # noqa: BLE001  # what the program imports
        say(f"restarts will be slower: no spare worker can be made ready: {type(error).__name__}: {error}")
        os._exit(1)
    with closing(end):
        end.send({"bytes": _private_bytes()})
        orders: list[dict[str, object]] | None = []
        while orders == []:  # a long one comes in pieces
            orders = end.receive()
    if orders is None:
        os._exit(0)  # the server is gone
    _OOM_SCORE.write_text(usual_score)
    while signal.sigtimedwait(HELD, 0):
        pass  # what all processes of the job got before this one was a worker
    return orders[0]


def _private_bytes() -> int:
    """Memory that is no other process's (proc(5), smaps_rollup)."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
