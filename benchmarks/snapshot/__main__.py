"""How long a snapshot holds training up, beside `torch.save` and `dcp.save` in the same run.

    python -m benchmarks.snapshot [--strategies ddp fsdp] [--preset 124m] [--rounds N] [--folder DIR] [--json]
    python -m benchmarks.snapshot --device cuda     # one GPU: 1.1B parameters and 12.9 GB of state, steps in bf16

On CPUs two gloo ranks with one thread each on this machine; 113.7 million parameters with AdamW in fp32, 1.36 GB of
state. All contestants fsync; before each, everything written before is on disk, so that none pays for another. They
take turns, each behind a quiet step. `stall` is the excess time until the next update may begin, on the last rank; that
of `ours, staged` is compared: there nothing is written before that update, as it would be by idle cores, which this run
lacks. `excess` is the excess of all steps together until the snapshot is committed; that of `ours, async` is compared
on a GPU. `whole` is the excess of the step with the snapshot alone, `first` the stall of the first, which allocates.
Exit status 1 when a limit was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import yardstick
from benchmarks.snapshot.setting import BASELINES, BOUNDS, STRATEGIES, Setting, build_setting, render_setting


def main() -> int:
    options = _options()
    before = yardstick.describe()
    strategies = options.strategies or (["ddp"] if options.device == "cuda" else list(STRATEGIES))
    settings = [build_setting(strategy, options.device, options.preset, options.rounds) for strategy in strategies]
    results = [measure(setting, options.folder) for setting in settings]
    summaries = [summarise(result) for result in results]
    kept = all(summary["times_shorter"] >= summary["limit"] for summary in summaries)
    if options.json:
        print(json.dumps({"machine": before, "rounds": settings[0].rounds, "strategies": summaries}))
        return 0 if kept else 1
    print(f"before: {before}\nafter:  load {os.getloadavg()[0]:.2f}\nn = {settings[0].rounds} of each")
    print("all fsync; nothing older is left to be written when one begins; reads come from the page cache")
    for summary in summaries:
        _print(summary)
    return 0 if kept else 1


def measure(setting: Setting, parent: Path | None) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder, output = Path(name).resolve() / "snapshots", Path(name).resolve() / "result.json"
        folder.mkdir()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        shared = {"WORLD_SIZE": setting.ranks, "LOCAL_WORLD_SIZE": setting.ranks, "MASTER_ADDR": "127.0.0.1"}
        on_cpu = {"OMP_NUM_THREADS": 1, "CUDA_VISIBLE_DEVICES": ""}  # or the trainer's group would take a GPU
        command = [sys.executable, "-m", "benchmarks.snapshot.rank", render_setting(setting), str(folder), str(output)]
        ranks = []
        for rank in range(setting.ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port, **shared}
            place |= on_cpu if setting.device == "cpu" else {}
            variables = {**os.environ, **{key: str(value) for key, value in place.items()}}
            ranks.append(subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL))
        if any([process.wait() for process in ranks]):  # noqa: C419  # all of them, not up to the first
            sys.exit("a rank failed; its error is above")
        result: dict[str, object] = json.loads(output.read_text())
        return result


def summarise(result: dict[str, Any]) -> dict[str, Any]:
    """Medians over the rounds but the first, whose stall stands alone; seconds."""
    quiet_s = {key: statistics.median(result["quiet"][key]) for key in ("until_update", "whole_step")}
    kinds = {}
    for name, times in result["times"].items():
        first, *rest = (seconds - quiet_s["until_update"] for seconds in times["until_update"])
        kinds[name] = {
            "stall_s": round(statistics.median(rest), 3),
            "stalls_s": [round(seconds, 3) for seconds in sorted(rest)],
            "first_stall_s": round(first, 3),
            "excess_s": round(statistics.median(excesses(times, quiet_s["whole_step"])[1:]), 3),
            "in_all_s": round(statistics.median(times["in_all"][1:]), 2),
            "whole_step_s": round(statistics.median(times["whole_step"][1:]) - quiet_s["whole_step"], 3),
            "step_beside_s": round(statistics.median(times["steps_beside"]), 2) if times["steps_beside"] else None,
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


def excesses(times: dict[str, Any], quiet_step_s: float) -> list[float]:
    """Of each snapshot: by how much all steps from its begin to its end took longer than as many quiet ones."""
    both = zip(times["trained"], times["steps"], strict=True)
    return [trained_s - steps * quiet_step_s for trained_s, steps in both]


def _print(summary: dict[str, Any]) -> None:
    million, baseline = summary["parameters"] / 1e6, summary["baseline"]
    print(f"\n{summary['strategy']}, {million:.1f} million parameters + AdamW, quiet step {summary['quiet_step_s']} s")
    names = f"{'':14}{'stall':>8}{'least':>8}{'most':>8}{'first':>8}{'whole':>8}{'excess':>8}{'on disk':>9}"
    print(f"{names}{'a step beside it':>18}")
    for name, kind in summary["kinds"].items():
        least, most = kind["stalls_s"][0], kind["stalls_s"][-1]
        beside = "-" if kind["step_beside_s"] is None else kind["step_beside_s"]
        print(
            f"{name:14}{kind['stall_s']:8}{least:8}{most:8}{kind['first_stall_s']:8}{kind['whole_step_s']:8}"
            f"{kind['excess_s']:8}{kind['in_all_s']:9}{beside:>18}"
        )
    told = f"{summary['measure']} of {summary['compared']}: {summary['times_shorter']} times shorter than {baseline}"
    print(f"{told}, limit {summary['limit']}")
    print(f"verification of a whole snapshot, from the page cache: {summary['verify_s']} s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snapshot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=list(BOUNDS), default="cpu")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, help="both; on a GPU ddp")
    parser.add_argument("--preset", help="124m; on a GPU 1b")
    parser.add_argument("--rounds", type=int, help="5; on a GPU 3")
    parser.add_argument("--folder", type=Path, help="where snapshots go; absent: the temporary folder")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
