"""What copies in memory cost: the bundled trainer with copies at their default interval, and without.

    python -m benchmarks.copies [--strategies ddp fsdp] [--preset nano] [--rounds N] [--turn SECONDS] [--json]

Two ranks on CPUs, one thread each. The two sides take turns: one trains and the other is stopped (SIGSTOP). After four
rounds both start again. The first turn begins when each rank has made two copies. `excess` is the median of the rounds:
how much longer a step takes with copies, by the mean of all steps of a turn, because a copy affects only some of them.
After a stop a copy is due at once, so there are a few more of them than usual. Exit status 1 if `excess` is above the
limit, 2 %, or if a turn had no copy.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.frame import Figures, begin, build_parser, finish, render_table
from benchmarks.trainer.contestants import Contestant
from benchmarks.trainer.turns import Tally
from benchmarks.trainer.work import USUAL, Work

_LIMIT = 0.02
_WITH, _WITHOUT = "with_copies", "without"


def contest(work: Work, folder: Path) -> Figures:
    tally, copying = Tally(statistics.fmean), list[Contestant]()

    def build(pair: Path) -> Mapping[str, Contestant]:
        copying.append(Contestant(work, True, pair / _WITH, has_copies=True))
        return {_WITH: copying[-1], _WITHOUT: Contestant(work, True, pair / _WITHOUT)}

    tally.play(work, folder, build)
    excess = [own / other - 1 for own, other in zip(tally.times[_WITH], tally.times[_WITHOUT], strict=True)]
    first, median, third = statistics.quantiles(excess, n=4)
    return {
        "strategy": work.strategy,
        "rounds": work.rounds,
        **{f"{side}_ms": round(1000 * statistics.median(tally.times[side]), 2) for side in (_WITH, _WITHOUT)},
        "excess": round(median, 4),
        "quartiles": [round(first, 4), round(third, 4)],
        "cpu_excess": round(tally.cpu_per_step_s(_WITH) / tally.cpu_per_step_s(_WITHOUT) - 1, 4),
        "turns_with_copy": sum(each.turns_with_copy for each in copying),
        "limit": _LIMIT,
    }


def render(scores: Sequence[Figures]) -> list[str]:
    header = [
        "",
        "rounds",
        "with copies",
        "without",
        "excess",
        "quartiles",
        "limit",
        "excess of CPU time",
        "turns with a copy",
    ]
    rows = []
    for score in scores:
        low, high = score["quartiles"]
        row = [score["strategy"], score["rounds"], f"{score['with_copies_ms']} ms", f"{score['without_ms']} ms"]
        row += [f"{score['excess']:.1%}", f"{low:.1%} to {high:.1%}", f"{score['limit']:.0%}"]
        rows.append([*row, f"{score['cpu_excess']:.1%}", score["turns_with_copy"]])
    return render_table(header, rows)


def main() -> int:
    parser = build_parser("copies", __doc__)
    parser.add_argument("--strategies", nargs="+", choices=("ddp", "fsdp"), default=["ddp", "fsdp"])
    parser.add_argument("--preset", default=USUAL["cpu"].preset)
    parser.add_argument("--rounds", type=int, default=20, help="at least 2")
    parser.add_argument("--turn", dest="turn_s", type=float, default=6.0, help="seconds of a turn")
    options = parser.parse_args()
    usual = replace(USUAL["cpu"], preset=options.preset, rounds=options.rounds, turn_s=options.turn_s)
    begin()
    scores = []
    for strategy in options.strategies:
        with tempfile.TemporaryDirectory() as folder:
            scores.append(contest(replace(usual, strategy=strategy), Path(folder)))
        print(scores[-1], file=sys.stderr, flush=True)
    kept = all(each["excess"] <= each["limit"] and each["turns_with_copy"] >= each["rounds"] for each in scores)
    return finish({score["strategy"]: score for score in scores}, render(scores), as_json=options.json, kept=kept)


if __name__ == "__main__":
    sys.exit(main())
