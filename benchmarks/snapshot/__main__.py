"""How long a snapshot delays training, compared with `torch.save` and `dcp.save` in the same run.

    python -m benchmarks.snapshot [--strategies ddp fsdp] [--preset 124m] [--rounds N] [--folder DIR] [--json]
    python -m benchmarks.snapshot --device cuda     # one GPU: 1.1B parameters and 12.9 GB of state, steps in bf16

On CPUs: two gloo ranks with one thread each on this machine; 113.7 million parameters with AdamW in fp32, 1.36 GB of
state. All kinds fsync. Before each, everything written so far is on disk, so that none pays for another. They take
turns, each after a quiet step. `stall` is the excess time until the next update may begin, on the last rank. On
CPUs the stall of `ours, staged` is compared: it writes nothing before that update, because no idle core could write.
`excess` is the excess time of all steps until the snapshot is committed. On a GPU the excess of `ours, async` is
compared. Exit status 1 if a limit was missed.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.frame import (
    Figures,
    begin,
    build_parser,
    finish,
    render_number,
    render_ratio,
    render_table,
    start_ranks,
)
from benchmarks.snapshot.setting import BASELINES, BOUNDS, STAGED, STRATEGIES, Setting, build_setting


def main() -> int:
    parser = build_parser("snapshot", __doc__)
    parser.add_argument("--device", choices=list(BOUNDS), default="cpu")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, help="default: both; on a GPU ddp")
    parser.add_argument("--preset", help="default: 124m; on a GPU 1b")
    parser.add_argument("--rounds", type=int, help="default: 5; on a GPU 3")
    parser.add_argument("--folder", type=Path, help="where snapshots are written; default: a temporary folder")
    options = parser.parse_args()
    begin()
    strategies = options.strategies or (["ddp"] if options.device == "cuda" else list(STRATEGIES))
    settings = [build_setting(strategy, options.device, options.preset, options.rounds) for strategy in strategies]
    summaries = [summarize(measure(setting, options.folder)) for setting in settings]
    kept = all(summary["times_shorter"] >= summary["limit"] for summary in summaries)
    figures = {"rounds": settings[0].rounds, "strategies": summaries}
    return finish(figures, render(summaries, settings[0].rounds), as_json=options.json, kept=kept)


def measure(setting: Setting, parent: Path | None) -> Figures:
    """Run the ranks, and return the result of rank 0."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder, output = Path(name).resolve() / "snapshots", Path(name).resolve() / "result.json"
        folder.mkdir()
        program = [sys.executable, "-m", "benchmarks.snapshot.rank"]
        command = [*program, json.dumps(asdict(setting)), str(folder), str(output)]
        ranks = start_ranks(command, setting.ranks, setting.device, None)
        if any([process.wait() for process in ranks]):  # noqa: C419  # wait for all of them
            sys.exit("a rank failed; its error is above")
        result: Figures = json.loads(output.read_text())
        return result


def summarize(result: Figures) -> Figures:
    """Medians in seconds, without the first round, which allocates buffers."""
    quiet_s = {key: statistics.median(result["quiet"][key]) for key in ("until_update", "whole_step")}
    kinds = {}
    for name, times in result["times"].items():
        stalls_s = sorted(seconds - quiet_s["until_update"] for seconds in times["until_update"][1:])
        kinds[name] = {
            "stall_s": round(statistics.median(stalls_s), 3),
            "stalls_s": [round(seconds, 3) for seconds in stalls_s],
            "excess_s": round(statistics.median(excesses(times, quiet_s["whole_step"])[1:]), 3),
            "in_all_s": round(statistics.median(times["in_all"][1:]), 2),
        }
    strategy, device = result["strategy"], result["device"]
    baseline, bound = BASELINES[strategy], BOUNDS[device][strategy]
    times_shorter = kinds[baseline][bound.measure] / max(1e-3, kinds[bound.ours][bound.measure])
    return {
        "strategy": strategy,
        "device": device,
        "parameters": result["parameters"],
        "quiet_step_s": round(quiet_s["whole_step"], 3),
        "kinds": kinds,
        "baseline": baseline,
        "compared": bound.ours,
        "measure": bound.measure.removesuffix("_s"),
        "times_shorter": round(times_shorter, 1),
        "limit": bound.limit,
        "verify_s": round(statistics.median(result["verify_s"]), 2),
    }


def excesses(times: Figures, quiet_step_s: float) -> list[float]:
    """For each snapshot, how much longer its steps took than the same number of quiet steps."""
    both = zip(times["trained"], times["steps"], strict=True)
    return [trained_s - steps * quiet_step_s for trained_s, steps in both]


def render(summaries: Sequence[Figures], rounds: int) -> list[str]:
    """The ratio compares a stall with that of `ours, staged` in the same run."""
    rows, reported = [], []
    for summary in summaries:
        ours_s = summary["kinds"][STAGED]["stall_s"]
        for name, kind in summary["kinds"].items():
            spread_s = (kind["stall_s"], kind["stalls_s"][0], kind["stalls_s"][-1])
            after_s = (kind["excess_s"], kind["in_all_s"])
            rows.append(
                [
                    f"{summary['strategy']}, {name}",
                    *(render_number(seconds, "s") for seconds in spread_s),
                    render_ratio(kind["stall_s"], ours_s),
                    *(render_number(seconds, "s") for seconds in after_s),
                ]
            )
        reported.append(
            f"{summary['strategy']}: {summary['parameters'] / 1e6:.1f} million parameters, a quiet step takes "
            f"{summary['quiet_step_s']} s; the {summary['measure']} of `{summary['compared']}` is "
            f"{summary['times_shorter']} times shorter than that of {summary['baseline']}, limit {summary['limit']:g}. "
            f"Verifying a snapshot takes {summary['verify_s']} s."
        )
    header = ["stall, median", "least", "greatest", "times ours, staged", "excess of all steps", "on disk after"]
    return [*render_table([f"n = {rounds}", *header], rows), "", *reported]


if __name__ == "__main__":
    sys.exit(main())
