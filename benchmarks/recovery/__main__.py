"""From `kill -9` of a worker to the next optimizer step of all ranks: elasticrun, torchrun made safe, torchrun.

    python -m benchmarks.recovery [--kills N] [--launchers ...] [--programs ...] [--seed N] [--json]

Two workers on this machine. After some steps of each generation one rank, drawn by lot, gets SIGKILL; the time is the
one that the workers themselves write when the step is done, on the same clock. torchrun without settings gets 30 kills
at most. A training that makes no step within two minutes is not recovered; another is started.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import yardstick
from benchmarks.recovery.contestants import LAUNCHERS, PROGRAMS, WORKERS, Training
from deploy.dev.steps import Follower, Step

_MOST_KILLS_OF_DEFAULT = 30
_PATIENCE_S = 120.0
_STEPS_BETWEEN_KILLS = (3, 25)
_FRESH = "is a fresh process"


class NeverStarted(Exception):
    """The training made no first step; the text holds what was printed."""


@dataclass
class Score:
    launcher: str
    program: str
    kills: int = 0
    recovered_s: list[float] = field(default_factory=list)
    steps_redone: list[int] = field(default_factory=list)
    fresh_workers: int = 0  # of ours: started as a fresh interpreter instead of a fork

    def summary(self) -> dict[str, object]:
        times = sorted(self.recovered_s)
        return {
            "launcher": self.launcher,
            "program": self.program,
            "kills": self.kills,
            "recovered": len(times),
            **{f"p{share}_s": _percentile(times, share) for share in (50, 95, 99)},
            "max_s": round(times[-1], 3) if times else None,
            "redone_mean": round(statistics.fmean(self.steps_redone), 1) if times else None,
            "fresh_workers": self.fresh_workers if self.launcher == "ours" else None,
        }


def contest(launcher: str, program: str, kills: int, dice: random.Random) -> Score:
    score = Score(launcher, program)
    while score.kills < kills:
        with tempfile.TemporaryDirectory() as folder:
            training = Training(launcher, program, Path(folder).resolve())
            training.start()
            try:
                strike(training, score, kills, dice)
            finally:
                training.end()
            score.fresh_workers += training.printed().count(_FRESH)
    return score


def strike(training: Training, score: Score, kills: int, dice: random.Random) -> None:
    """Kill workers until there were enough kills, or until the training does not come back."""
    follower = Follower(training.lines)
    first = follower.until(lambda seen: len({step.rank for step in seen}) == WORKERS, _PATIENCE_S)
    if first is None:
        raise NeverStarted(training.printed())
    newest = newest_by_rank(first)
    while score.kills < kills:
        begun, target = newest, target_of(newest, dice.randint(*_STEPS_BETWEEN_KILLS))
        seen = follower.until(partial(reaches, target=target), _PATIENCE_S)
        if seen is None:
            raise NeverStarted(training.printed())
        victim = newest_by_rank(seen)[dice.randrange(WORKERS)]
        score.kills += 1
        killed_at = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        old = {step.pid for step in begun.values()}
        after = follower.until(partial(is_whole, old=old), _PATIENCE_S)
        if after is None:
            return
        # A rank of a generation that failed half-way may have told a step: what counts is the first of each that stays.
        newest = newest_by_rank(after)
        pids = {step.pid for step in newest.values()}
        firsts = [next(step for step in after if step.pid == pid) for pid in pids]
        score.recovered_s.append(max(step.at_s for step in firsts) - killed_at)
        before = max(step.number for step in [*seen, *after] if step.pid in old)
        score.steps_redone.append(before - min(step.number for step in firsts) + 1)


def newest_by_rank(steps: list[Step]) -> dict[int, Step]:
    return {step.rank: step for step in steps}


def target_of(begun: dict[int, Step], steps: int) -> dict[int, int]:
    return {rank: step.number + steps for rank, step in begun.items()}


def reaches(seen: list[Step], target: dict[int, int]) -> bool:
    newest = newest_by_rank(seen)
    return all(rank in newest and newest[rank].number >= number for rank, number in target.items())


def is_whole(seen: list[Step], old: set[int]) -> bool:
    """Whether every rank has told a step in a new process."""
    return len({step.rank for step in seen if step.pid not in old}) == WORKERS


def _percentile(times: list[float], share: int) -> float | None:
    """The nearest rank: the least time that `share` % of the kills did not exceed."""
    return round(times[-(-share * len(times) // 100) - 1], 3) if times else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=LAUNCHERS)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends all the same
    print(f"{yardstick.describe()}  seed {options.seed}", flush=True)
    all_of_ours = True
    for program in options.programs:
        for launcher in options.launchers:
            kills = min(options.kills, _MOST_KILLS_OF_DEFAULT) if launcher == "torchrun" else options.kills
            score = contest(launcher, program, kills, random.Random(options.seed))
            all_of_ours &= launcher != "ours" or len(score.recovered_s) == score.kills
            told = asdict(score) | score.summary() if options.json else score.summary()
            text = json.dumps(told) if options.json else "  ".join(f"{name} {value}" for name, value in told.items())
            print(text, flush=True)
    return 0 if all_of_ours else 1


if __name__ == "__main__":
    sys.exit(main())
