"""Find hanging workers by their reports. A worker hangs if it is silent for longer than its phase may last.

A rank that waits in a collective does not hang itself: it waits for the rank that does. A rank that has never reported
is left to stillness.py. Silence does not count while the agent was paused, the journal is missing, no regular file or
not yet read to its end, or its disk is full, because then a report could not arrive.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.clock import parse_time
from trainer.contract.launch import LaunchPolicy
from trainer.contract.progress import Phase, Progress, parse_progress
from trainer.contract.silence import STEP_PHASES, PhaseTimes, limit_s
from trainer.elastic.health.fitness import find_full_disk
from trainer.elastic.records.files import read_lines

_LOOK_EVERY_S = 0.5
_AWAY_S = 5.0  # a longer time between two looks means that this agent or the machine was paused
_BATCH_BYTES = 1024 * 1024
# A step that takes longer than both is a stall, which alone is no fault: the rendezvous looks for lossy nodes then.
_STALL_S, _STALL_TIMES_TYPICAL, _STALL_ENOUGH = 2.0, 5.0, 5


@dataclass(frozen=True, kw_only=True)
class RankHang:
    """A rank that hangs. Times are in seconds."""

    rank: int
    phase: Phase
    step: int | None
    silent_s: float
    limit_s: float

    @property
    def sentence(self) -> str:
        after = "" if self.step is None else f" after step {self.step}"
        where = f"in phase {self.phase.value}{after}"
        return f"reported nothing for {self.silent_s:.0f} s {where} (limit {self.limit_s:.0f} s)"


@dataclass(kw_only=True)
class _Latest:
    """The newest report of one rank."""

    phase: Phase
    step: int | None
    heard_s: float
    begun_s: float  # the step or the phase

    def is_within(self, line: Progress) -> bool:
        """Whether the line belongs to the same step."""
        return self.phase in STEP_PHASES and line.phase in STEP_PHASES and line.step == self.step


class Watch:
    """Reads what the workers of one agent append to `journal`. Times are of the monotonic clock, in seconds."""

    def __init__(self, journal: Path, policy: LaunchPolicy) -> None:
        self._journal, self._policy = journal, policy
        self._offset = 0
        self._generation, self._ranks = 0, tuple[int, ...]()
        self._latest: dict[int, _Latest] = {}
        self._phase_times: dict[int, PhaseTimes] = {}  # has every rank that ever reported
        self._looked_s = float("-inf")

    @property
    def has_heard(self) -> bool:
        """Whether any rank that now runs here has reported, in this generation or an earlier one."""
        return bool(self._latest)

    def begin(self, generation: int, ranks: Iterable[int], now_s: float) -> None:
        """Start over for new workers. A rank is watched at once if it has reported in an earlier generation."""
        self._generation, self._ranks, self._looked_s = generation, tuple(ranks), now_s
        self._latest = {
            rank: _Latest(phase=Phase.START, step=None, heard_s=now_s, begun_s=now_s)
            for rank in self._ranks
            if rank in self._phase_times
        }

    def look(self, now_s: float) -> list[RankHang]:
        """The ranks that hang, the longest silent first. Reads the journal at most twice a second."""
        since_s = now_s - self._looked_s
        if since_s < _LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        lines, _, self._offset, more = read_lines(self._journal, self._offset, _BATCH_BYTES)
        for line in lines:
            with suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict):
                    self._take(parse_progress({"generation": self._generation, **document}), now_s)
        if since_s > _AWAY_S:
            self._restart_times(now_s)
        found = [self._judge(rank, latest, now_s) for rank, latest in self._latest.items()]
        stuck = sorted((each for each in found if each is not None), key=lambda each: -each.silent_s)
        if stuck and (more or self._cannot_hear()):
            self._restart_times(now_s)
            return []
        return stuck

    def is_stalled(self, now_s: float) -> bool:
        """Whether each rank has been in one step for much longer than its steps take."""
        return bool(self._latest) and all(self._is_slow(rank, each, now_s) for rank, each in self._latest.items())

    def _is_slow(self, rank: int, latest: _Latest, now_s: float) -> bool:
        in_step_s = now_s - latest.begun_s if latest.phase in STEP_PHASES else 0.0
        if in_step_s < _STALL_S:
            return False
        steps = self._phase_times[rank].summary().get(Phase.STEP.value)
        return steps is not None and steps.count >= _STALL_ENOUGH and in_step_s > _STALL_TIMES_TYPICAL * steps.typical_s

    def _restart_times(self, now_s: float) -> None:
        for latest in self._latest.values():
            latest.heard_s = latest.begun_s = now_s

    def _cannot_hear(self) -> bool:
        is_file = os.path.isfile(self._journal)  # noqa: PTH113  # unlike pathlib's, it never raises
        return not is_file or find_full_disk(self._journal.parent) is not None

    def _take(self, line: Progress, now_s: float) -> None:
        is_in_group = line.rank in self._ranks or 0 <= line.rank < line.world_size  # a script may spawn ranks itself
        if line.phase is Phase.NOTE or not is_in_group:
            return
        times = self._phase_times.setdefault(line.rank, PhaseTimes())
        if line.generation == self._generation:
            before = self._latest.get(line.rank)
            begun_s = now_s if before is None or not before.is_within(line) else before.begun_s
            self._latest[line.rank] = _Latest(phase=line.phase, step=line.step, heard_s=now_s, begun_s=begun_s)
        times.enter(line, parse_time(line.at))  # a line without a time is ignored

    def _judge(self, rank: int, latest: _Latest, now_s: float) -> RankHang | None:
        limit = limit_s(
            latest.phase,
            self._phase_times[rank].summary(),
            startup_timeout_s=self._policy.startup_timeout_s,
            heartbeat_timeout_s=self._policy.heartbeat_timeout_s,
        )
        silent_s = now_s - latest.heard_s
        if limit is None or latest.phase is Phase.WAITING or silent_s <= limit:
            return None
        return RankHang(rank=rank, phase=latest.phase, step=latest.step, silent_s=silent_s, limit_s=limit)
