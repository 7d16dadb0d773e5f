"""The bundled trainer and hand-written loops, with the same model, total batch and settings.

    python -m benchmarks.trainer [--strategies plain ddp fsdp] [--preset nano] [--rounds N] [--json]
    python -m benchmarks.trainer --device cuda      # one GPU: 1.1B parameters, bf16, compiled; both fit into 80 GB

Both sides run in turns of some seconds, while the other is stopped, so that other load on the machine affects both. On
a CPU both start again after four rounds. A round is one turn of each, in alternating order. Its ratio compares the
median times of a step: above 1 ours is faster. `cpu` is the CPU time of all ranks for a step, which depends less on
other load. On CPUs each rank has one thread, and every step is timed. On a GPU ten steps are timed together, because
the hand-written loop waits for the device only after ten. MFU uses the trainer's table of devices. Exit status 1 if the
median of the rounds is below the limit: 0.97, on a GPU 0.99.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.frame import Figures, begin, build_parser, finish, render_table
from benchmarks.trainer.contestants import Contestant
from benchmarks.trainer.turns import Tally
from benchmarks.trainer.work import STRATEGIES, USUAL, Work

_OURS, _BY_HAND = SIDES = ("ours", "handwritten")


def contest(work: Work, folder: Path) -> Figures:
    tally = Tally(statistics.median)
    tally.play(work, folder, lambda pair: {side: Contestant(work, side == _OURS, pair / side) for side in SIDES})
    ratios = [by_hand / ours for ours, by_hand in zip(tally.times[_OURS], tally.times[_BY_HAND], strict=True)]
    first, _, third = statistics.quantiles(ratios, n=4)
    figures: Figures = {"strategy": work.strategy, "device": work.device, "rounds": work.rounds}
    for side in SIDES:
        figures |= speed_of(side, statistics.median(tally.times[side]), work, tally.ideal_s)
        figures[f"{side}_cpu_ms"] = round(1000 * tally.cpu_per_step_s(side), 1)
    return {
        **figures,
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(first, 3), round(third, 3)],
        "cpu_ratio": round(tally.cpu_per_step_s(_BY_HAND) / tally.cpu_per_step_s(_OURS), 3),
        "limit": work.limit,
    }


def speed_of(side: str, step_s: float, work: Work, ideal_s: float | None) -> Figures:
    return {
        f"{side}_ms": round(1000 * step_s, 1),
        f"{side}_tokens_per_s": round(work.tokens / step_s),
        f"{side}_mfu": None if ideal_s is None else round(ideal_s / step_s, 4),
    }


def render(scores: Sequence[Figures]) -> list[str]:
    """The ratio is the hand-written loop's time over ours: above 1 ours is faster."""
    rows = []
    for score in scores:
        row = [score["strategy"], score["rounds"], *(f"{score[f'{side}_ms']} ms" for side in SIDES)]
        row += [score["ratio"], " to ".join(map(str, score["quartiles"])), score["limit"]]
        row += [*(f"{score[f'{side}_cpu_ms']} ms" for side in SIDES), score["cpu_ratio"]]
        row += [f"{score[f'{side}_tokens_per_s']:,}" for side in SIDES]
        mfu = [score[f"{side}_mfu"] for side in SIDES]
        rows.append([*row, *("" if share is None else f"{share:.1%}" for share in mfu)])
    header = ["", "rounds", "ours", "by hand", "ratio", "quartiles", "limit", "ours, CPU", "by hand, CPU", "CPU ratio"]
    return render_table([*header, "ours, tokens/s", "by hand, tokens/s", "ours, MFU", "by hand, MFU"], rows)


def main() -> int:
    options, usual = parse_options()
    begin()
    scores = []
    for strategy in options.strategies:
        with tempfile.TemporaryDirectory() as folder:
            scores.append(contest(replace(usual, strategy=strategy), Path(folder)))
        print(scores[-1], file=sys.stderr, flush=True)
    kept = all(score["ratio"] >= score["limit"] for score in scores)
    return finish({score["strategy"]: score for score in scores}, render(scores), as_json=options.json, kept=kept)


def parse_options(argv: list[str] | None = None) -> tuple[argparse.Namespace, Work]:
    """The usual work of the device, changed by the command line."""
    parser = build_parser("trainer", __doc__)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--device", choices=USUAL, default="cpu")
    parser.add_argument("--preset")
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.add_argument("--compile", dest="is_compiled", action=argparse.BooleanOptionalAction)
    parser.add_argument("--ranks", type=int, help="ranks of ddp and fsdp; `plain` has one")
    parser.add_argument("--window", type=int, help="steps that are timed as one")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--turn", dest="turn_s", type=float, help="seconds of a turn")
    parser.add_argument("--peak-tflops", type=float, help="peak of a device that the trainer's table lacks, for MFU")
    options = parser.parse_args(argv)
    given = {name: value for name, value in vars(options).items() if value is not None}
    usual = replace(USUAL[options.device], **{name: given[name] for name in given.keys() - {"strategies", "json"}})
    if options.device == "cuda" and usual.ranks > 1:
        parser.error("--ranks: must be 1 on a GPU, because a stopped rank leaves the kernels of the others spinning")
    return options, usual


if __name__ == "__main__":
    sys.exit(main())
