"""The account of a rehearsal as people and programs read it. The same scenario and seed give the same text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from orchestrator.simulator.rehearsal.agenda import SECOND
from orchestrator.simulator.rehearsal.closed_form import daly_ettr
from orchestrator.simulator.rehearsal.goodput import Bin
from orchestrator.simulator.rehearsal.rehearsal import Account
from orchestrator.simulator.rehearsal.scenario import Scenario


def build_report(account: Account) -> dict[str, object]:
    """The JSON object of `orchestrator simulate --json`. Goodput in device-seconds."""
    tally, scenario = account.tally, account.scenario
    return {
        "scenario": asdict(scenario),
        "days": account.lasted_us / SECOND / 86400,
        "ettr": ettr(account),
        "ettr_closed_form": closed_form(scenario),
        "snapshot_interval_s": _interval_s(scenario),
        "goodput": {each.value: account.bins[each] / SECOND for each in Bin},
        "device_seconds": account.whole / SECOND,
        "restarts": _sorted(tally.restarts),
        "restarts_in_place": account.in_place,
        "attempts": tally.attempts,
        "decisions": _sorted(tally.decisions),
        "jobs": {state.value: account.states[state] for state in sorted(account.states)},
        "faults": _sorted(account.faults),
        "incidents": account.incidents,
        "passes": account.passes,
        "events": account.events,
        "violations": account.violations,
    }


def ettr(account: Account) -> float:
    """Effective training time ratio: device time whose work a snapshot kept, of all device time of the jobs' lives."""
    return account.bins[Bin.PRODUCTIVE] / account.whole if account.whole else 0.0


def closed_form(scenario: Scenario) -> float | None:
    """Daly's, for one job of a fixed size, or many of one size; None where the jobs differ."""
    devices = _devices(scenario)
    if devices is None:
        return None
    return daly_ettr(
        interval_s=scenario.interval_s(devices),
        stall_s=scenario.snapshot_stall_s,
        restart_s=scenario.restart_s,
        mtbf_s=scenario.mtbf_s(devices),
    )


def render_report(account: Account) -> str:
    """For a person."""
    scenario, tally = account.scenario, account.tally
    expected, interval_s = closed_form(scenario), _interval_s(scenario)
    lines = [
        f"{scenario.gpus} GPUs, {scenario.trace}, seed {scenario.seed}: {account.lasted_us / SECOND / 86400:.2f} days, "
        f"{account.incidents} incidents, {account.passes} passes, {account.events} events",
        f"ETTR               {ettr(account):.6f}",
        "Daly's closed form "
        + ("-  (the jobs differ in size)" if expected is None else f"{expected:.6f}")
        + ("" if interval_s is None else f"  (a snapshot every {interval_s:.1f} s)"),
        "",
        "device-seconds by bin",
        *(_line(each.value.replace("_", " "), account.bins[each], account.whole) for each in Bin),
        _line("all", account.whole, account.whole),
        "",
        f"attempts           {tally.attempts}",
        f"restarts in place  {account.in_place}",
        *_table("restarts by class", tally.restarts),
        *_table("decisions by rule", tally.decisions),
        *_table("jobs", {state.value: count for state, count in account.states.items()}),
        "",
        f"violations: {len(account.violations)}",
        *(f"  {sentence}" for sentence in account.violations),
    ]
    return "\n".join(lines)


def _devices(scenario: Scenario) -> int | None:
    if scenario.trace == "mixed":
        return None
    if scenario.nodes is None:
        return scenario.gpus if scenario.jobs == 1 else None
    least, _, most = scenario.nodes.partition(":")
    return int(least) * scenario.gpus_per_node if most in ("", least) else None


def _interval_s(scenario: Scenario) -> float | None:
    devices = _devices(scenario)
    return None if devices is None else scenario.interval_s(devices)


def _line(name: str, part: int, whole: int) -> str:
    return f"  {name:<16} {part / SECOND:>20.6f}  {part / whole if whole else 0.0:>10.6%}"


def _table(title: str, counts: Mapping[str, int]) -> list[str]:
    return ["", title, *(f"  {name:<24} {count:>10}" for name, count in _sorted(counts).items())]


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
