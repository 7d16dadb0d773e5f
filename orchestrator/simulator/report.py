"""Render the result of a simulation. The same scenario and seed give the same text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.simulator.device_time import BINS
from orchestrator.simulator.memory_tier import MemoryTier
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.simulation import Result
from orchestrator.simulator.two_tiers import TwoTiers, mean_restart_s, two_tier_ettr
from orchestrator.simulator.virtual_clock import SECOND
from trainer.contract.daly import daly_run_s


def build_report(result: Result, plain: Result | None = None) -> dict[str, object]:
    """Return the JSON object of `orchestrator simulate --json`. Goodput is in device-seconds.

    `plain` is the result for the same failures without copies in memory.
    """
    scenario = result.scenario
    return {
        "scenario": asdict(scenario),
        "days": result.lasted_us / SECOND / 86400,
        "ettr": ettr(result),
        "ettr_closed_form": closed_form(scenario),
        "ettr_without_memory": None if plain is None else ettr(plain),
        "days_without_memory": None if plain is None else plain.lasted_us / SECOND / 86400,
        "ettr_closed_form_without_memory": None if plain is None else closed_form(plain.scenario),
        "snapshot_interval_s": _interval_s(scenario),
        "goodput": {each.value: result.bins[each] / SECOND for each in BINS},
        "device_seconds": result.total / SECOND,
        "restarts": _sorted(result.restarts),
        "restarts_in_place": result.restarts_in_place,
        "restarts_by_source": _sorted(result.sources),
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
    """Return the ETTR by Daly's model, or with copies in memory by its extension to two tiers.

    None unless all jobs have one fixed size.
    """
    devices = scenario.devices_of_each
    if devices is None:
        return None
    if scenario.memory is not None:
        return two_tier_ettr(_build_tiers(scenario, scenario.memory, devices))
    mtbf_s, share = scenario.mtbf_s(devices), scenario.workers_share
    restarts_s = ((1 - share, scenario.restart_s), (share, scenario.restart_in_place_s))
    return daly_ettr(
        interval_s=scenario.interval_s(devices),
        stall_s=scenario.snapshot_stall_s,
        restart_s=mean_restart_s(restarts_s, mtbf_s) if share else scenario.restart_s,
        mtbf_s=mtbf_s,
    )


def _build_tiers(scenario: Scenario, memory: MemoryTier, devices: int) -> TwoTiers:
    """Return the model's parameters. Without buddies, survivors lose a step at most, so a copy per step costs as much.

    With buddies, most restarts need a copy, so the interval of the copies counts for all.
    """
    rate, share = 1 / scenario.mtbf_s(devices), scenario.disk_share(devices)
    interval_s = scenario.interval_s(devices)
    copies, stall_s = scenario.copies(devices), memory.stall_s
    if memory.survivors and memory.buddies < 2:
        steps = max(1, round(interval_s / scenario.step_s))
        copies, stall_s = steps, stall_s * copies / steps
    return TwoTiers(
        memory_rate=rate * (1 - share),
        disk_rate=rate * share,
        copy_interval_s=interval_s / copies,
        copy_stall_s=stall_s,
        copies=copies,
        snapshot_stall_s=scenario.snapshot_stall_s,
        memory_restart_s=memory.restart_s,
        disk_restart_s=scenario.restart_s,
    )


def daly_ettr(*, interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the expected share of the run time that is kept work, by Daly's model. Times are in seconds."""
    return 1 / daly_run_s(1, interval_s=interval_s, stall_s=stall_s, restart_s=restart_s, mtbf_s=mtbf_s)


def render_report(result: Result, plain: Result | None = None) -> str:
    scenario = result.scenario
    interval_s = _interval_s(scenario)
    lines = [
        f"{scenario.gpus} GPUs, {scenario.trace}, seed {scenario.seed}: {result.lasted_us / SECOND / 86400:.2f} days, "
        f"{result.incidents} incidents, {result.passes} passes, {result.events} events",
        f"ETTR               {ettr(result):.6f}",
        *([] if plain is None else [f"  without copies   {ettr(plain):.6f}{_tell_end(result, plain)}"]),
        f"Daly's closed form {_render_closed_form(scenario)}"
        + ("" if interval_s is None else f"  (a snapshot every {interval_s:.1f} s)"),
        *([] if plain is None else [f"  without copies   {_render_closed_form(plain.scenario)}"]),
        "",
        "device-seconds by bin",
        *(_line(each.value.replace("_", " "), result.bins[each], result.total) for each in BINS),
        _line("all", result.total, result.total),
        "",
        f"attempts           {result.attempts}",
        f"restarts in place  {result.restarts_in_place}",
        *_table("restarts by class", result.restarts),
        *(_table("restarts by source", result.sources) if scenario.memory is not None else []),
        *_table("decisions by rule", result.decisions),
        *_table("jobs", {state.value: count for state, count in result.states.items()}),
        "",
        f"violations: {len(result.violations)}",
        *(f"  {sentence}" for sentence in result.violations),
    ]
    return "\n".join(lines)


def _tell_end(result: Result, plain: Result) -> str:
    """Say if the run without copies ended at another time, for example because the policy gave its job up."""
    return (
        "" if plain.lasted_us == result.lasted_us else f"  (it ended after {plain.lasted_us / SECOND / 86400:.2f} days)"
    )


def _render_closed_form(scenario: Scenario) -> str:
    expected = closed_form(scenario)
    return "-  (the jobs differ in size)" if expected is None else f"{expected:.6f}"


def _interval_s(scenario: Scenario) -> float | None:
    devices = scenario.devices_of_each
    return None if devices is None else scenario.interval_s(devices)


def _line(name: str, part: int, total: int) -> str:
    return f"  {name:<16} {part / SECOND:>20.6f}  {part / total if total else 0.0:>10.6%}"


def _table(title: str, counts: Mapping[str, int]) -> list[str]:
    return ["", title, *(f"  {name:<24} {count:>10}" for name, count in _sorted(counts).items())]


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
