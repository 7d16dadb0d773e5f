"""The mean ETTR of rehearsals beside Daly's closed form, the seconds of one, and many jobs in one cluster.

    python -m benchmarks.simulate_ettr [--seeds 30] [--days 54] [--jobs 10000] [--json]

Exponential failures, no shrinking, as many spares as are needed, a stall of 5 s, a restart of 90 s, Young's interval.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import time
from collections.abc import Sequence

import structlog

from orchestrator.simulator.rehearsal.rehearsal import Rehearsal
from orchestrator.simulator.rehearsal.report import closed_form, ettr
from orchestrator.simulator.rehearsal.scenario import Scenario

_LARGE_GPUS, _LARGE_MTBF_H = 16384, 3.09  # Llama Team, "The Llama 3 Herd of Models" (2024): 419 failures in 54 days


def compare(gpus: int, seeds: Sequence[int], days: float) -> dict[str, object]:
    """One cluster size: the same failures per GPU and hour, whatever its size."""
    scenarios = [Scenario(gpus=gpus, mtbf_h=_LARGE_MTBF_H * _LARGE_GPUS / gpus, days=days, seed=seed) for seed in seeds]
    ratios: list[float] = []
    seconds: list[float] = []
    violations = 0
    for scenario in scenarios:
        started = time.process_time()
        account = Rehearsal(scenario).run()
        seconds.append(time.process_time() - started)
        ratios.append(ettr(account))
        violations += len(account.violations)
    expected, mean = closed_form(scenarios[0]) or math.nan, statistics.mean(ratios)
    return {
        "gpus": gpus,
        "seeds": len(ratios),
        "ettr_mean": mean,
        "ettr_standard_error": statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None,
        "ettr_closed_form": expected,
        "difference": mean / expected - 1,
        "cpu_s_median": statistics.median(seconds),
        "cpu_s_max": max(seconds),
        "violations": violations,
    }


def crowd(jobs: int) -> dict[str, object]:
    """All submitted at once to a cluster that holds a tenth of them."""
    scenario = Scenario(gpus=_LARGE_GPUS, mtbf_h=_LARGE_MTBF_H, days=30, jobs=jobs, job_hours=1, pass_pause_s=60)
    started = time.process_time()
    account = Rehearsal(scenario).run()
    return {
        "jobs": jobs,
        "states": {state.value: count for state, count in account.states.items()},
        "attempts": account.tally.attempts,
        "passes": account.passes,
        "simulated_days": account.lasted_us / 1e6 / 86400,
        "cpu_s": time.process_time() - started,
        "violations": account.violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--days", type=float, default=54)
    parser.add_argument("--jobs", type=int, default=10_000, help="0: leave the many jobs out")
    parser.add_argument("--gpus", type=int, nargs="*", default=[1024, _LARGE_GPUS])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    figures: dict[str, object] = {
        f"{gpus} GPUs": compare(gpus, range(1, options.seeds + 1), options.days) for gpus in options.gpus
    }
    if options.jobs:
        figures[f"{options.jobs} jobs"] = crowd(options.jobs)
    if options.json:
        print(json.dumps(figures))
        return
    for title, part in figures.items():
        print(title)
        for name, value in part.items() if isinstance(part, dict) else ():
            print(f"  {name:<20} {value}")


if __name__ == "__main__":
    main()
