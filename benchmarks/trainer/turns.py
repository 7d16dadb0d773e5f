"""Let two sides train in turns. One is stopped meanwhile, so that other load on the machine affects both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.trainer.contestants import Contestant
from benchmarks.trainer.work import Work

# Then both sides start again. On a CPU the layout of a process's memory makes its steps some percent longer or shorter
# during its whole life. On a GPU a new start would compile again for minutes.
ROUNDS_OF_A_PAIR = {"cpu": 4, "cuda": 10**9}
_LONGEST_TURN_S = 120.0


@dataclass
class Tally:
    """The times of both sides, by their names. `average` is that of the steps of a turn."""

    average: Callable[[Sequence[float]], float]
    times: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # of a step, by turn
    ideal_s: float | None = None  # of the first side
    _steps: Counter[str] = field(default_factory=Counter)
    _cpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _rounds: int = 0

    def play(self, work: Work, folder: Path, build: Callable[[Path], Mapping[str, Contestant]]) -> None:
        """Play all rounds. `build` makes a pair with an empty folder."""
        while self._rounds < work.rounds:
            own = folder / str(self._rounds)
            own.mkdir()
            self._play(work, build(own), min(work.rounds, self._rounds + ROUNDS_OF_A_PAIR[work.device]))

    def cpu_per_step_s(self, side: str) -> float:
        """CPU time of all ranks."""
        return self._cpu_s[side] / self._steps[side]

    def _play(self, work: Work, pair: Mapping[str, Contestant], goal: int) -> None:
        turn_s = work.turn_s
        try:
            for contestant in pair.values():
                contestant.start()
            self._count(pair, -1)
            while self._rounds < goal:
                order = pair if self._rounds % 2 else reversed(list(pair))
                turns = {side: pair[side].run_for(turn_s) for side in order}
                if min(map(len, turns.values())) < 2:  # the machine was too busy for a step
                    turn_s *= 2
                    if turn_s > _LONGEST_TURN_S:
                        raise RuntimeError(f"less than two steps in {turn_s / 2:.0f} s")
                    continue
                for side, turn in turns.items():
                    self.times[side].append(self.average(turn))
                self._rounds += 1
            self._count(pair, 1)
            self.ideal_s = next(iter(pair.values())).ideal_step_s()
        finally:
            for contestant in pair.values():
                contestant.end()

    def _count(self, pair: Mapping[str, Contestant], sign: int) -> None:
        for side, contestant in pair.items():
            self._steps[side] += sign * contestant.steps()
            self._cpu_s[side] += sign * contestant.cpu_s()
