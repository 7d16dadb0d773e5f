"""Render the result of a simulation. The same scenario and seed give the same text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.simulator.device_time import BINS
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.simulation import Result
from orchestrator.simulator.virtual_clock import SECOND
from trainer.contract.daly import daly_run_s


def build_report(result: Result) -> dict[str, object]:
    """Return the JSON object of `orchestrator simulate --json`. Goodput is in device-seconds."""
    scenario = result.scenario
    return {
        "scenario": asdict(scenario),
        "days": result.lasted_us / SECOND / 86400,
        "ettr": ettr(result),
        "ettr_closed_form": closed_form(scenario),
        "snapshot_interval_s": _interval_s(scenario),
        "goodput": {each.value: result.bins[each] / SECOND for each in BINS},
        "device_seconds": result.total / SECOND,
        "restarts": _sorted(result.restarts),
        "restarts_in_place": result.restarts_in_place,
        "attempts": result.attempts,
        "decisions": _sorted(result.decisions),
        "jobs": {state.value: result.states[state] for state in sorted(result.states)},
        "faults": _sorted(result.faults),
        "incidents": result.incidents,
        "passes": result.passes,
        "events": result.events,
        "violations": result.violations,
    }


def ettr(result: Result) -> float:
    """Return the effective training time ratio, the share of all device time whose work a snapshot kept."""
    return result.bins[Bin.PRODUCTIVE] / result.total if result.total else 0.0


def closed_form(scenario: Scenario) -> float | None:
    """Return the ETTR by Daly's model. None unless all jobs have one fixed size."""
    devices = scenario.devices_of_each
    if devices is None:
        return None
    return daly_ettr(
        interval_s=scenario.interval_s(devices),
        stall_s=scenario.snapshot_stall_s,
        restart_s=scenario.restart_s,
        mtbf_s=scenario.mtbf_s(devices),
    )


def daly_ettr(*, interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the expected share of the run time that is kept work, by Daly's model. Times are in seconds."""
    return 1 / daly_run_s(1, interval_s=interval_s, stall_s=stall_s, restart_s=restart_s, mtbf_s=mtbf_s)


def render_report(result: Result) -> str:
    scenario = result.scenario
    expected, interval_s = closed_form(scenario), _interval_s(scenario)
    lines = [
        f"{scenario.gpus} GPUs, {scenario.trace}, seed {scenario.seed}: {result.lasted_us / SECOND / 86400:.2f} days, "
        f"{result.incidents} incidents, {result.passes} passes, {result.events} events",
        f"ETTR               {ettr(result):.6f}",
        "Daly's closed form "
        + ("-  (the jobs differ in size)" if expected is None else f"{expected:.6f}")
        + ("" if interval_s is None else f"  (a snapshot every {interval_s:.1f} s)"),
        "",
        "device-seconds by bin",
        *(_line(each.value.replace("_", " "), result.bins[each], result.total) for each in BINS),
        _line("all", result.total, result.total),
        "",
        f"attempts           {result.attempts}",
        f"restarts in place  {result.restarts_in_place}",
        *_table("restarts by class", result.restarts),
        *_table("decisions by rule", result.decisions),
        *_table("jobs", {state.value: count for state, count in result.states.items()}),
        "",
        f"violations: {len(result.violations)}",
        *(f"  {sentence}" for sentence in result.violations),
    ]
    return "\n".join(lines)


def _interval_s(scenario: Scenario) -> float | None:
    devices = scenario.devices_of_each
    return None if devices is None else scenario.interval_s(devices)


def _line(name: str, part: int, total: int) -> str:
    return f"  {name:<16} {part / SECOND:>20.6f}  {part / total if total else 0.0:>10.6%}"


def _table(title: str, counts: Mapping[str, int]) -> list[str]:
    return ["", title, *(f"  {name:<24} {count:>10}" for name, count in _sorted(counts).items())]


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
