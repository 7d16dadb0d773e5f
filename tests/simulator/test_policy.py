"""Every rule of the policy matters: without it, the simulation decides differently."""

from __future__ import annotations

import pytest

from orchestrator.domain.policy.decide import POLICY
from orchestrator.simulator.report import build_report
from orchestrator.simulator.simulation import Result

from .scenarios import simulate

RULES = [rule.__name__ for rule in POLICY]


SCARCE = ("avoid_less",)  # used only if there is no spare node; the mixed trace has unlimited spares


def mixed(*without: str) -> Result:
    return simulate(trace="mixed", gpus=464, mtbf_h=12, days=1.5, without=without)


def scarce(*without: str) -> Result:
    """One job that needs every node. Failed nodes are repaired after half an hour."""
    return simulate(gpus=64, mtbf_h=2, days=1.5, spares=0, repair_h=0.5, without=without)


@pytest.fixture(scope="module")
def baseline() -> Result:
    return mixed()


def test_two_scenarios_use_every_rule(baseline: Result) -> None:
    assert set(RULES) == set(baseline.decisions) | set(SCARCE)
    assert baseline.violations == []


def test_a_job_that_needs_every_node_continues_soon_after_the_last_repair() -> None:
    patient, stubborn = scarce(), scarce(*SCARCE)
    assert set(SCARCE) <= set(patient.decisions)
    assert patient.violations == stubborn.violations == []
    starts = [result.decisions["recover"] for result in (patient, stubborn)]
    assert starts[0] > 5 * starts[1], "without the rule, it waits for the end of the cool-down, which doubles"


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in SCARCE])
def test_removing_a_rule_changes_the_other_decisions(rule: str, baseline: Result) -> None:
    result = mixed(rule)
    decisions = result.decisions
    assert rule not in decisions
    others = {name: count for name, count in decisions.items() if name != rule}
    assert others != {name: count for name, count in baseline.decisions.items() if name != rule}
    assert build_report(result)["decisions"] != build_report(baseline)["decisions"]
