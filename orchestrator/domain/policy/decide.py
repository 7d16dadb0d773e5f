"""The policy: a list of rules that decide what to do about a job. Pure."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.domain.policy.deadlines import next_deadline
from orchestrator.domain.policy.decision import Decision
from orchestrator.domain.policy.rules.ends import adopt_end, adopt_success, end_leftovers, notice_failed_launch
from orchestrator.domain.policy.rules.kinds import Rule
from orchestrator.domain.policy.rules.live import (
    avoid_less,
    mark_lost_nodes,
    note_members,
    note_pending,
    note_running,
    submit_intended,
    tell_agents,
)
from orchestrator.domain.policy.rules.starts import (
    begin_retry,
    finish_cancelled,
    give_up,
    recover,
    rest_suspended,
    resume,
    start,
    wait,
)
from orchestrator.domain.policy.rules.stops import (
    go_on_stopping,
    grow_back,
    resize,
    stop_cut_off,
    stop_overlong,
    stop_slow_start,
    stop_stalled,
    stop_unwanted,
)
from orchestrator.domain.policy.situation import Situation

# First match wins: this order is the policy.
POLICY: tuple[Rule, ...] = (
    end_leftovers,
    adopt_success,
    adopt_end,
    notice_failed_launch,
    stop_unwanted,
    go_on_stopping,
    stop_cut_off,
    stop_overlong,
    stop_slow_start,
    stop_stalled,
    mark_lost_nodes,
    submit_intended,
    avoid_less,
    note_pending,
    note_running,
    note_members,
    resize,
    grow_back,
    tell_agents,
    begin_retry,
    finish_cancelled,
    give_up,
    rest_suspended,
    resume,
    recover,
    start,
    wait,
)


def decide(s: Situation, policy: tuple[Rule, ...] = POLICY) -> Decision:
    """Return the decision of the first rule that makes one. A disturbed attempt adds no failure to a node's record."""
    for rule in policy:
        decision = rule(s)
        if decision is not None:
            look_again_at = decision.look_again_at or next_deadline(s)
            blames = () if s.disturbed else decision.blames
            return replace(decision, rule=rule.__name__, look_again_at=look_again_at, blames=blames)
    raise AssertionError("the policy ends with a rule that always decides")
