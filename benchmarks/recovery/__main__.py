"""From `kill -9` of a worker to the next optimizer step of all ranks: elasticrun, torchrun made safe, torchrun.

    python -m benchmarks.recovery [--kills N] [--launchers ...] [--programs ...] [--steps-between A B] [--seed N]
    python -m benchmarks.recovery --json [--strategy ddp|fsdp] [--script FILE [--script-args "..."]]
    python -m benchmarks.recovery --device cuda [--preset 124m]

Two workers on this machine; on one GPU the trainer gets one, since NCCL refuses two ranks there. After some steps of
each generation one rank, drawn by lot, gets SIGKILL; the time is the one that the workers themselves write when the
step is done, on the same clock. torchrun without settings gets 30 kills at most. A training that makes no step within
two minutes is not recovered; another is started.

--json prints one object, of one program: {"elastic": ..., "torchrun": ..., "torchrun_safe": ...} with times in seconds
and `steps_redone` as the mean of a kill; of the bundled trainer also `split`, the medians of where the time went, from
the kill to rank 0's next step. A script of your own is run as it is; its steps are those of its optimizer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import yardstick
from benchmarks.recovery.contestants import DEVICES, LAUNCHERS, ON_CPU, OWN_SCRIPT, PROGRAMS, Setting, Training
from benchmarks.recovery.split import Kill, Split, summarise
from deploy.dev.steps import Follower, Step

_MOST_KILLS_OF_DEFAULT = 30
_PATIENCE_S = 120.0
_STEPS_BETWEEN_KILLS = (25, 150)  # from the second second on there are spares again
_FRESH = "is a fresh process"
_KEYS = {"ours": "elastic", "torchrun": "torchrun", "torchrun-safe": "torchrun_safe"}


class NeverStarted(Exception):
    """The training made no first step, or too few to be killed in; the text holds what was printed."""


@dataclass
class Score:
    launcher: str
    program: str
    kills: int = 0
    recovered_s: list[float] = field(default_factory=list)
    steps_redone: list[int] = field(default_factory=list)
    fresh_workers: int = 0  # of ours: started as a fresh interpreter instead of a fork
    spares: int = 0  # of ours: forked ahead
    splits: list[Split] = field(default_factory=list)  # of the bundled trainer

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
            "spares": self.spares if self.launcher == "ours" else None,
            **({"split": summarise(self.splits)} if self.splits else {}),
        }

    def document(self) -> dict[str, object]:
        """For --json."""
        summary = self.summary()
        told = {name: summary[name] for name in ("kills", "recovered", "p50_s", "p95_s", "p99_s")}
        split = {"split": summary["split"]} if "split" in summary else {}
        return {**told, "steps_redone": summary["redone_mean"], **split}


def contest(
    launcher: str,
    program: str,
    kills: int,
    dice: random.Random,
    script: tuple[str, ...] = (),
    steps_between: tuple[int, int] = _STEPS_BETWEEN_KILLS,
    setting: Setting = ON_CPU,
) -> Score:
    score = Score(launcher, program)
    while score.kills < kills:
        with tempfile.TemporaryDirectory() as folder:
            training = Training(launcher, program, Path(folder).resolve(), script, setting)
            training.start()
            before, restarts = score.kills, list[Kill]()
            try:
                strike(training, score, kills, dice, steps_between, restarts)
                if score.kills == before:
                    raise NeverStarted(f"it ended before it could be killed: {training.printed()}")
            finally:
                training.end()
            score.fresh_workers += training.printed().count(_FRESH)
            score.spares += training.count_spares()
            score.splits += training.split(restarts)
    return score


def strike(
    training: Training,
    score: Score,
    kills: int,
    dice: random.Random,
    steps_between: tuple[int, int],
    restarts: list[Kill],
) -> None:
    """Kill workers until there were enough kills, or until the training does not come back; note each in `restarts`."""
    follower, workers = Follower(training.lines), training.workers
    first = follower.until(lambda seen: len({step.rank for step in seen}) == workers, _PATIENCE_S)
    if first is None:
        raise NeverStarted(training.printed())
    newest = newest_by_rank(first)
    while score.kills < kills:
        begun, target = newest, target_of(newest, dice.randint(*steps_between))
        seen = follower.until(partial(_is_time, training, target), _PATIENCE_S)
        if seen is None:
            raise NeverStarted(training.printed())
        if training.has_ended():
            return
        victim = newest_by_rank(seen)[dice.randrange(workers)]
        score.kills += 1
        killed_at = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        old = {step.pid for step in begun.values()}
        after = follower.until(partial(is_whole, old=old, workers=workers), _PATIENCE_S)
        if after is None:
            return
        # A rank of a generation that failed half-way may have told a step: what counts is the first of each that stays.
        newest = newest_by_rank(after)
        pids = {step.pid for step in newest.values()}
        firsts = [next(step for step in after if step.pid == pid) for pid in pids]
        restarts.append(Kill(at_s=killed_at, first_pid=newest[0].pid))
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


def _is_time(training: Training, target: dict[int, int], seen: list[Step]) -> bool:
    return reaches(seen, target) or training.has_ended()


def is_whole(seen: list[Step], old: set[int], workers: int) -> bool:
    """Whether every rank has told a step in a new process."""
    return len({step.rank for step in seen if step.pid not in old}) == workers


def _percentile(times: list[float], share: int) -> float | None:
    """The nearest rank: the least time that `share` % of the kills did not exceed."""
    return round(times[-(-share * len(times) // 100) - 1], 3) if times else None


def main() -> int:
    options = _parse_options()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends all the same
    print(f"{yardstick.describe()}  seed {options.seed}", file=sys.stderr if options.json else sys.stdout, flush=True)
    all_of_ours = True
    document: dict[str, object] = {}
    for program in options.programs:
        for launcher in options.launchers:
            kills = min(options.kills, _MOST_KILLS_OF_DEFAULT) if launcher == "torchrun" else options.kills
            dice, between = random.Random(options.seed), tuple(options.steps_between)
            setting = Setting(device=options.device, preset=options.preset)
            score = contest(launcher, program, kills, dice, options.script, between, setting)
            all_of_ours &= launcher != "ours" or len(score.recovered_s) == score.kills
            document[_KEYS[launcher]] = score.document()
            if not options.json:
                print("  ".join(f"{name} {value}" for name, value in score.summary().items()), flush=True)
    if options.json:
        print(json.dumps(document))
    return 0 if all_of_ours else 1


def _parse_options() -> argparse.Namespace:
    """`programs` are those that will run; `script` is the command line of the user's own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=LAUNCHERS)
    program = parser.add_mutually_exclusive_group()
    program.add_argument("--programs", nargs="+", choices=PROGRAMS, help="default: all, with --json trainer-ddp")
    program.add_argument("--strategy", choices=("ddp", "fsdp"), help="the bundled trainer's")
    program.add_argument("--script", metavar="FILE", help="any script of yours that trains with torch's optimizers")
    parser.add_argument("--script-args", default="", help="its arguments, as a shell has them")
    parser.add_argument("--steps-between", type=int, nargs=2, metavar=("LEAST", "MOST"), default=_STEPS_BETWEEN_KILLS)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="of the trainer, and of the plain script")
    parser.add_argument("--preset", default="nano", help="the bundled trainer's model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object, of one program")
    options = parser.parse_args()
    if options.strategy is not None:
        options.programs = [f"trainer-{options.strategy}"]
    elif options.script is not None:
        options.programs = [OWN_SCRIPT]
    elif options.programs is None:
        options.programs = list(PROGRAMS[:1] if options.json else PROGRAMS)
    if options.json and len(options.programs) > 1:
        parser.error("--json tells of one program: name one")
    own = options.script and (str(Path(options.script).resolve()), *shlex.split(options.script_args))
    options.script = own or ()
    return options


if __name__ == "__main__":
    sys.exit(main())
