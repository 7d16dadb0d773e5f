"""Each rule checks all of its conditions, even if no rule before it has decided."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.observation import Liveness, Observation, Presence
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import NoteRunning, Stop, Wait
from orchestrator.domain.policy.rules.live import explain_silence
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Admission
from tests.unit.situations import NOW, a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract.exit_record import Outcome

ALIVE = a_replica()
ELASTIC = a_spec(topology={"nodes": "1:4"}, supervise={"grow_back_after_s": 600})
ROOM = Admission(False, "could have 4 nodes", 4)


def test_an_unanswered_submission_that_is_seen_to_run_is_recorded_as_running() -> None:
    intended = an_attempt(AttemptState.INTENDED, started_at=None, tried_at=ago(1))
    s = a_situation(a_job(JobState.STARTING), intended, seen(Presence.RUNNING, ALIVE), submit_timeout_s=60)
    assert decide(s).action == NoteRunning(formed=True)


def out_of_sight(requested: Desired = Desired(), **attempt: object) -> Situation:  # noqa: B008
    """A submitted attempt that the cluster does not see, while its journals report training."""
    submitted = an_attempt(AttemptState.SUBMITTED, **{"nodes": "1", "asked": "1:4", "started_at": ago(700), **attempt})
    training = seen(Presence.UNKNOWN, snapshots=1)
    return a_situation(a_job(JobState.STARTING, spec=ELASTIC, desired=requested), submitted, training, ROOM)


def test_an_attempt_that_was_not_seen_to_run_is_not_resized() -> None:
    assert decide(out_of_sight(asked="1")).action == Wait()
    assert decide(out_of_sight()).action == Wait()


def test_an_attempt_that_was_not_seen_to_run_gets_no_request_for_a_snapshot() -> None:
    assert decide(out_of_sight(Desired(snapshot_number=1))).action == Wait()


def growing(observation: Observation, room: Admission | None = ROOM) -> Situation:
    attempt = an_attempt(nodes="1:2", asked="1:4", started_at=ago(700))
    return a_situation(a_job(spec=ELASTIC), attempt, observation, room)


def test_a_cluster_that_does_not_answer_has_no_room_to_grow() -> None:
    small = seen(Presence.RUNNING, ALIVE, a_replica(number=1), snapshots=1)
    assert decide(growing(small)).action == Stop(force=False, grows=True)
    assert decide(growing(small, room=None)).action == Wait()


def test_a_group_whose_missing_pod_is_being_replaced_is_not_stopped_to_grow() -> None:
    lost = replace(a_replica(Liveness.DEAD, 1), evidence="pod p was evicted; Kubernetes starts another one")
    back = replace(lost, leftovers=True, returns=True)
    shrunk: dict[str, Any] = {"snapshots": 1, "resized_at": ago(650)}
    room = replace(ROOM, nodes=2)
    assert decide(growing(seen(Presence.RUNNING, ALIVE, lost, **shrunk), room)).action == Stop(force=False, grows=True)
    waits = decide(growing(seen(Presence.RUNNING, ALIVE, back, **shrunk), room))
    assert (waits.action, waits.sentence) == (Wait(), f"waits for its full size: {back.evidence}")


def test_a_group_with_a_finished_replica_is_not_stopped_to_grow() -> None:
    done = {1: an_exit(Outcome.SUCCEEDED)}
    ending = seen(Presence.RUNNING, ALIVE, a_replica(Liveness.UNKNOWN, 1), exits=done, snapshots=1)
    assert decide(growing(ending)).action == Wait()
    assert decide(growing(replace(ending, exits={}))).action == Stop(force=False, grows=True)


_ADVICE = "check that pods reach the service (`orchestrator doctor`)"


def test_the_reason_says_that_running_agents_send_no_reports() -> None:
    unheard = seen(Presence.RUNNING, ALIVE, unheard=True, heard_at=ago(45), heard_since=NOW)
    decision = decide(a_situation(a_job(), an_attempt(), unheard))
    assert decision.action == Wait()
    assert decision.sentence == f"no reports from its agents since 2026-11-20 11:59:15 UTC; {_ADVICE}"
    never = seen(Presence.RUNNING, ALIVE, unheard=True, formed_at=None, progress_at=None, heard_since=NOW)
    decision = decide(a_situation(a_job(JobState.STARTING), an_attempt(started_at=ago(30.1)), never))
    assert decision.sentence == f"no reports from its agents since they started; {_ADVICE}"


def test_new_agents_have_half_a_minute_for_their_first_report() -> None:
    never = seen(Presence.RUNNING, ALIVE, unheard=True, formed_at=None, progress_at=None, heard_since=NOW)
    decision = decide(a_situation(a_job(JobState.STARTING), an_attempt(started_at=ago(30)), never))
    assert (decision.rule, decision.sentence) == ("wait", "so far")
    not_started = an_attempt(started_at=None)
    assert decide(a_situation(a_job(JobState.STARTING), not_started, never)).sentence == "so far"
    unseen = seen(Presence.UNKNOWN, formed_at=None, progress_at=None)
    assert decide(a_situation(a_job(JobState.STARTING), an_attempt(started_at=ago(30)), unseen)).sentence == "so far"


def test_reports_are_expected_only_of_attempts_that_are_seen_to_run() -> None:
    out_of_sight = seen(Presence.UNKNOWN, ALIVE, unheard=True, heard_since=NOW)
    assert decide(a_situation(a_job(), an_attempt(), out_of_sight)).sentence == "so far"
    pending = seen(Presence.PENDING, ALIVE, unheard=True, heard_since=NOW)
    assert decide(a_situation(a_job(), an_attempt(AttemptState.PENDING), pending)).sentence == "it is pending"
    assert explain_silence(a_situation(a_job(), an_attempt(), pending)) is None


def test_a_job_without_agents_waits_for_a_cluster_that_does_not_answer() -> None:
    silent = {"silence": "the API server has not answered since 11:00"}
    unseen = seen(Presence.UNKNOWN, formed_at=None, progress_at=None)
    queued = an_attempt(AttemptState.PENDING, started_at=None)
    decision = decide(a_situation(a_job(JobState.STARTING), queued, unseen, **silent))
    assert decision.sentence == "waits: the API server has not answered since 11:00"
    assert decide(a_situation(a_job(), an_attempt(), unseen, **silent)).sentence != decision.sentence


SUSPENDED = "an administrator has suspended it"


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"progress_at": ago(31)}, "its state is unknown: it is unknown; last report 2026-11-20 11:59:29 UTC"),
        ({"progress_at": ago(90), "heard_at": ago(1)}, "so far"),
        ({"progress_at": ago(1)}, "so far"),
        ({"progress_at": None}, "its state is unknown: it is unknown; no report yet"),
        (
            {"progress_at": ago(90), "heard_at": ago(31)},
            "its state is unknown: it is unknown; last report 2026-11-20 11:59:29 UTC",
        ),
        (
            {"progress_at": ago(1), "pause_reason": SUSPENDED},
            f"it is paused: {SUSPENDED}; last report 2026-11-20 11:59:59 UTC",
        ),
    ],
    ids=["silent", "heard", "progress", "never", "heard before", "pause_reason"],
)
def test_an_unknown_state_is_explained_by_the_cluster_and_the_last_report(
    training: dict[str, Any], sentence: str
) -> None:
    decision = decide(a_situation(a_job(), an_attempt(), seen(Presence.UNKNOWN, **training)))
    assert (decision.action, decision.sentence) == (Wait(), sentence)


def test_an_attempt_that_never_ran_has_no_unknown_state() -> None:
    waiting = an_attempt(AttemptState.PENDING, started_at=None)
    unseen = seen(Presence.UNKNOWN, formed_at=None, progress_at=None)
    assert decide(a_situation(a_job(JobState.STARTING), waiting, unseen)).sentence == "so far"


@pytest.mark.parametrize("again", [seen(Presence.UNKNOWN, heard_at=ago(1)), seen(Presence.RUNNING, ALIVE)])
@pytest.mark.parametrize(
    "training", [{"progress_at": ago(31)}, {"pause_reason": SUSPENDED}], ids=["silent", "pause_reason"]
)
def test_the_usual_reason_returns_once_the_attempt_is_heard_or_seen_again(
    training: dict[str, Any], again: Observation
) -> None:
    reason = decide(a_situation(a_job(), an_attempt(), seen(Presence.UNKNOWN, **training))).sentence
    decision = decide(a_situation(a_job(reason=reason), an_attempt(), again))
    assert (decision.action, decision.sentence) == (Wait(), "the workers are running")


@pytest.mark.parametrize(
    ("formed_at", "sentence"),
    [(ago(70), "the workers are running"), (None, "the agents are running, the workers are starting")],
    ids=["formed", "unformed"],
)
def test_the_usual_reason_returns_once_unheard_agents_report(formed_at: datetime | None, sentence: str) -> None:
    heard = seen(Presence.RUNNING, ALIVE, formed_at=formed_at, heard_at=ago(1))
    job = a_job(reason=f"no reports from its agents since they started; {_ADVICE}")
    decision = decide(a_situation(job, an_attempt(), heard))
    assert (decision.action, decision.sentence) == (Wait(), sentence)
    assert decide(a_situation(replace(job, reason="goes on"), an_attempt(), heard)).sentence == "goes on"


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_ended_job_is_not_started(state: JobState) -> None:
    assert decide(a_situation(a_job(state), admission=Admission(True, "free", 1))).action == Wait()


def test_a_cluster_that_does_not_answer_starts_no_job() -> None:
    assert decide(a_situation(a_job(JobState.QUEUED))).action == Wait()


def test_a_pause_without_an_attempt_before_it_has_no_length() -> None:
    job = a_job(JobState.RECOVERING, retry_at=NOW + timedelta(seconds=4))
    decision = decide(a_situation(job, None, admission=Admission(True, "free", 1)))
    assert (decision.action, decision.sentence) == (Wait(), "so far")
