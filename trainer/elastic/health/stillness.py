"""Detect from outside that the workers of a group do nothing, for scripts that report no steps.

Silence alone is no evidence: a script may compute for an hour without a line of log. A rank is still if, for the whole
limit, it printed nothing, its main thread was idle (or spun in a collective), and its stack was the same halfway and at
the end. A rank that does not spin in a collective must also have had idle other threads and idle connections. A rank
that does not wait for other ranks must also have had idle child processes, no reads and writes, and an idle GPU.
Anything that may be work counts as work.

A group hangs if all ranks of all nodes are still. Agents report this in the rendezvous document (round_document.py).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from trainer.contract import layout
from trainer.contract.silence import STILL_S
from trainer.elastic.chaos import Worker
from trainer.elastic.health.activity import Activity
from trainer.elastic.health.stack_frames import Frame, find_own_line, loads_data, parse_main_thread, waits_for_peers
from trainer.elastic.health.stacks import collect_stacks
from trainer.elastic.rendezvous.formation import name_ranks

_LOOKS = 60  # within one limit
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.5, 15.0  # between two looks
_AWAY_LOOKS, _AWAY_S = 3, 5.0  # after a look this late all times restart: agent or machine was paused
# Limits between two looks. Idle data loaders and their main thread wake up every five seconds, NCCL's watchdog thread
# ten times a second: together far below 1% of a core. A download of a few kB/s wakes its thread several times.
_IDLE_SHARE, _SPINNING_SHARE = 0.02, 0.8  # of a core
_WAKES_PER_S, _BYTES_PER_S = 0.5, 4096.0
_WAKES_BY_ASKING, _BYTES_BY_ASKING = 4, 65536  # a request for stacks wakes the worker up and makes it write them
# Limits over the whole time, for a thread that waits for neither peers nor data. Polling once a minute exceeds them.
_WAKES_PER_MINUTE, _TIMES_ASKED = 0.25, 2
_STACK_BYTES = 64 * 1024
_MOST_PLACES = 4  # in a sentence


@dataclass(frozen=True, kw_only=True)
class StillRank:
    """A still rank, with what it waits for and its line in the user's code."""

    rank: int
    waits: bool  # for other ranks
    loads: bool = False  # it waits for a data loader
    where: str | None = None  # None: no stack was available


@dataclass(frozen=True, kw_only=True)
class GroupHang:
    """The group hangs. `rank` is the one that the others wait for, None if nothing tells the ranks apart."""

    rank: int | None
    silent_s: float
    sentence: str
    step: int | None = None


class StillnessReports(Protocol):
    """The stillness reports of a group's agents."""

    def report_stillness(self, report: str | None) -> None:
        """Replace this agent's report; None withdraws it."""

    def find_stillness(self) -> Sequence[str] | None:
        """The reports of all agents whose workers run; None while one of them has none."""


@dataclass(kw_only=True)
class _Track:
    """One rank. Each `_s` is the time since which a part of it has been idle."""

    activity: Activity
    printed_bytes: int
    main_s: float  # the main thread; if it spins, since when it spins
    threads_s: float  # the other threads
    rest_s: float  # the processes below it, and all reads and writes
    wakes: int  # of the main thread, counted at `main_s`
    spins: bool = False
    stack: tuple[Frame, ...] | None = None  # halfway to the limit

    @property
    def still_since_s(self) -> float:
        """Since when the rank has been still, infinite if it spins outside a collective.

        In a collective, the other threads of a rank that spins may spin too, and its child processes may run.
        """
        if self.stack and waits_for_peers(self.stack):
            return self.main_s if self.spins else max(self.main_s, self.threads_s)
        return float("inf") if self.spins else max(self.main_s, self.threads_s, self.rest_s)

    def begin(self, now_s: float) -> None:
        self.main_s = self.threads_s = self.rest_s = now_s
        self.wakes, self.spins, self.stack = self.activity.main_wakes, False, None


