"""How well runs of one spec on several sizes scale, and what limits each of them. Pure.

The cost of a unit of work (a token, a sample or a step) is ranks / throughput, in rank-seconds. It is the sum of the
costs of data, communication and computing. Efficiency is the base's cost over a run's cost: what grew is what limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_EFFICIENCY = 0.8  # efficiency
MIN_DATA_SHARE = 0.2  # share of a step
MIN_LAUNCH_SHARE = 0.5  # share of the held time


class Signal(StrEnum):
    BASE = "base"
    SCALES_WELL = "scales well"
    DATA = "data bound"
    COMMUNICATION = "communication bound"
    COMPUTING = "computing grows"
    LAUNCH = "launch overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run of `ranks` workers.

    `per_s` is the throughput of all ranks together, in `unit` a second. `data_share` and `communication_share` are
    parts of `step_s`, 0 to 1, and None if not measured. `launch_share` is the part of the held device time that passed
    before and between the steps: start-up, rendezvous, load and compile.
    """

    name: str
    ranks: int
    unit: str
    per_s: float
    step_s: float
    data_share: float | None = None
    communication_share: float | None = None
    launch_share: float | None = None

    @property
    def cost_s(self) -> float:
        """Rank-seconds for a unit of work."""
        return self.ranks / self.per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A run beside the base, the run with the fewest ranks. Speed-up and efficiency of the base are 1."""

    run: MeasuredRun
    speed_up: float
    efficiency: float
    signal: Signal
    sentence: str


def compare_runs(runs: Sequence[MeasuredRun]) -> tuple[Scaling, ...]:
    """Compare runs with the one that has the fewest ranks. The answer is sorted by ranks.

    Raises ValueError for no runs, runs of different units, and a throughput or number of ranks that is not positive.
    """
    if len({run.unit for run in runs}) != 1:
        raise ValueError("scaling compares runs that report their throughput in one unit")
    if any(run.per_s <= 0 or run.ranks <= 0 for run in runs):
        raise ValueError("a run needs a positive throughput and number of ranks")
    ordered = sorted(runs, key=lambda run: run.ranks)
    return tuple(_compare(run, ordered[0]) for run in ordered)


def _compare(run: MeasuredRun, base: MeasuredRun) -> Scaling:
    efficiency = base.cost_s / run.cost_s
    signal, sentence = next(found for rule in _RULES if (found := rule(run, base)) is not None)
    return Scaling(
        run=run, speed_up=run.per_s / base.per_s, efficiency=efficiency, signal=signal, sentence=f"{sentence}."
    )


Found = tuple[Signal, str] | None


def _waits_for_data(run: MeasuredRun, _: MeasuredRun) -> Found:
    share = run.data_share or 0.0
    if share < MIN_DATA_SHARE:
        return None
    return Signal.DATA, f"steps wait for data {share:.0%} of their time"


def _starts_long(run: MeasuredRun, base: MeasuredRun) -> Found:
    share = run.launch_share or 0.0
    if share < MIN_LAUNCH_SHARE or not _is_efficient(run, base):
        return None
    return Signal.LAUNCH, f"starts take {share:.0%} of the held time"


def _is_base(run: MeasuredRun, base: MeasuredRun) -> Found:
    return (Signal.BASE, "the run with the fewest ranks") if run is base else None


def _scales(run: MeasuredRun, base: MeasuredRun) -> Found:
    if not _is_efficient(run, base):
        return None
    return Signal.SCALES_WELL, f"each rank does {base.cost_s / run.cost_s:.0%} of the work of a rank of the base"


def _name_largest_growth(run: MeasuredRun, base: MeasuredRun) -> Found:
    """The part of the cost that grew most. What is not measured is part of computing."""
    growth = {
        Signal.DATA: _grown(run.data_share, base.data_share, run, base),
        Signal.COMMUNICATION: _grown(run.communication_share, base.communication_share, run, base),
    }
    growth[Signal.COMPUTING] = run.cost_s - base.cost_s - sum(growth.values())
    signal = max(growth, key=lambda each: growth[each])
    part = min(1.0, growth[signal] / (run.cost_s - base.cost_s))
    return signal, f"{_LOSSES[signal]} {part:.0%} of the lost efficiency{_unmeasured(run, signal)}"


_LOSSES = {
    Signal.DATA: "waiting for data is",
    Signal.COMMUNICATION: "communication without computing is",
    Signal.COMPUTING: "more computing for the same work is",
}


def _unmeasured(run: MeasuredRun, signal: Signal) -> str:
    hidden = signal is Signal.COMPUTING and run.communication_share is None
    return "; it includes communication, which was not measured" if hidden else ""


def _grown(share: float | None, base_share: float | None, run: MeasuredRun, base: MeasuredRun) -> float:
    """Return by how many rank-seconds a part of the cost grew. 0 if it was not measured in both runs."""
    if share is None or base_share is None:
        return 0.0
    return share * run.cost_s - base_share * base.cost_s


def _is_efficient(run: MeasuredRun, base: MeasuredRun) -> bool:
    return run.per_s * base.ranks >= MIN_EFFICIENCY * base.per_s * run.ranks


_Rule = Callable[[MeasuredRun, MeasuredRun], Found]
# First match wins.
_RULES: tuple[_Rule, ...] = (_waits_for_data, _starts_long, _is_base, _scales, _name_largest_growth)
