"""Spare workers: processes that are forked before they are needed and wait for an order.

A forked process shares memory with its parent until one of them writes to it, and maps the libraries again. Each page
that it uses for the first time costs a page fault. For a small model these faults take a quarter of a restart. A spare
has taken most of them, above all in its warm-up: a module's `warm_up(folder)` does once what the program does at its
start.

Spares are forked one by one while training runs, and paused while a group starts. When memory runs out, the kernel
kills them first (proc(5), oom_score_adj), and no more are forked.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from trainer.elastic import child
from trainer.elastic.channel import Channel
from trainer.elastic.descriptors import wait_readable
from trainer.elastic.records.files import say
from trainer.elastic.records.scratch import Scratch
from trainer.elastic.workers.forked import HELD

_OOM_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO = "1000"


class Spares:
    """The spares of a fork server, which are its children. `wanted` is their number, `warmup` the warm-up module."""

    def __init__(self) -> None:
        self.wanted = 0
        self.warmup: str | None = None
        self._ready: dict[int, Channel] = {}  # by pid
        self._warming: dict[int, Channel] = {}
        self._is_paused = False
        self._scratch: Scratch | None = None  # for warm-ups

    @property
    def count(self) -> int:
        """Of those that are ready."""
        return len(self._ready)

    @property
    def pids(self) -> set[int]:
        return {*self._ready, *self._warming}

    @property
    def ends(self) -> list[Channel]:
        """Channels of spares that warm up. One is readable once its spare is ready."""
        return list(self._warming.values())

    @property
    def has_work(self) -> bool:
        return self._is_paused or (not self._warming and len(self._ready) < self.wanted)

    def fork_one(self) -> dict[str, object] | None:
        """Continue the paused spare, or fork another one. Returns None; in the spare, waits for and returns its order.

        Raises OSError if no process or folder can be created.
        """
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)
            return None
        if self.warmup is not None and self._scratch is None:
            self._scratch = Scratch()
        ours, theirs = Channel.pair()
        server, pid = os.getpid(), os.fork()
        if pid:
            theirs.close()
            self._warming[pid] = ours
            return None
        ours.close()
        folder = None if self._scratch is None else self._scratch.path
        self.close()
        child.die_with_parent(server)
        signal.set_wakeup_fd(-1)  # the server's
        return _wait_for_order(theirs, self.warmup, folder)

    def collect_ready(self) -> dict[int, int]:
        """Note the spares that have become ready. Returns their private memory in bytes, by pid."""
        reported = {}
        for pid, end in list(self._warming.items()):
            if wait_readable([end], 0):
                messages = end.receive()
                if messages:
                    reported[pid] = int(str(messages[0]["bytes"]))
                    self._ready[pid] = self._warming.pop(pid)
                else:
                    self._warming.pop(pid).close()  # its warm-up failed, which is logged
                    self.wanted = 0
        return reported

    def pause(self) -> None:
        """Pause the spare that warms up, so that it does not slow down a group that starts."""
        self._is_paused = bool(self._warming)
        self._signal(signal.SIGSTOP)

    def give(self, order: Mapping[str, object]) -> int | None:
        """Turn a spare into the worker of the order. Returns its pid, or None if no spare is ready."""
        while self._ready:
            pid, end = self._ready.popitem()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # it may have been paused after it became ready
            with closing(end):
                if end.send(order):  # otherwise it is dead, and the server will reap it
                    return pid
        return None

    def forget(self, pid: int) -> bool:
        """Forget a dead spare and stop forking spares: it was probably killed because memory ran out.

        False if it is none.
        """
        end = self._ready.pop(pid, None) or self._warming.pop(pid, None)
        if end is None:
            return False
        end.close()
        self.wanted, self._is_paused = 0, False
        return True

    def close(self) -> None:
        """In a forked worker, close what belongs to the server."""
        for end in (*self._ready.values(), *self._warming.values()):
            end.close()
        self._ready.clear()
        self._warming.clear()
        if self._scratch is not None:
            self._scratch.release()
            self._scratch = None

    def sweep(self) -> None:
        """Remove the warm-up folder. Call it in the server, when all spares are dead."""
        if self._scratch is not None:
            self._scratch.sweep()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._warming:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _wait_for_order(end: Channel, warmup: str | None, folder: Path | None) -> dict[str, object]:
    usual_score = _set_oom_score(_FIRST_TO_GO)
    try:
        if warmup is not None and folder is not None:
            importlib.import_module(warmup).warm_up(folder / str(os.getpid()))
    except Exception as error:  # noqa: BLE001  # what the program imports
        say(f"restarts will be slower, because a spare worker cannot warm up: {type(error).__name__}: {error}")
        os._exit(1)
    with closing(end):
        end.send({"bytes": _private_bytes()})
        orders: list[dict[str, object]] | None = []
        while orders == []:  # a long order arrives in pieces
            orders = end.receive()
    if orders is None:
        os._exit(0)  # the server is gone
    _set_oom_score(usual_score)
    while signal.sigtimedwait(HELD, 0):
        pass  # discard signals that were sent to the whole job before this process became a worker
    return orders[0]


def _set_oom_score(score: str) -> str:
    """Returns the one before. Does nothing where the system allows no change."""
    before = score
    with suppress(OSError):
        before = _OOM_SCORE.read_text()
        _OOM_SCORE.write_text(score)
    return before


def _private_bytes() -> int:
    """Memory that no other process shares (proc(5), smaps_rollup)."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
