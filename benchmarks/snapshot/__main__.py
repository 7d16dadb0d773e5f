"""How long a snapshot holds training up, beside `torch.save` and `dcp.save` in the same run.

    python -m benchmarks.snapshot [--strategies ddp fsdp] [--preset 124m] [--rounds N] [--folder DIR] [--json]

Two gloo ranks with one thread each on this machine; 113.7 million parameters with AdamW in fp32, 1.36 GB of state. All
contestants fsync; before each, everything written before is on disk, so that none pays for another. They take turns,
each behind a quiet step. `stall` is the excess time until the next update may begin, on the last rank: until staged.
`whole` is the excess of that whole step, `first` the stall of the first, which allocates.
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

from benchmarks import yardstick

_RANKS = 2
_BASELINES = {"ddp": "torch.save", "fsdp": "dcp.save"}
_LIMITS = {"ddp": 5.0, "fsdp": 4.0}  # times that the baseline's stall must be longer


def main() -> int:
    options = _options()
    before = yardstick.describe()
    results = [measure(strategy, options) for strategy in options.strategies]
    summaries = [summarise(result) for result in results]
    if options.json:
        print(json.dumps({"machine": before, "rounds": options.rounds, "strategies": summaries}))
        return 0
    print(f"before: {before}\nafter:  load {os.getloadavg()[0]:.2f}\nn = {options.rounds} of each, {_RANKS} gloo ranks")
    print("all fsync; nothing older is left to be written when one begins; reads come from the page cache")
    for summary in summaries:
        _print(summary)
    return 0


def measure(strategy: str, options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, output = Path(name).resolve() / "snapshots", Path(name).resolve() / "result.json"
        folder.mkdir()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        shared = {"WORLD_SIZE": _RANKS, "LOCAL_WORLD_SIZE": _RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-m", "benchmarks.snapshot.rank", strategy, options.preset, options.rounds]
        ranks = []
        for rank in range(_RANKS):
            place = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1, **shared}
            variables = {**os.environ, **{key: str(value) for key, value in place.items()}}
            arguments = [str(part) for part in (*command, folder, output)]
            ranks.append(subprocess.Popen(arguments, env=variables, stdout=subprocess.DEVNULL))
        if any([process.wait() for process in ranks]):  # noqa: C419  # all of them, not up to the first
            sys.exit("a rank failed; its error is above")
        result: dict[str, object] = json.loads(output.read_text())
        return result


def summarise(result: dict) -> dict[str, object]:
    """Medians over the rounds but the first, whose stall stands alone; seconds."""
    quiet_s = {key: statistics.median(result["quiet"][key]) for key in ("until_update", "whole_step")}
    kinds = {}
    for name, times in result["times"].items():
        first, *rest = (seconds - quiet_s["until_update"] for seconds in times["until_update"])
        kinds[name] = {
            "stall_s": round(statistics.median(rest), 3),
            "stalls_s": [round(seconds, 3) for seconds in sorted(rest)],
            "first_stall_s": round(first, 3),
            "in_all_s": round(statistics.median(times["in_all"][1:]), 2),
            "whole_step_s": round(statistics.median(times["whole_step"][1:]) - quiet_s["whole_step"], 3),
            "step_beside_s": round(statistics.median(times["steps_beside"]), 2) if times["steps_beside"] else None,
        }
    strategy, baseline = result["strategy"], _BASELINES[result["strategy"]]
    times_shorter = kinds[baseline]["stall_s"] / max(1e-3, kinds["ours, async"]["stall_s"])
    return {
        "strategy": strategy,
        "parameters": result["parameters"],
        "quiet_step_s": round(quiet_s["whole_step"], 3),
        "kinds": kinds,
        "baseline": baseline,
        "times_shorter": round(times_shorter, 1),
        "limit": _LIMITS[strategy],
        "verify_s": round(statistics.median(result["verify_s"]), 2),
    }


def _print(summary: dict) -> None:
    million, baseline = summary["parameters"] / 1e6, summary["baseline"]
    print(f"\n{summary['strategy']}, {million:.1f} million parameters + AdamW, quiet step {summary['quiet_step_s']} s")
    print(f"{'':14}{'stall':>8}{'least':>8}{'most':>8}{'first':>8}{'whole':>8}{'on disk':>9}{'a step beside it':>18}")
    for name, kind in summary["kinds"].items():
        least, most = kind["stalls_s"][0], kind["stalls_s"][-1]
        beside = "-" if kind["step_beside_s"] is None else kind["step_beside_s"]
        print(
            f"{name:14}{kind['stall_s']:8}{least:8}{most:8}{kind['first_stall_s']:8}{kind['whole_step_s']:8}{kind['in_all_s']:9}{beside:>18}"
        )
    print(f"{summary['times_shorter']} times shorter than {baseline}, limit {summary['limit']}")
    print(f"verification of a whole snapshot, from the page cache: {summary['verify_s']} s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot", description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=list(_BASELINES), default=list(_BASELINES))
    parser.add_argument("--preset", default="124m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where snapshots go; absent: the temporary folder")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
