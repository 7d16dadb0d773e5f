"""From `kill -9` of a worker to the next optimizer step of all ranks: elasticrun, torchrun made safe, torchrun.

    python -m benchmarks.recovery [--kills N] [--launchers ...] [--programs ...] [--steps-between A B] [--seed N]
    python -m benchmarks.recovery --json [--strategy ddp|fsdp|hsdp] [--script FILE [--script-args "..."]]
    python -m benchmarks.recovery --device cuda [--preset 124m]
    python -m benchmarks.recovery --agents [--kills N] [--programs ...]

Two workers train on this machine; on one GPU the trainer has one, because NCCL refuses two ranks there. After some
steps of each generation a random rank gets SIGKILL, at a random moment of its next step. The workers themselves write
the time of each step, on the same clock. torchrun with its defaults gets at most 10 kills. Training that completes no
step within two minutes has not recovered and is started again.

--json prints one object, for one program: {"elastic": ..., "torchrun": ..., "torchrun_safe": ...} with times in seconds
and `steps_redone` as the mean per kill; `most_steps_redone` is the most after one kill. For the bundled trainer it also
has `split`: the median of each part of the time from the kill to rank 0's next step. The program `script-supervised` is
`script` with trainer.supervised, and `script-reentered` also has `reenter`. Your own script runs unchanged; its steps
are those of its optimizer.

--agents kills elasticrun's agent instead of a worker. Its workers die with it, and another agent starts all of them.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_ratio, render_table
from benchmarks.recovery.contestants import DEVICES, LAUNCHERS, ON_CPU, OWN_SCRIPT, PROGRAMS, Setting, Training
from benchmarks.recovery.split import PARTS, Kill, Split, summarize
from benchmarks.recovery.steps import Follower, Step

_MOST_DEFAULT_KILLS = 10  # some do not recover, which takes two minutes each
_PATIENCE_S = 120.0
_REPORT_EVERY = 50  # kills; a run of a thousand takes an hour
_STEPS_BETWEEN_KILLS = (25, 150)  # after one second there are spare workers again
_KEYS = {"ours": "elastic", "torchrun": "torchrun", "torchrun-safe": "torchrun_safe"}
_NAMES = {"ours": "elasticrun", "torchrun": "torchrun, defaults", "torchrun-safe": "torchrun, safe settings"}


class NeverStarted(Exception):
    """Training made no first step, or too few steps for a kill. The message has its output."""


@dataclass
class Score:
    launcher: str
    program: str
    kills: int = 0
    recovered_s: list[float] = field(default_factory=list)
    steps_redone: list[int] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)  # of the bundled trainer
    sources: Counter[str] = field(default_factory=Counter)  # where the state came from; unknown for the plain script

    @property
    def name(self) -> str:
        return f"{self.program}, {_NAMES[self.launcher]}"

    def document(self) -> Figures:
        """For --json."""
        return {
            "kills": self.kills,
            "recovered": len(self.recovered_s),
            **{f"p{share}_s": self.percentile(share) for share in (50, 95, 99)},
            "steps_redone": round(statistics.fmean(self.steps_redone), 1) if self.steps_redone else None,
            "most_steps_redone": max(self.steps_redone, default=None),
            **({"split": summarize(self.splits)} if self.splits else {}),
            **({"restored_from": dict(self.sources)} if self.sources else {}),
        }

    def percentile(self, share: int) -> float | None:
        """The nearest-rank percentile: the least time that `share` % of the kills did not exceed."""
        times = sorted(self.recovered_s)
        return round(times[-(-share * len(times) // 100) - 1], 3) if times else None


def render(scores: Sequence[Score]) -> list[str]:
    """A row for each launcher and program, and the parts of the trainer's time."""
    ours_s = {score.program: score.percentile(50) for score in scores if score.launcher == "ours"}
    rows = [
        [
            score.name,
            f"{len(score.recovered_s)} of {score.kills}",
            *(render_number(score.percentile(share), "s") for share in (50, 95, 99, 100)),
            render_number(score.document()["steps_redone"]),
            render_number(score.document()["most_steps_redone"]),
            ", ".join(f"{source} {count}" for source, count in sorted(score.sources.items())),
            render_ratio(score.percentile(50), ours_s.get(score.program)),
        ]
        for score in scores
    ]
    header = [
        "program, launcher",
        "recovered",
        "p50",
        "p95",
        "p99",
        "longest",
        "steps repeated",
        "most steps repeated",
        "restored from",
        "times elasticrun's p50",
    ]
    splits = [
        [score.name, *(render_number(summarize(score.splits)[part], "s") for part in PARTS)]
        for score in scores
        if score.splits
    ]
    reported = ["", *render_table(["medians, from a kill to rank 0's next step", *PARTS.values()], splits)]
    return [*render_table(header, rows), *(reported if splits else [])]


def measure(
    launcher: str,
    program: str,
    kills: int,
    rng: random.Random,
    script: tuple[str, ...] = (),
    steps_between: tuple[int, int] = _STEPS_BETWEEN_KILLS,
    setting: Setting = ON_CPU,
    *,
    agents: bool = False,
) -> Score:
    """`agents`: kill elasticrun's agent, not a worker."""
    score = Score(launcher, program)
    while score.kills < kills:
        with tempfile.TemporaryDirectory() as folder:
            training = Training(launcher, program, Path(folder).resolve(), script, setting)
            training.start()
            before, restarts = score.kills, list[Kill]()
            try:
                kill_all(training, score, kills, rng, steps_between, restarts, agents=agents)
                if score.kills == before:
                    raise NeverStarted(f"training ended before a kill: {training.printed()}")
            finally:
                training.end()
            score.splits += training.split(restarts)
            score.sources += training.sources()
    return score


