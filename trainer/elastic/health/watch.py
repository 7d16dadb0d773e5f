"""Which of this agent's workers hang: they have told nothing for longer than their phase may last.

A rank that waits in a collective is not judged: whoever keeps it waiting hangs, here or on another node. Nor is one
that has never told anything: stillness.py judges it. Silence counts only while we listen: an agent that was frozen has
missed what was said, and where the journal is gone or finds no room nothing can be said.
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
from trainer.contract.silence import PhaseTimes, limit_s
from trainer.elastic.health.fitness import find_full_disk
from trainer.elastic.records.files import read_lines

_LOOK_EVERY_S = 0.5
_AWAY_S = 5.0  # between two looks, and somebody stood still: we, or the whole machine
_BATCH_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A verdict on one rank; times in seconds."""

    rank: int
    phase: Phase
    step: int | None
    silent_s: float
    limit_s: float

    @property
    def sentence(self) -> str:
        after = "" if self.step is None else f" after step {self.step}"
        return f"told nothing for {self.silent_s:.0f} s in phase {self.phase.value}{after} (limit {self.limit_s:.0f} s)"


@dataclass(kw_only=True)
class _Word:
    """The newest of one rank."""

    phase: Phase
    step: int | None
    heard_s: float


class Watch:
    """Reads what the workers of one agent append to `journal`. Times are of the monotonic clock, in seconds."""

    def __init__(self, journal: Path, policy: LaunchPolicy) -> None:
        self._journal, self._policy = journal, policy
        self._offset = 0
        self._generation = 0
        self._words: dict[int, _Word] = {}
        self._phase_times: dict[int, PhaseTimes] = {}  # also: who has told anything, ever
        self._looked_s = float("-inf")

    @property
    def has_heard(self) -> bool:
        """Whether any worker of this agent has ever said what it does."""
        return bool(self._phase_times)

    def begin(self, generation: int, ranks: Iterable[int], now_s: float) -> None:
        """Workers have been started. A rank is known to speak if one of its number has spoken before."""
        self._generation, self._looked_s = generation, now_s
        self._words = {
            rank: _Word(phase=Phase.START, step=None, heard_s=now_s) for rank in ranks if rank in self._phase_times
        }

    def look(self, now_s: float) -> list[Stuck]:
        """The ranks that hang, the longest silent first; reads the journal twice a second at most."""
        since_s = now_s - self._looked_s
        if since_s < _LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        lines, self._offset = read_lines(self._journal, self._offset, _BATCH_BYTES)
        for line in lines:
            with suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict):
                    self._take(parse_progress(document), now_s)
        if since_s > _AWAY_S:
            self._begin_anew(now_s)
        found = [self._judge(rank, word, now_s) for rank, word in self._words.items()]
        stuck = sorted((each for each in found if each is not None), key=lambda each: -each.silent_s)
        if stuck and self._is_deaf():
            self._begin_anew(now_s)
            return []
        return stuck

    def _begin_anew(self, now_s: float) -> None:
        for word in self._words.values():
            word.heard_s = now_s

    def _is_deaf(self) -> bool:
        is_there = os.path.exists(self._journal)  # noqa: PTH110  # whatever the file system answers
        return not is_there or find_full_disk(self._journal.parent) is not None

    def _take(self, line: Progress, now_s: float) -> None:
        if line.phase is Phase.NOTE:
            return
        times = self._phase_times.setdefault(line.rank, PhaseTimes())
        if line.generation == self._generation:
            self._words[line.rank] = _Word(phase=line.phase, step=line.step, heard_s=now_s)
        times.enter(line, parse_time(line.at))  # a line with no time teaches nothing

    def _judge(self, rank: int, word: _Word, now_s: float) -> Stuck | None:
        limit = limit_s(
            word.phase,
            self._phase_times[rank].summary(),
            startup_timeout_s=self._policy.startup_timeout_s,
            heartbeat_timeout_s=self._policy.heartbeat_timeout_s,
        )
        silent_s = now_s - word.heard_s
        if limit is None or word.phase is Phase.WAITING or silent_s <= limit:
            return None
        return Stuck(rank=rank, phase=word.phase, step=word.step, silent_s=silent_s, limit_s=limit)
