"""Events, and the replica that wrote them."""

from __future__ import annotations

import pytest

from orchestrator.domain.job.event import EventKind
from tests.builders import make_event


@pytest.mark.parametrize(
    ("kind", "evidence", "replica"),
    [
        ("worker.failed", {"replica": 3}, 3),
        ("worker.failed", {"replica": 0}, 0),
        ("worker.failed", {}, None),
        ("worker.failed", {"replica": True}, None),
        ("worker.failed", {"replica": "3"}, None),
        (EventKind.CHAOS_REQUESTED.value, {"replica": 3}, None),
    ],
)
def test_only_an_event_of_an_agent_has_a_replica(kind: str, evidence: dict[str, object], replica: int | None) -> None:
    assert make_event(kind, evidence=evidence).replica == replica
