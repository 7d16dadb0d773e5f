"""What would have saved a job time, from its own measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.accounting.gains import Gain, Measured, judge_interval, list_gains, measure
from orchestrator.domain.accounting.goodput import Bin, add_up
from orchestrator.domain.accounting.life import Kept, Life, lay_out
from tests.builders import at
from tests.unit.lives import attempt, lives, trained
from trainer.contract.daly import daly_run_s
from trainer.contract.failure import FailureKind

MEASURED = Measured(
    work_s=36_000,
    steps=36_000,
    devices=4,
    snapshots=10,
    stall_s=5,
    failures=4,
    mtbf_s=10_000,
    restart_s=60,
)


def failing_life() -> Life:
    """Two generations on two devices: ten steps of a second each, two snapshots of half a second each; one failure."""
    first = trained(1, since=0, steps=10, failed_at=at(12), cause=FailureKind.NODE.value)
    second = trained(2, since=15, steps=10, noticed_at=at(12))
    generations = tuple(
        replace(one, kept=replace(one.kept, stall_s=1.0, snapshots=2)) for one in (first, second) if one.kept
    )
    return Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, *generations),))


def test_measurements_are_read_from_a_life() -> None:
    life = failing_life()
    assert measure(life, lay_out(life, at(25))) == Measured(
        work_s=pytest.approx(18),
        steps=20,
        devices=2,
        snapshots=4,
        stall_s=0.5,
        failures=1,
        mtbf_s=22,
        restart_s=3,
    )


@pytest.mark.parametrize("source", ["survivor", "memory", "buddy"])
def test_snapshots_on_disk_would_not_have_helped_where_a_state_in_memory_counted(source: str) -> None:
    life = failing_life()
    (own,) = life.attempts
    first, second = own.generations
    remembered = replace(own, generations=(first, replace(second, restored_from=source)))
    life = replace(life, attempts=(remembered,))
    gain = judge_interval(measure(life, lay_out(life, at(25))))
    assert gain.device_us is None
    assert gain.sentence.endswith("no failure so far has cost the steps since a snapshot")


def test_the_gain_of_another_interval_is_the_difference_of_dalys_run_times() -> None:
    gain = judge_interval(MEASURED)
    assert gain.sentence == (
        "snapshots every 312.9 s instead of every 3600.0 s (5.00 s each, 4 failures, one in 10000 s of training)"
    )

    def run_s(interval_s: float) -> float:
        return daly_run_s(36_000, interval_s=interval_s, stall_s=5, restart_s=60, mtbf_s=10_000)

    assert gain.device_us == pytest.approx((run_s(3600) - run_s(312.9)) * 4e6, rel=1e-4)
    best = min(range(100, 3600), key=run_s)
    assert run_s(312.9) == pytest.approx(run_s(best), rel=1e-4)


def test_an_interval_as_good_as_the_best_gains_nothing() -> None:
    gain = judge_interval(replace(MEASURED, snapshots=115))
    assert gain.device_us is not None
    assert gain.device_us < 4e6 * 36_000 * 1e-5
    at_best = judge_interval(replace(MEASURED, work_s=32_000, steps=100, snapshots=100))
    assert (at_best.device_us, "as good as any" in at_best.sentence) == (0, True)


def test_no_interval_is_shorter_than_a_step() -> None:
    gain = judge_interval(replace(MEASURED, steps=60))
    assert gain.sentence.startswith("snapshots every 600.0 s instead of")


@pytest.mark.parametrize(
    ("lacking", "changed"),
    [
        ("no failure so far has cost the steps since a snapshot", {"failures": 0, "mtbf_s": 0.0, "restart_s": 0.0}),
        ("fewer than two snapshots reported their cost", {"snapshots": 1}),
        ("no step that counts was reported", {"work_s": 0.0}),
        ("no step that counts was reported", {"mtbf_s": 0.0}),
        ("failures come so fast that no interval helps", {"mtbf_s": 100.0}),
        ("failures come so fast that no interval helps", {"restart_s": 400_000.0}),
    ],
)
def test_a_gain_without_measurements_says_which_is_missing(lacking: str, changed: dict[str, float]) -> None:
    gain = judge_interval(replace(MEASURED, **changed))
    assert gain == Gain(name="snapshot-interval", sentence=f"the best interval is not known: {lacking}", device_us=None)


def test_two_snapshots_are_enough() -> None:
    assert judge_interval(replace(MEASURED, snapshots=2)).device_us is not None


def test_each_kind_of_failure_has_its_cost() -> None:
    life = failing_life()
    stretches = lay_out(life, at(25))
    gains = {gain.name: gain for gain in list_gains(life, stretches)}
    lost = add_up(stretches).bins
    assert gains["no-node"] == Gain(
        name="no-node",
        sentence="without failures of kind node, of which it had 1",
        device_us=lost[Bin.RE_DONE] + lost[Bin.RECOVERING],
    )


def test_the_largest_gain_comes_first_and_unknown_ones_last() -> None:
    one = trained(1, since=0, steps=10, failed_at=at(12), cause=FailureKind.NODE.value)
    two = trained(2, since=13, steps=10, noticed_at=at(12), failed_at=at(30), cause=FailureKind.HANG.value)
    three = trained(3, since=31, steps=1, noticed_at=at(30))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, one, two, three),))
    gains = list_gains(life, lay_out(life, at(32)))
    assert [gain.name for gain in gains] == ["no-hang", "no-node", "snapshot-interval"]
    assert gains[-1].device_us is None


def test_a_failure_that_agents_and_the_cluster_report_counts_once() -> None:
    one = trained(1, since=0, steps=10, failed_at=at(12), cause=FailureKind.APPLICATION.value)
    ended = attempt(1, 0, 13, one, cause=FailureKind.NODE.value)
    never_formed = attempt(2, 14, 15, cause=FailureKind.RENDEZVOUS.value)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(ended, never_formed))
    assert measure(life, lay_out(life, at(20))).failures == 2


@given(lives(), st.floats(0, 3000))
def test_every_life_can_be_judged(life: Life, until: float) -> None:
    stretches = lay_out(life, at(until))
    gains = list_gains(life, stretches)
    whole_us = add_up(stretches).whole_us
    assert all(gain.device_us is None or gain.device_us >= 0 for gain in gains)
    by_cause = [gain.device_us or 0 for gain in gains if gain.name.startswith("no-")]
    assert sum(by_cause) <= whole_us


def test_kept_steps_without_a_snapshot_have_no_stall() -> None:
    kept = Kept(steps=3, first_at=at(1), last_at=at(3))
    assert (kept.snapshots, kept.stall_s) == (0, 0.0)
