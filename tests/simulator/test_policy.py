"""Two scenarios use every rule of the policy. `make mutate` shows that each rule is needed."""

from __future__ import annotations

from orchestrator.domain.policy.decide import POLICY
from orchestrator.simulator.simulation import Result

from .scenarios import simulate

SCARCE = ("avoid_less",)  # used only if there is no spare node; the mixed trace has unlimited spares


def scarce(*without: str) -> Result:
    """One job that needs every node. Failed nodes are repaired after half an hour."""
    return simulate(gpus=64, mtbf_h=2, days=1.5, spares=0, repair_h=0.5, without=without)


def test_two_scenarios_use_every_rule() -> None:
    result = simulate(trace="mixed", gpus=464, mtbf_h=12, days=1.5)
    assert {rule.__name__ for rule in POLICY} == set(result.decisions) | set(SCARCE)
    assert result.violations == []


def test_a_job_that_needs_every_node_continues_soon_after_the_last_repair() -> None:
    patient, stubborn = scarce(), scarce(*SCARCE)
    assert set(SCARCE) <= set(patient.decisions)
    assert patient.violations == stubborn.violations == []
    starts = [result.decisions["recover"] for result in (patient, stubborn)]
    assert starts[0] > 5 * starts[1], "without the rule, it waits for the end of the cool-down, which doubles"