class Stillness:
    """Watches the workers of one agent in a job. Times are of the monotonic clock, in seconds."""

    def __init__(
        self,
        limit_s: float | None,
        reports: StillnessReports,
        *,
        uses_gpu: Callable[[int], bool],
        read: Callable[[Iterable[int]], Mapping[int, Activity]],
        ask: Callable[[Mapping[int, Path]], Mapping[int, str]] | None = None,
    ) -> None:
        """Without `limit_s` the default applies, and some rank must wait for other ranks or for its data loader."""
        self._needs_waiter = limit_s is None
        self._limit_s = STILL_S if limit_s is None else limit_s
        self._reports = reports
        self._uses_gpu, self._read, self._ask = uses_gpu, read, ask or _ask
        self._every_s = min(_LONGEST_LOOK_S, max(_SHORTEST_LOOK_S, self._limit_s / _LOOKS))
        self._tracks: dict[int, _Track] = {}
        self._looked_s = 0.0
        self._reported = False
        self._agreed_s: float | None = None

    def begin(self, now_s: float) -> None:
        """Start over, for a new generation."""
        self._tracks, self._looked_s = {}, now_s
        self._reported, self._agreed_s = False, None

    def look(self, running: Mapping[int, Worker], now_s: float) -> GroupHang | None:
        """The verdict, if this agent must act on it. `running` has the agent's workers by rank."""
        since_s = now_s - self._looked_s
        if since_s < self._every_s:
            return None
        self._looked_s = now_s
        self._follow(running, now_s, since_s)
        is_complete = bool(self._tracks) and self._tracks.keys() == running.keys()
        if not is_complete or now_s - max(track.main_s for track in self._tracks.values()) < self._limit_s / 2:
            self._withdraw()
            return None
        if any(track.stack is None for track in self._tracks.values()):
            self._note_stacks(running)
            return None
        still_s = now_s - max(track.still_since_s for track in self._tracks.values())
        if still_s >= self._limit_s and not self._reported:
            self._report(running, now_s)
        return self._agree(still_s, now_s) if self._reported else None

    def _follow(self, running: Mapping[int, Worker], now_s: float, since_s: float) -> None:
        """Compare each worker's activity with the previous look."""
        activities = self._read([worker.pid for worker in running.values()])
        was_away = since_s > _AWAY_LOOKS * self._every_s + _AWAY_S
        tracks = {}
        for rank, worker in running.items():
            activity, printed = activities.get(worker.pid), _size(worker.folder / layout.WORKER_LOG)
            if activity is None:
                continue
            track = self._tracks.get(rank)
            if track is None:
                track = _Track(activity=activity, printed_bytes=printed, main_s=0.0, threads_s=0.0, rest_s=0.0, wakes=0)
            before, track.activity = track.activity, activity
            if rank not in self._tracks or was_away or printed != track.printed_bytes:
                track.begin(now_s)
            track.printed_bytes = printed
            _compare(track, before, now_s, since_s)
            tracks[rank] = track
        self._tracks = tracks

    def _note_stacks(self, running: Mapping[int, Worker]) -> None:
        for rank, stack in self._stacks(running).items():
            self._tracks[rank].stack = stack

    def _stacks(self, running: Mapping[int, Worker]) -> dict[int, tuple[Frame, ...]]:
        texts = self._ask({worker.pid: worker.folder for worker in running.values()})
        return {rank: parse_main_thread(texts.get(worker.pid, "")) for rank, worker in running.items()}

    def _report(self, running: Mapping[int, Worker], now_s: float) -> None:
        """Report the ranks at the end of the limit. The time of a rank that turns out to work starts over."""
        still_ranks = []
        for rank, stack in self._stacks(running).items():
            track = self._tracks[rank]
            if stack != track.stack or not self._is_idle(track, stack, running[rank].pid, now_s):
                track.begin(now_s)
                continue
            line = find_own_line(stack)
            still_ranks.append(
                StillRank(
                    rank=rank,
                    waits=waits_for_peers(stack),
                    loads=loads_data(stack),
                    where=None if line is None else str(line),
                )
            )
        if len(still_ranks) == len(running):
            self._reports.report_stillness(render_still_ranks(still_ranks))
            self._reported = True

    def _is_idle(self, track: _Track, stack: Sequence[Frame], pid: int, now_s: float) -> bool:
        """Whether a rank that passes all other checks has hardly woken up and has an idle GPU."""
        if waits_for_peers(stack):
            return True
        wakes = track.activity.main_wakes - track.wakes
        allowed = _TIMES_ASKED * _WAKES_BY_ASKING + _WAKES_PER_MINUTE * (now_s - track.main_s) / 60
        return (loads_data(stack) or wakes <= allowed) and not self._uses_gpu(pid)

    def _withdraw(self) -> None:
        if self._reported:
            self._reports.report_stillness(None)
        for track in self._tracks.values():
            track.stack = None
        self._reported, self._agreed_s = False, None

    def _agree(self, still_s: float, now_s: float) -> GroupHang | None:
        """Wait for the reports of the other nodes, and then for one more look, because they may withdraw them."""
        reported = self._reports.find_stillness()
        if reported is None:
            self._agreed_s = None
            return None
        if self._agreed_s is None:
            self._agreed_s = now_s
        if now_s - self._agreed_s < self._every_s:
            return None
        still_ranks = sorted(
            (each for text in reported for each in parse_still_ranks(text)), key=lambda each: each.rank
        )
        if self._needs_waiter and not any(each.waits or each.loads for each in still_ranks):
            return None
        hang = judge(still_ranks, silent_s=still_s, limit_s=self._limit_s)
        acts = still_ranks[0].rank if hang.rank is None else hang.rank
        return hang if acts in self._tracks else None


