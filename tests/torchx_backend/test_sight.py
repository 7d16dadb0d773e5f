"""What the service makes of torchx's states and of an attempt's folder."""

from __future__ import annotations

import pytest
from torchx.specs import AppState

from orchestrator.backends.torchx.client import AppStatus
from orchestrator.backends.torchx.sight import OVER, RUNS, WAITS, Context, Traces, choose, sight
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence
from trainer.contract.failure import FailureKind
from trainer.contract.node import Departure

KEY = AttemptKey("train", 1)
CLAIMED = Traces(replicas=2, claim="torchx-1")
SETTLED = Context(settled=True)
BOTH = frozenset({0, 1})
ALIVE = Traces(replicas=2, claim="torchx-1", ever_alive=BOTH, alive=BOTH)


def departed(replica: int, *, code: int = 0, recorded: bool = True) -> Departure:
    return Departure(replica=replica, node="n1", claim="torchx-1", exit_code=code, recorded=recorded, at="")


def said(state: str, words: str = "") -> AppStatus:
    return AppStatus(state, words)


def test_every_state_of_torchx_is_known() -> None:
    assert {state.name for state in AppState} == {*WAITS, *OVER, RUNS, "UNKNOWN"}


@pytest.mark.parametrize(
    ("app", "answer", "traces", "context", "presence"),
    [
        (None, None, Traces(replicas=2), Context(), Presence.ABSENT),
        (None, None, ALIVE, Context(), Presence.RUNNING),
        (None, None, CLAIMED, Context(), Presence.GONE),
        ("a", None, Traces(replicas=2), Context(), Presence.UNKNOWN),
        ("a", None, Traces(replicas=2), SETTLED, Presence.ABSENT),
        ("a", said("UNKNOWN"), Traces(replicas=2), SETTLED, Presence.UNKNOWN),
        ("a", None, ALIVE, Context(), Presence.RUNNING),
        ("a", None, CLAIMED, Context(), Presence.GONE),
        ("a", said("UNKNOWN"), ALIVE, Context(), Presence.RUNNING),
        ("a", said("PENDING"), Traces(replicas=2), Context(), Presence.PENDING),
        ("a", said("SUBMITTED"), CLAIMED, Context(), Presence.RUNNING),
        ("a", said("RUNNING"), Traces(replicas=2), Context(), Presence.RUNNING),
        ("a", said("SUCCEEDED"), CLAIMED, Context(), Presence.UNKNOWN),
        ("a", said("SUCCEEDED"), CLAIMED, SETTLED, Presence.GONE),
        ("a", said("FAILED"), ALIVE, SETTLED, Presence.UNKNOWN),
        ("a", said("CANCELLED"), Traces(replicas=2), SETTLED, Presence.GONE),
    ],
)
def test_the_presence_follows_from_torchx_and_from_the_folder(
    app: str | None, answer: AppStatus | None, traces: Traces, context: Context, presence: Presence
) -> None:
    seen = sight(KEY, app, answer, traces, context)
    assert (seen.presence, bool(seen.evidence)) == (presence, True), seen


def test_the_folder_counts_even_if_torchx_says_that_the_app_runs() -> None:
    """torchx's state may be minutes old, or that of another replica."""
    left = Traces(replicas=2, claim="torchx-1", departures={0: departed(0)}, recorded=frozenset({0, 1}))
    assert sight(KEY, "a", said("RUNNING"), left, Context()).presence is Presence.GONE
    one = Traces(replicas=2, claim="torchx-1", departures={1: departed(1, code=-9, recorded=False)})
    seen = sight(KEY, "a", said("RUNNING"), one, Context())
    assert [each.liveness for each in seen.replicas] == [Liveness.ALIVE, Liveness.DEAD]
    assert "SIGKILL" in seen.replicas[1].evidence


def test_a_node_that_shows_no_more_that_it_works_is_unknown() -> None:
    traces = Traces(replicas=2, claim="torchx-1", ever_alive=BOTH, alive=frozenset({0}))
    seen = sight(KEY, "a", said("RUNNING"), traces, Context())
    assert [each.liveness for each in seen.replicas] == [Liveness.ALIVE, Liveness.UNKNOWN]


def test_workers_that_torchx_cannot_end_are_named() -> None:
    assert "end them by hand" in sight(KEY, "a", None, ALIVE, Context(ours=True)).evidence


def test_a_record_that_is_not_visible_yet_is_awaited() -> None:
    traces = Traces(replicas=1, claim="torchx-1", departures={0: departed(0)})
    seen = sight(KEY, "a", said("RUNNING"), traces, Context())
    assert (seen.presence, seen.replicas[0].liveness) == (Presence.RUNNING, Liveness.UNKNOWN)


def test_an_app_that_ended_before_any_agent_began_says_why() -> None:
    context = Context(settled=True, last_words="no such interpreter")
    failed = sight(KEY, "a", said("FAILED", "exit 127"), Traces(replicas=1), context)
    assert failed.cause is not None
    assert failed.cause.kind is FailureKind.INFRASTRUCTURE
    assert failed.cause.message == (
        "app a is FAILED (exit 127), and it ended before any agent started: no such interpreter"
    )
    ours = Context(settled=True, ours=True)
    assert sight(KEY, "a", said("CANCELLED"), Traces(replicas=1), ours).cause is None


def test_the_app_of_the_claim_counts_and_otherwise_the_newest() -> None:
    submissions = {"torchx-0": "a", "torchx-1": "b", "torchx-2": None}
    assert choose(submissions, CLAIMED) == "b"
    assert choose(submissions, Traces(replicas=1)) == "b"
    assert choose(submissions, Traces(replicas=1, claim="torchx-0")) == "a"
    assert choose({"torchx-1": None}, CLAIMED) is None
