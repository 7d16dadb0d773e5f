"""Every rule of the policy matters: take it out, and the rehearsal decides otherwise."""

from __future__ import annotations

import pytest

from orchestrator.domain.decide import POLICY
from orchestrator.simulator.rehearsal.rehearsal import Account
from orchestrator.simulator.rehearsal.report import build_report

from .scenarios import rehearse

RULES = [rule.__name__ for rule in POLICY]


def mixed(*without: str) -> Account:
    return rehearse(trace="mixed", gpus=464, mtbf_h=12, days=1.5, without=without)


@pytest.fixture(scope="module")
def baseline() -> Account:
    return mixed()


def test_the_mixed_trace_brings_every_rule_into_play(baseline: Account) -> None:
    assert set(RULES) == set(baseline.tally.decisions)
    assert baseline.violations == []


@pytest.mark.parametrize("rule", RULES)
def test_taking_a_rule_out_changes_the_decisions(rule: str, baseline: Account) -> None:
    account = mixed(rule)
    decisions = account.tally.decisions
    assert rule not in decisions
    others = {name: count for name, count in decisions.items() if name != rule}
    assert others != {name: count for name, count in baseline.tally.decisions.items() if name != rule}
    assert build_report(account)["decisions"] != build_report(baseline)["decisions"]
