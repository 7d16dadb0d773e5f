"""Builders of small simulations."""

from __future__ import annotations

from typing import Any

from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.simulation import Result, Simulation

NEVER_H = 1e9  # a mean time between failures beyond the end of any simulation


def make_scenario(**fields: Any) -> Scenario:
    return Scenario(**{"gpus": 64, "mtbf_h": 6, "days": 2, **fields})


def simulate(**fields: Any) -> Result:
    return Simulation(make_scenario(**fields)).run()
