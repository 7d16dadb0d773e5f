"""The bundled trainer beside hand-written loops: the same model, total batch and settings.

    python -m benchmarks.trainer [--strategies plain ddp fsdp] [--preset nano] [--rounds N] [--json]
    python -m benchmarks.trainer --device cuda      # one GPU: 1.1B parameters, bf16, compiled; both fit into 80 GB

Both sides run in turns, for some seconds each, while the other is stopped: what else the machine does at the time
strikes both. On a CPU both start anew after four rounds. A round is one turn of each, in changing order; its ratio is
that of the median times of a step, and above 1 ours is quicker. `cpu` is the CPU time of all ranks for a step, which
neighbours change less. On CPUs there is one thread a rank, and every step is timed; on a GPU ten steps at once, since
the loop by hand waits for the device only at their end. MFU is by the trainer's own table of devices. Exit status 1
when the median of the rounds is below the limit: 0.97, on a GPU 0.99.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from benchmarks import yardstick
from benchmarks.trainer.contestants import Contestant
from benchmarks.trainer.work import MANNERS, STRATEGIES, Manner, Work

# Then both sides start anew: where the memory of a process happens to lie makes its steps some percent longer or
# shorter for as long as it lives, on a CPU. To compile again would take minutes on a GPU.
ROUNDS_OF_A_PAIR = {"cpu": 4, "cuda": 10**9}


@dataclass
class Tally:
    """Of both sides, `ours` by True. A pair's processes stay the same; see ROUNDS_OF_A_PAIR."""

    times: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})  # the median of each turn
    steps: Counter[bool] = field(default_factory=Counter)
    cpu_s: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    ideal_s: float | None = None

    @property
    def rounds(self) -> int:
        return len(self.times[False])

    def play(self, work: Work, rounds: int, turn_s: float, folder: Path) -> None:
        """So many rounds of one pair."""
        ours, theirs = Contestant(work, True, folder / "ours"), Contestant(work, False, folder / "theirs")
        goal = self.rounds + rounds
        try:
            for contestant in (ours, theirs):
                contestant.start()
                self._count(contestant, -1)
            while self.rounds < goal:
                order = (ours, theirs) if self.rounds % 2 else (theirs, ours)
                turns = {contestant.is_ours: contestant.run_for(turn_s) for contestant in order}
                if min(map(len, turns.values())) < 2:  # the machine was too busy for a step
                    turn_s *= 2
                    continue
                for is_ours, turn in turns.items():
                    self.times[is_ours].append(statistics.median(turn))
            for contestant in (ours, theirs):
                self._count(contestant, 1)
            self.ideal_s = ours.ideal_step_s()
        finally:
            ours.end()
            theirs.end()

    def _count(self, contestant: Contestant, sign: int) -> None:
        self.steps[contestant.is_ours] += sign * contestant.steps()
        self.cpu_s[contestant.is_ours] += sign * contestant.cpu_s()


def contest(work: Work, rounds: int, turn_s: float, folder: Path) -> dict[str, object]:
    load, tally = os.getloadavg()[0], Tally()
    while tally.rounds < rounds:
        pair = folder / str(tally.rounds)
        pair.mkdir()
        tally.play(work, min(ROUNDS_OF_A_PAIR[work.device], rounds - tally.rounds), turn_s, pair)
    ratios = sorted(theirs / ours for ours, theirs in zip(tally.times[True], tally.times[False], strict=True))
    quartiles = statistics.quantiles(ratios, n=4)
    ours_cpu_s, theirs_cpu_s = (tally.cpu_s[side] / tally.steps[side] for side in (True, False))
    return {
        "strategy": work.strategy,
        "device": work.device,
        "rounds": rounds,
        "steps": [tally.steps[True], tally.steps[False]],
        "load_before": round(load, 1),
        **speed_of("ours", statistics.median(tally.times[True]), work, tally.ideal_s),
        **speed_of("handwritten", statistics.median(tally.times[False]), work, tally.ideal_s),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "ours_cpu_ms": round(1000 * ours_cpu_s, 1),
        "handwritten_cpu_ms": round(1000 * theirs_cpu_s, 1),
        "cpu_ratio": round(theirs_cpu_s / ours_cpu_s, 3),
        "limit": MANNERS[work.device].limit,
    }


def speed_of(side: str, step_s: float, work: Work, ideal_s: float | None) -> dict[str, float | None]:
    return {
        f"{side}_ms": round(1000 * step_s, 1),
        f"{side}_tokens_per_s": round(work.tokens / step_s),
        f"{side}_mfu": None if ideal_s is None else round(ideal_s / step_s, 4),
    }


def main() -> int:
    options, manner = parse_options()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends all the same
    print(yardstick.describe(), file=sys.stderr if options.json else sys.stdout, flush=True)
    all_quick, scores = True, {}
    for strategy in options.strategies:
        work = build_work(strategy, options.device, manner, options.peak_tflops)
        with tempfile.TemporaryDirectory() as folder:
            score = contest(work, manner.rounds, manner.turn_s, Path(folder))
        all_quick &= float(str(score["ratio"])) >= manner.limit
        scores[strategy] = score
        if not options.json:
            print("  ".join(f"{name} {value}" for name, value in score.items()), flush=True)
    if options.json:
        print(json.dumps(scores))
    return 0 if all_quick else 1


def build_work(strategy: str, device: str, manner: Manner, peak_tflops: float | None) -> Work:
    shared = {name: value for name, value in asdict(manner).items() if name not in ("rounds", "turn_s", "limit")}
    return Work(strategy=strategy, device=device, peak_tflops=peak_tflops, **shared)


def parse_options(argv: list[str] | None = None) -> tuple[argparse.Namespace, Manner]:
    """The manner is the device's, with what the command line says instead."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--device", choices=MANNERS, default="cpu")
    parser.add_argument("--preset")
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.add_argument("--compile", dest="is_compiled", action=argparse.BooleanOptionalAction)
    parser.add_argument("--ranks", type=int, help="of ddp and fsdp; of `plain` there is one")
    parser.add_argument("--window", type=int, help="steps that are timed as one")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--turn", dest="turn_s", type=float, help="seconds")
    parser.add_argument("--peak-tflops", type=float, help="of a device that the trainer's table lacks, for MFU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    usual = MANNERS[options.device]
    said = {field.name: getattr(options, field.name, None) for field in fields(Manner)}
    manner = Manner(**{name: getattr(usual, name) if value is None else value for name, value in said.items()})
    if options.device == "cuda" and manner.ranks > 1:
        parser.error("--ranks: one on a GPU; of several, one stopped first leaves the others' kernels spinning")
    return options, manner


if __name__ == "__main__":
    sys.exit(main())