def _compare(track: _Track, before: Activity, now_s: float, since_s: float) -> None:
    now = track.activity
    share = (now.main_cpu_s - before.main_cpu_s) / since_s
    wakes_limit = _WAKES_BY_ASKING + _WAKES_PER_S * since_s
    spins = share >= _SPINNING_SHARE
    # A thread that waits for a core is in state R at every look. One that polls is rarely so at two looks in a row.
    waits_for_core = now.main_state == before.main_state == "R"
    idles = (
        share <= _IDLE_SHARE
        and now.main_wakes - before.main_wakes <= wakes_limit
        and not (waits_for_core or now.main_state == "D")
    )
    if not (spins or idles) or spins != track.spins:
        track.begin(now_s)
        track.spins = spins
        return
    threads_work = (
        now.threads_cpu_s - before.threads_cpu_s > _IDLE_SHARE * since_s
        or abs(now.own_traffic_bytes - before.own_traffic_bytes) > _BYTES_PER_S * since_s
        or "D" in now.other_states
    )
    if threads_work:
        track.threads_s = now_s
    rest_works = (
        now.below_cpu_s - before.below_cpu_s > _IDLE_SHARE * since_s
        or now.moved_bytes - before.moved_bytes > _BYTES_BY_ASKING + _BYTES_PER_S * since_s
        or abs(now.below_traffic_bytes - before.below_traffic_bytes) > _BYTES_PER_S * since_s
        or now.below_wakes.keys() != before.below_wakes.keys()
        or any(now.below_wakes[pid] - count > wakes_limit for pid, count in before.below_wakes.items())
        or "D" in now.other_states
    )
    if rest_works:
        track.rest_s = now_s


def judge(still_ranks: Sequence[StillRank], *, silent_s: float, limit_s: float) -> GroupHang:
    """Name the rank that the others wait for: one that does not wait, else one that waits at a less common line."""
    waiting = [each for each in still_ranks if each.waits]
    absent = [each for each in still_ranks if not each.waits]
    if not absent:
        places = Counter(each.where for each in waiting)
        usual = places.most_common(1)[0][1]
        apart = [each for each in waiting if places[each.where] < usual]
    else:
        apart = absent
    named = apart if len(apart) < len(still_ranks) or len(still_ranks) == 1 else []
    sentence = f"no worker did anything for {silent_s:.0f} s (limit {limit_s:.0f} s); {_describe(absent, waiting)}"
    return GroupHang(rank=named[0].rank if named else None, silent_s=silent_s, sentence=sentence)


def _describe(absent: Collection[StillRank], waiting: Collection[StillRank]) -> str:
    parts = [f"{name_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} {at}" for at, ranks in _by_place(absent)]
    parts += [
        f"{name_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} for other ranks {at}"
        for at, ranks in _by_place(waiting)
    ]
    return "; ".join(parts[:_MOST_PLACES])


def _by_place(still_ranks: Collection[StillRank]) -> list[tuple[str, list[int]]]:
    places: dict[str, list[int]] = {}
    for each in still_ranks:
        places.setdefault("at an unknown line" if each.where is None else f"at {each.where}", []).append(each.rank)
    return sorted(places.items(), key=lambda place: (len(place[1]), place[1]))


def render_still_ranks(still_ranks: Sequence[StillRank]) -> str:
    return json.dumps([asdict(each) for each in still_ranks], separators=(",", ":"))


def parse_still_ranks(text: str) -> list[StillRank]:
    return [StillRank(**document) for document in json.loads(text)]


def _ask(folders: Mapping[int, Path]) -> Mapping[int, str]:
    return collect_stacks(folders, limit_bytes=_STACK_BYTES)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  # twice as fast as pathlib's
    except OSError:
        return 0
