"""What would have saved a job time, computed from its own measurements. Pure.

Gains are in device-microseconds. If a measurement is missing, the sentence says which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from orchestrator.domain.accounting.goodput import Bin, Stretch, take_apart
from orchestrator.domain.accounting.life import Life
from orchestrator.domain.counted import counted
from trainer.contract.daly import daly_run_s, young_daly_s

_TRAINING = frozenset({Bin.LOAD, Bin.COMPILE, Bin.PRODUCTIVE, Bin.RE_DONE})
_DISK = "disk"  # of GenerationLife.restored_from
_FEWEST_SNAPSHOTS = 2  # an interval lies between two
_WORST = 30.0  # mean times between failures in an interval; beyond it the model's run time exceeds e to the 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """`device_us` is None if it is not known yet."""

    name: str
    sentence: str
    device_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of one job. Times are wall-clock seconds.

    `failures` ended a generation or an attempt, and cost the steps since a snapshot: no state in memory was restored.
    """

    work_s: float  # steps that count, without stalls
    steps: int
    devices: float  # in use, on average over that work
    snapshots: int
    stall_s: float  # the stall for one snapshot
    failures: int
    mtbf_s: float  # training time between two failures
    restart_s: float  # time from a failure to the next step

    @property
    def interval_s(self) -> float:
        """Training time between two snapshots."""
        return self.work_s / self.snapshots


def list_gains(life: Life, stretches: Sequence[Stretch]) -> tuple[Gain, ...]:
    """List the gains, the largest first and unknown ones last."""
    gains = [judge_interval(measure(life, stretches)), *_judge_causes(life, stretches)]
    return tuple(sorted(gains, key=lambda gain: -1 if gain.device_us is None else gain.device_us, reverse=True))


def measure(life: Life, stretches: Sequence[Stretch]) -> Measured:
    kept = [one.kept for attempt in life.attempts for one in attempt.generations if one.kept is not None]
    stall_s, snapshots = sum(each.stall_s for each in kept), sum(each.snapshots for each in kept)
    productive = [each for each in stretches if each.bin is Bin.PRODUCTIVE]
    wall_us = sum(each.lasted_us for each in productive)
    every, failures = _count_failures(life).total(), _count_without_memory(life)
    trained_s = sum(each.lasted_us for each in stretches if each.bin in _TRAINING) / 1e6
    recovered_s = sum(each.lasted_us for each in stretches if each.bin is Bin.RECOVERING) / 1e6
    return Measured(
        work_s=max(0.0, wall_us / 1e6 - stall_s),
        steps=sum(each.steps for each in kept),
        devices=sum(each.lasted_us * each.used for each in productive) / wall_us if wall_us else 0.0,
        snapshots=snapshots,
        stall_s=stall_s / snapshots if snapshots else 0.0,
        failures=failures,
        mtbf_s=trained_s / failures if failures else 0.0,
        restart_s=recovered_s / every if every else 0.0,
    )


def judge_interval(run: Measured) -> Gain:
    """Compare Daly's expected run time at the used interval with that at the best one."""
    lacking = _lacking(run)
    if lacking is not None:
        return Gain(name="snapshot-interval", sentence=f"the best interval is not known: {lacking}", device_us=None)
    best_s = max(young_daly_s(run.stall_s, run.mtbf_s), run.work_s / run.steps)
    saved_s = _run_s(run, run.interval_s) - _run_s(run, best_s)
    measured = f"{run.stall_s:.2f} s each, {counted(run.failures, 'failure')}, one in {run.mtbf_s:.0f} s of training"
    if saved_s <= 0:
        sentence = f"snapshots every {run.interval_s:.1f} s were as good as any ({measured})"
        return Gain(name="snapshot-interval", sentence=sentence, device_us=0)
    return Gain(
        name="snapshot-interval",
        sentence=f"snapshots every {best_s:.1f} s instead of every {run.interval_s:.1f} s ({measured})",
        device_us=round(saved_s * run.devices * 1e6),
    )


def _lacking(run: Measured) -> str | None:
    if run.failures == 0:
        return "no failure so far has cost the steps since a snapshot"
    if run.snapshots < _FEWEST_SNAPSHOTS:
        return "fewer than two snapshots reported their cost"
    if run.work_s <= 0 or run.mtbf_s <= 0:
        return "no step that counts was reported"
    if max(run.interval_s + run.stall_s, run.restart_s) > _WORST * run.mtbf_s:
        return "failures come so fast that no interval helps"
    return None


def _run_s(run: Measured, interval_s: float) -> float:
    return daly_run_s(
        run.work_s,
        interval_s=interval_s,
        stall_s=run.stall_s,
        restart_s=run.restart_s,
        mtbf_s=run.mtbf_s,
    )


def _judge_causes(life: Life, stretches: Sequence[Stretch]) -> list[Gain]:
    """Return what each kind of failure has cost, and would not have cost without it."""
    cost: Counter[str] = Counter()
    for each in stretches:
        if each.cause is not None:
            cost[each.cause] += take_apart(each)[0][1]
    counted = _count_failures(life)
    return [
        Gain(
            name=f"no-{kind}",
            sentence=f"without failures of kind {kind}, of which it had {counted[kind]}",
            device_us=amount_us,
        )
        for kind, amount_us in cost.items()
        if amount_us
    ]


def _count_failures(life: Life) -> Counter[str]:
    """Count ends of generations, and of attempts without a generation."""
    return Counter(cause for attempt in life.attempts for cause in attempt.causes if cause is not None)


def _count_without_memory(life: Life) -> int:
    """Count the failures after which training did not continue from a state in memory."""
    return sum(
        cause is not None and (following is None or following.restored_from == _DISK)
        for attempt in life.attempts
        for cause, following in zip_longest(attempt.causes, attempt.generations[1:])
    )
