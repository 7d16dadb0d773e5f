"""Small rehearsals, built by saying only what matters."""

from __future__ import annotations

from typing import Any

from orchestrator.simulator.rehearsal.rehearsal import Account, Rehearsal
from orchestrator.simulator.rehearsal.scenario import Scenario

NEVER_H = 1e9  # a mean time between failures beyond every rehearsal


def make_scenario(**fields: Any) -> Scenario:
    return Scenario(**{"gpus": 64, "mtbf_h": 6, "days": 2, **fields})


def rehearse(**fields: Any) -> Account:
    return Rehearsal(make_scenario(**fields)).run()
