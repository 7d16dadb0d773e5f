"""When snapshots are due."""

import errno
import math

import pytest

from trainer.contract.config import parse_interval
from trainer.contract.daly import young_daly_s
from trainer.snapshot.cadence import Cadence, Cost, estimate_mtbf_s

DAY_S = 86400.0


def cadence(interval, cost=None, mtbf_s=DAY_S):
    return Cadence(parse_interval(interval), started_at=0.0, cost=cost or Cost(), read_mtbf_s=lambda: mtbf_s)


def test_an_interval_in_steps_does_not_wait_for_the_previous_snapshot():
    due = [step for step in range(1, 13) if cadence("4").is_due(step, 0.0, is_busy=True)]
    assert due == [4, 8, 12]


def test_an_interval_in_seconds_waits_for_the_previous_snapshot():
    by_time = cadence("30s")
    assert not by_time.is_due(1, 29.0, is_busy=False)
    assert by_time.is_due(1, 30.0, is_busy=False)
    assert not by_time.is_due(1, 90.0, is_busy=True)
    by_time.saved(91.0)
    assert not by_time.is_due(2, 120.0, is_busy=False)


def test_the_expected_loss_is_least_at_the_interval_of_young_and_daly():
    stall_s, mtbf_s = 5.0, 3 * 3600.0

    def expected_time(interval_s):  # Daly 2006, equation 20 without restart: exact for exponential failures
        return mtbf_s * (math.exp((interval_s + stall_s) / mtbf_s) - 1) / interval_s

    best = min(range(50, 2000), key=expected_time)
    assert young_daly_s(stall_s, mtbf_s) == pytest.approx(best, rel=0.01)


def test_auto_follows_the_stall_and_the_failures():
    cost = Cost()
    automatic = cadence("auto", cost, mtbf_s=3600.0)
    assert automatic.is_due(1, 10.0, is_busy=False), "the first one is early, to measure the cost"
    cost.stall_s = 1.0
    automatic.saved(10.0)
    expected_s = young_daly_s(1.0, 3600.0)
    assert expected_s == pytest.approx(84, rel=0.01)
    assert not automatic.is_due(2, 10.0 + 0.99 * expected_s, is_busy=False)
    assert automatic.is_due(2, 10.0 + 1.01 * expected_s, is_busy=False)


def _unreadable():
    raise OSError(errno.ESTALE, "Stale file handle")


def test_an_unreadable_history_does_not_change_the_estimate():
    cost = Cost()
    automatic = cadence("auto", cost, mtbf_s=3600.0)
    cost.stall_s = 2.0
    automatic.saved(0.0)
    due = [automatic.is_due(1, now) for now in range(600)]
    automatic._read_mtbf_s = _unreadable
    automatic.saved(0.0)
    assert [automatic.is_due(1, now) for now in range(600)] == due
    assert due.index(True) > 10, "only the first interval is the shortest"


@pytest.mark.parametrize("interval", ["4", "30s"])
def test_only_auto_reads_the_history(interval):
    asked = []
    Cadence(parse_interval(interval), started_at=0.0, cost=Cost(), read_mtbf_s=lambda: asked.append(1)).saved(0.0)
    assert asked == []


@pytest.mark.parametrize(("stall_s", "mtbf_s", "interval_s"), [(1e-4, 60.0, 10.0), (600.0, 1e9, 3600.0)])
def test_auto_is_bounded(stall_s, mtbf_s, interval_s):
    automatic = cadence("auto", Cost(stall_s=stall_s), mtbf_s)
    automatic.saved(0.0)
    assert not automatic.is_due(1, interval_s - 0.1, is_busy=False)
    assert automatic.is_due(1, interval_s, is_busy=False)


def test_frequent_failures_override_the_prior():
    hourly = [3600.0 * number for number in range(49)]
    assert estimate_mtbf_s([], 0.0, 1) == DAY_S
    assert estimate_mtbf_s([0.0], 10 * DAY_S, 1) == 11 * DAY_S, "ten days without a failure"
    assert estimate_mtbf_s(hourly, 48 * 3600.0, 1) == pytest.approx(3600 * 72 / 49)
    assert estimate_mtbf_s([], 0.0, 2048) == pytest.approx(226 * DAY_S / 2048), "large jobs start with less"


def test_a_notice_must_leave_time_for_the_snapshot_in_flight_too():
    timed = cadence("auto", Cost(duration_s=10.0))
    assert cadence("auto").fits(0.001, is_busy=False), "nothing was measured yet"
    assert timed.fits(None, is_busy=True)
    assert timed.fits(15.0, is_busy=False)
    assert not timed.fits(15.0, is_busy=True)
    assert timed.fits(30.0, is_busy=True)
