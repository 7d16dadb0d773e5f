"""The bundled trainer beside hand-written loops: the same model and total batch, one thread a rank.

    python -m benchmarks.trainer [--strategies plain ddp fsdp] [--preset nano] [--rounds N] [--json]

Both sides are started once and then run in turns, for some seconds each, while the other is stopped: what else the
machine does at the time strikes both. A round is one turn of each, in changing order; its ratio is that of the median
times of a step, and above 1 ours is quicker. `cpu` is the CPU time of all ranks for a step, which neighbours change
less. Exit status 1 when the median of the rounds is below 0.97.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import yardstick
from benchmarks.trainer.contestants import Contestant, Work

_LIMIT = 0.97


def contest(work: Work, rounds: int, turn_s: float, folder: Path) -> dict[str, object]:
    ours, theirs = Contestant(work, True, folder / "ours"), Contestant(work, False, folder / "theirs")
    times: dict[bool, list[float]] = {True: [], False: []}  # the median of each turn, of ours and of theirs
    load = os.getloadavg()[0]
    try:
        for contestant in (ours, theirs):
            contestant.start()
        before = [(contestant.cpu_s(), contestant.steps()) for contestant in (ours, theirs)]
        while len(times[False]) < rounds:
            turns = {}
            for contestant in (ours, theirs) if len(times[True]) % 2 else (theirs, ours):
                turns[contestant.is_ours] = contestant.run_for(turn_s)
            if min(map(len, turns.values())) < 2:  # the machine was too busy for a step
                turn_s *= 2
                continue
            for is_ours, turn in turns.items():
                times[is_ours].append(statistics.median(turn))
        after = [(contestant.cpu_s(), contestant.steps()) for contestant in (ours, theirs)]
    finally:
        ours.end()
        theirs.end()
    ratios = sorted(theirs / ours for ours, theirs in zip(times[True], times[False], strict=True))
    quartiles = statistics.quantiles(ratios, n=4)
    steps = [end[1] - begin[1] for begin, end in zip(before, after, strict=True)]
    cpu_s = [(end[0] - begin[0]) / count for begin, end, count in zip(before, after, steps, strict=True)]
    return {
        "strategy": work.strategy,
        "rounds": rounds,
        "steps": steps,
        "load_before": round(load, 1),
        "ours_ms": round(1000 * statistics.median(times[True]), 1),
        "handwritten_ms": round(1000 * statistics.median(times[False]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "ours_cpu_ms": round(1000 * cpu_s[0], 1),
        "handwritten_cpu_ms": round(1000 * cpu_s[1], 1),
        "cpu_ratio": round(cpu_s[1] / cpu_s[0], 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["plain", "ddp", "fsdp"]
    parser.add_argument("--strategies", nargs="+", choices=names, default=names)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turn", type=float, default=2.0, help="seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends all the same
    print(yardstick.describe(), file=sys.stderr if options.json else sys.stdout, flush=True)
    all_quick = True
    for strategy in options.strategies:
        work = Work(strategy, options.preset, options.global_batch, options.seq_len)
        with tempfile.TemporaryDirectory() as folder:
            score = contest(work, options.rounds, options.turn, Path(folder))
        all_quick &= float(str(score["ratio"])) >= _LIMIT
        text = json.dumps(score) if options.json else "  ".join(f"{name} {value}" for name, value in score.items())
        print(text, flush=True)
    return 0 if all_quick else 1


if __name__ == "__main__":
    sys.exit(main())
