"""launch.json and desired.json, read across versions."""

from __future__ import annotations

import pytest

from trainer.contract.failure import FailureKind, Pattern
from trainer.contract.launch import (
    DesiredDocument,
    DesiredState,
    LaunchPolicy,
    newest,
    parse_desired,
    parse_policy,
    render_desired,
    render_policy,
)


def test_a_policy_is_read_as_it_was_written():
    policy = LaunchPolicy(
        max_restarts=3,
        stop_timeout_s=2.5,
        log_limit_bytes=1000,
        patterns=(Pattern("lemon", FailureKind.NODE),),
        refund_after_s=60.0,
    )
    assert parse_policy(render_policy(policy)) == policy


def test_a_policy_of_an_older_service_has_the_defaults():
    policy = parse_policy({"max_restarts": 3, "stop_timeout_s": 2.5, "log_limit_bytes": 1000})
    assert (policy.patterns, policy.refund_after_s) == ((), 3600.0)


@pytest.mark.parametrize("patterns", [None, 7, "x", {}, [7], [{"text": "("}], [{"text": "a", "kind": "new kind"}]])
def test_patterns_that_cannot_be_read_cost_no_training(patterns):
    good = {"text": "lemon", "kind": "node"}
    documents = [*patterns, good] if isinstance(patterns, list) else patterns
    found = parse_policy({"patterns": documents}).patterns
    assert found == ((Pattern("lemon", FailureKind.NODE),) if isinstance(patterns, list) else ())


def test_a_request_is_read_as_it_was_written():
    desired = DesiredDocument(state=DesiredState.STOP, snapshot=2, number=7)
    assert parse_desired({**render_desired(desired), "from the future": 1}) == desired


@pytest.mark.parametrize("value", [None, -1, "2", 1.5, True, [], {}])
def test_what_is_no_count_reads_as_none(value):
    assert parse_desired({"state": "stop", "snapshot": value, "number": value}) == DesiredDocument(
        state=DesiredState.STOP
    )


def test_older_news_is_ignored_and_a_repetition_is_not():
    known = DesiredDocument(state=DesiredState.RUN, number=3)
    stop = DesiredDocument(state=DesiredState.STOP, number=2)
    assert newest(known, stop) == known
    for number in (3, 4):
        later = DesiredDocument(state=DesiredState.STOP, number=number)
        assert newest(known, later) == later
