"""Young's and Daly's formulas, compared with calculations by hand."""

from __future__ import annotations

import pytest

from orchestrator.simulator.report import daly_ettr
from orchestrator.simulator.scenario import young_interval_s
from trainer.contract.daly import daly_run_s


def test_youngs_interval_is_the_root_of_twice_the_stall_times_the_mtbf() -> None:
    assert young_interval_s(2, 100) == 20  # sqrt(2 * 2 * 100)
    assert young_interval_s(5, 3.09 * 3600) == pytest.approx(333.53, abs=0.01)  # sqrt(111240)


def test_dalys_run_time_matches_a_calculation_by_hand() -> None:
    # M = 100, R = 10, tau = 20, w = 2: 100 * e^0.1 * (e^0.22 - 1) = 100 * 1.105171 * 0.246077 = 27.1957 for 20 of work
    run_s = daly_run_s(60, interval_s=20, stall_s=2, restart_s=10, mtbf_s=100)
    assert run_s == pytest.approx(3 * 27.19568, abs=1e-3)
    assert daly_ettr(interval_s=20, stall_s=2, restart_s=10, mtbf_s=100) == pytest.approx(0.735411, abs=1e-5)


def test_without_failures_only_the_stalls_are_lost() -> None:
    assert daly_ettr(interval_s=95, stall_s=5, restart_s=90, mtbf_s=1e12) == pytest.approx(0.95, abs=1e-6)


def test_youngs_interval_is_close_to_the_optimum() -> None:
    def at(interval_s: float) -> float:
        return daly_ettr(interval_s=interval_s, stall_s=5, restart_s=90, mtbf_s=11124)

    best = young_interval_s(5, 11124)
    assert at(best) > at(0.8 * best)
    assert at(best) > at(1.25 * best)
