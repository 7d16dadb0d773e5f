"""What the property tests found, told small."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from orchestrator import rundir
from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.job.launch_plan import Site
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, Stop
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Admission
from orchestrator.ports.cluster import Backend
from orchestrator.ports.supervision import Change, SupervisorWriter
from orchestrator.supervisor.act import Actor
from tests.builders import at, make_journal_event, make_progress
from tests.unit.situations import KEY, a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract import layout
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.records.claim import claim_attempt


def elastic(*replicas: ReplicaSighting, resized_at: datetime | None = None) -> Situation:
    """A job of one to two nodes that has been at work for long, and could have two."""
    job = a_job(spec=a_spec(topology={"nodes": "1:2"}, supervise={"grow_back_after_s": 60}))
    observation = seen(Presence.RUNNING, *replicas, resized_at=resized_at, snapshots=1)
    attempt = an_attempt(nodes="1:2", started_at=ago(1000))
    return a_situation(job, attempt, observation, Admission(False, "could have 2 nodes", 2))


def test_a_replica_that_is_out_of_sight_is_no_reason_to_grow() -> None:
    s = elastic(a_replica(number=0), a_replica(Liveness.UNKNOWN, number=1))
    assert decide(s).rule == "wait"


def test_a_group_that_lost_a_replica_shrinks_before_it_grows_back() -> None:
    lost = (a_replica(number=0), a_replica(Liveness.DEAD, number=1))
    assert decide(elastic(*lost)).rule == "wait"
    assert decide(elastic(*lost, resized_at=ago(59))).rule == "wait"
    assert decide(elastic(*lost, resized_at=ago(61))).rule == "grow_back"


def test_what_was_being_stopped_and_was_forgotten_ends_as_what_it_was_stopped_for() -> None:
    hang = Failure(kind=FailureKind.HANG, message="no rank told anything")
    attempt = an_attempt(handle="slurm:7", stopping_since=ago(20), failure=hang)
    decision = decide(a_situation(a_job(), attempt, seen(Presence.ABSENT)))
    assert decision.action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, hang)


def test_to_suspend_and_resume_a_job_whose_budget_is_spent_gives_it_no_further_attempt() -> None:
    hang = Failure(kind=FailureKind.HANG, message="no rank told anything")
    spec = a_spec(supervise={"budgets": {"hang": 0}})
    job = a_job(JobState.RECOVERING, spec=spec, desired=Desired(number=1, suspended=True), spent={"hang": 1})
    assert decide(a_situation(job, an_attempt(AttemptState.FAILED, failure=hang))).rule == "give_up"


def test_a_group_whose_workers_tell_of_themselves_has_formed_though_the_event_of_it_was_lost() -> None:
    told = TrainingSummary()
    told.add_line(make_progress(seconds=7), at(8))
    assert told.formed_at == at(7)
    told.add_event(make_journal_event("generation.started"), at(9))
    assert told.formed_at == at(7)


def complaining() -> ExitRecord:
    failure = Failure(kind=FailureKind.APPLICATION, message="Connection closed by peer")
    return replace(an_exit(Outcome.FAILED), failure=failure)


def test_a_loss_that_others_complain_of_is_the_cause_though_something_is_left_to_be_ended() -> None:
    complaint = complaining()
    left = (a_replica(Liveness.DEAD, number=0), a_replica(Liveness.DEAD, number=1, leftovers=True))
    decision = decide(a_situation(a_job(), an_attempt(nodes="2"), seen(Presence.GONE, *left, exits={0: complaint})))
    assert isinstance(decision.action, Stop)
    assert decision.action.failure is not None
    assert decision.action.failure.kind is FailureKind.NODE


def test_whom_we_ended_ourselves_is_not_the_cause_of_what_others_complained_of_before() -> None:
    complaint = complaining()
    gone = (a_replica(Liveness.DEAD, number=0), a_replica(Liveness.DEAD, number=1))
    stopped = an_attempt(nodes="2", stopping_since=ago(20))
    decision = decide(a_situation(a_job(), stopped, seen(Presence.GONE, *gone, exits={0: complaint})))
    assert decision.action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, complaint.failure)


class Applied:
    """A store that keeps what was applied."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def apply(self, change: Change) -> None:
        self.changes.append(change)


def applied(root: Path, s: Situation) -> list[Change]:
    store = Applied()
    folders = rundir.LocalRunDirectories(root)
    actor = Actor(cast(SupervisorWriter, store), cast(Backend, None), folders, cast(Site, None), ports=range(9, 10))
    actor.act(s, decide(s), ())
    return store.changes


@pytest.mark.parametrize("handle", ["slurm:7", None])
def test_an_attempt_that_finished_and_was_forgotten_by_its_cluster_is_adopted(
    tmp_path: Path, handle: str | None
) -> None:
    claim_attempt(layout.attempt_dir(tmp_path / KEY.job_id, KEY.number), "its submission")
    observation = seen(Presence.ABSENT, exits={0: an_exit(Outcome.SUCCEEDED)})
    (change,) = applied(tmp_path, a_situation(a_job(), an_attempt(handle=handle), observation))
    assert change.job.state is JobState.SUCCEEDED


@pytest.mark.parametrize("handle", ["slurm:7", None])
def test_an_attempt_that_died_and_was_forgotten_by_its_cluster_is_lost(tmp_path: Path, handle: str | None) -> None:
    claim_attempt(layout.attempt_dir(tmp_path / KEY.job_id, KEY.number), "its submission")
    observation = seen(Presence.ABSENT)
    (change,) = applied(tmp_path, a_situation(a_job(), an_attempt(handle=handle), observation))
    assert change.attempt is not None
    assert change.attempt.state is AttemptState.LOST