def measure_agent_kills(
    program: str, kills: int, rng: random.Random, steps_between: tuple[int, int] = _STEPS_BETWEEN_KILLS
) -> Score:
    """From the kill of elasticrun's agent to the next step of all ranks."""
    return measure("ours", program, kills, rng, steps_between=steps_between, agents=True)


def kill_all(
    training: Training,
    score: Score,
    kills: int,
    rng: random.Random,
    steps_between: tuple[int, int],
    restarts: list[Kill],
    *,
    agents: bool = False,
) -> None:
    """Kill workers or agents until there were enough kills or training does not recover.

    Appends each kill to `restarts`.
    """
    follower, workers = Follower(training.lines), training.workers
    first = follower.until(lambda seen: len({step.rank for step in seen}) == workers, _PATIENCE_S)
    if first is None:
        raise NeverStarted(training.printed())
    newest = newest_by_rank(first)
    while score.kills < kills:
        begun, steps = newest, rng.randint(*steps_between)
        target = {rank: step.number + steps for rank, step in begun.items()}
        seen = follower.until(partial(_is_time, training, target), _PATIENCE_S)
        if seen is None:
            raise NeverStarted(training.printed())
        if training.has_ended():
            return
        victim = newest_by_rank(seen)[rng.randrange(workers)]
        step_s = (victim.at_s - begun[victim.rank].at_s) / max(1, victim.number - begun[victim.rank].number)
        time.sleep(rng.uniform(0, step_s))  # at any moment of a step
        score.kills += 1
        pid = training.find_agent() if agents else victim.pid
        killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        old = {step.life for step in begun.values()}
        after = follower.until(partial(is_whole, old=old, workers=workers), _PATIENCE_S)
        if after is None:
            return
        # A rank of a generation that failed early may have reported a step. Only the newest lives count.
        newest = newest_by_rank(after)
        lives = {step.life for step in newest.values()}
        firsts = [next(step for step in after if step.life == life) for life in lives]
        restarts.append(Kill(at_s=killed_at, first=newest[0].life))
        score.recovered_s.append(max(step.at_s for step in firsts) - killed_at)
        before = max(step.number for step in [*seen, *after] if step.life in old)
        # The killed worker may have completed a step that it had not reported.
        score.steps_redone.append(max(0, before - min(step.number for step in firsts) + 1))
        if score.kills % _REPORT_EVERY == 0:
            print(f"{score.name}: {score.document()}", file=sys.stderr, flush=True)


def newest_by_rank(steps: list[Step]) -> dict[int, Step]:
    return {step.rank: step for step in steps}


def _is_time(training: Training, target: dict[int, int], seen: list[Step]) -> bool:
    """Whether every rank has reached the step at which one is killed."""
    newest = newest_by_rank(seen)
    reached = all(rank in newest and newest[rank].number >= number for rank, number in target.items())
    return reached or training.has_ended()


def is_whole(seen: list[Step], old: set[tuple[int, int]], workers: int) -> bool:
    """Whether every rank has reported a step since the restart."""
    return len({step.rank for step in seen if step.life not in old}) == workers


def main() -> int:
    options = _parse_options()
    begin()
    scores = list(_measure_all(options))
    kept = all(len(score.recovered_s) == score.kills for score in scores if score.launcher == "ours")
    figures = {_KEYS[score.launcher]: score.document() for score in scores}  # there is one program
    return finish(figures, render(scores), as_json=options.json, kept=kept)


def _measure_all(options: Namespace) -> Iterable[Score]:
    setting = Setting(device=options.device, preset=options.preset, memory=options.memory)
    for program in options.programs:
        for launcher in options.launchers:
            kills = min(options.kills, _MOST_DEFAULT_KILLS) if launcher == "torchrun" else options.kills
            rng, between = random.Random(options.seed), tuple(options.steps_between)
            score = measure(launcher, program, kills, rng, options.script, between, setting, agents=options.agents)
            print(f"{score.name}: {score.document()}", file=sys.stderr, flush=True)
            yield score


def _parse_options() -> Namespace:
    """`programs` has those to run; `script` is the command line of the user's own."""
    parser = build_parser("recovery", __doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=LAUNCHERS)
    program = parser.add_mutually_exclusive_group()
    program.add_argument("--programs", nargs="+", choices=PROGRAMS, help="default: all, with --json trainer-ddp")
    program.add_argument("--strategy", choices=("ddp", "fsdp", "hsdp"), help="strategy of the bundled trainer")
    program.add_argument("--script", metavar="FILE", help="your own script, which trains with torch's optimizers")
    parser.add_argument("--script-args", default="", help="its arguments, in shell syntax")
    parser.add_argument("--steps-between", type=int, nargs=2, metavar=("LEAST", "MOST"), default=_STEPS_BETWEEN_KILLS)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="of the trainer and of the plain script")
    parser.add_argument("--preset", default="nano", help="the bundled trainer's model")
    parser.add_argument("--memory", default="auto", help="how often the bundled trainer copies its state into memory")
    parser.add_argument("--agents", action="store_true", help="kill elasticrun's agent instead of a worker")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.agents:
        options.launchers = LAUNCHERS[:1]
    if options.strategy is not None:
        options.programs = [f"trainer-{options.strategy}"]
    elif options.script is not None:
        options.programs = [OWN_SCRIPT]
    elif options.programs is None:
        options.programs = list(PROGRAMS[:1] if options.json else PROGRAMS)
    if options.json and len(options.programs) > 1:
        parser.error("--json prints one program: name one")
    own = options.script and (str(Path(options.script).resolve()), *shlex.split(options.script_args))
    options.script = own or ()
    return options


if __name__ == "__main__":
    sys.exit(main())
