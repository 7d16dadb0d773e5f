"""How the actor carries out decisions: attempts that ended unseen, nodes that it marks, and secrets of a start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import rundir
from orchestrator.domain.errors import LaunchRefused, LeaseLost, NotPermitted, StoreUnavailable
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.masking import MASK, NOTHING, Mask
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import Decision, EndAttempt, NotePending, Stop, Submit
from orchestrator.domain.policy.situation import Situation
from orchestrator.ports.cluster import Backend
from orchestrator.ports.supervision import Change, SupervisorWriter
from orchestrator.supervisor.act import Actor
from tests.builders import make_site
from tests.unit.situations import KEY, a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract import layout
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.records.claim import ClaimRefused, claim_attempt


class Recorder:
    """A store and a cluster that record what they are asked."""

    def __init__(self, refusal: Exception | None) -> None:
        self.changes: list[Change] = []
        self.plans: list[LaunchPlan] = []
        self._refusal = refusal

    def apply(self, change: Change) -> None:
        self.changes.append(change)

    def submit(self, plan: LaunchPlan) -> str:
        if self._refusal is not None:
            raise self._refusal
        self.plans.append(plan)
        return "handle"

    def cancel(self, key: object, *, force: bool) -> None:
        pass


def act(
    root: Path, s: Situation, decision: Decision | None = None, *, refusal: Exception | None = None, **fields: Any
) -> Recorder:
    """Carry out the decision, by default the policy's own. `refusal` is the cluster's answer to a submission."""
    recorder, folders = Recorder(refusal), rundir.LocalRunDirectories(root)
    store, backend = cast(SupervisorWriter, recorder), cast(Backend, recorder)
    actor = Actor(store, backend, folders, make_site(), ports=range(20000, 20010), **fields)
    actor.act(s, decision or decide(s), ())
    return recorder


@pytest.mark.parametrize("action", [NotePending(), Submit()])
def test_acting_on_an_attempt_that_does_not_exist_is_a_defect(tmp_path: Path, action: NotePending | Submit) -> None:
    with pytest.raises(AssertionError, match="an attempt that does not exist"):
        act(tmp_path, a_situation(a_job()), Decision(action=action, sentence="x"))


def test_only_an_attempt_whose_submissions_were_all_refused_waits_for_permission(tmp_path: Path) -> None:
    refusal, s = NotPermitted("user orch may not submit"), intended()
    with pytest.raises(NotPermitted):
        act(tmp_path, s, SUBMIT, refusal=refusal)
    refused = replace(s, attempt=an_attempt(AttemptState.INTENDED, started_at=None, not_permitted="no account"))
    noted = act(tmp_path, refused, SUBMIT, refusal=refusal).changes[-1]
    assert noted.attempt is not None
    assert (noted.attempt.state, noted.attempt.not_permitted) == (AttemptState.INTENDED, str(refusal))


# Attempts that ended unseen


def cancelled_before_its_submission() -> Situation:
    job = a_job(JobState.STARTING, desired=Desired(number=1, cancelled=True))
    return a_situation(job, an_attempt(AttemptState.INTENDED, started_at=None), seen(Presence.ABSENT))


def claim(root: Path) -> None:
    claim_attempt(layout.attempt_dir(root / KEY.job_id, KEY.number), "a submission")


def test_no_agent_can_claim_an_attempt_that_ended_before_its_submission(tmp_path: Path) -> None:
    (change,) = act(tmp_path, cancelled_before_its_submission()).changes
    assert change.job.state is JobState.CANCELLED
    with pytest.raises(ClaimRefused):
        claim(tmp_path)


def test_an_attempt_that_an_agent_has_claimed_is_not_ended_as_never_submitted(tmp_path: Path) -> None:
    claim(tmp_path)
    assert not act(tmp_path, cancelled_before_its_submission()).changes


def test_an_attempt_is_not_withdrawn_without_the_lease(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLost("it has expired")

    with pytest.raises(LeaseLost):
        act(tmp_path, cancelled_before_its_submission(), require_lease=lost)
    assert rundir.LocalRunDirectories(tmp_path).withdraw(KEY.job_id, KEY.number), "no agent has claimed it"


@pytest.mark.parametrize("handle", ["slurm:7", None])
@pytest.mark.parametrize(
    ("outcome", "job_state", "state"),
    [
        (Outcome.SUCCEEDED, JobState.SUCCEEDED, AttemptState.SUCCEEDED),
        (None, JobState.RECOVERING, AttemptState.LOST),
    ],
)
def test_an_attempt_that_its_cluster_has_forgotten_ends_by_its_exit_records(
    tmp_path: Path, handle: str | None, outcome: Outcome | None, job_state: JobState, state: AttemptState
) -> None:
    claim(tmp_path)
    observation = seen(Presence.ABSENT, exits={} if outcome is None else {0: an_exit(outcome)})
    (change,) = act(tmp_path, a_situation(a_job(), an_attempt(handle=handle), observation)).changes
    assert change.attempt is not None
    assert (change.job.state, change.attempt.state) == (job_state, state)


@pytest.mark.parametrize("ends", [True, False], ids=["an end", "a stop"])
def test_an_attempt_lists_the_nodes_that_it_marked(tmp_path: Path, ends: bool) -> None:
    failure = Failure(kind=FailureKind.NODE, message="n2 is down")
    action = EndAttempt(AttemptState.LOST, JobState.RECOVERING, failure) if ends else Stop(force=False, failure=failure)
    s = a_situation(a_job(), an_attempt(), seen(Presence.GONE))
    (change,) = act(tmp_path, s, Decision(action=action, sentence="n2 is down", blames=("n2",))).changes
    assert change.attempt is not None
    assert change.attempt.marked_nodes == ("n2",)
    assert [mark.node for mark in change.node_failures] == ["n2"]


@pytest.mark.parametrize(
    ("formed_at", "generation", "at_launch"), [(None, 0, True), (ago(9), 0, False), (None, 1, False)]
)
def test_only_an_end_before_any_worker_began_is_one_at_launch(
    tmp_path: Path, formed_at: datetime | None, generation: int, at_launch: bool
) -> None:
    record = replace(an_exit(Outcome.FAILED, FailureKind.UNKNOWN), generation=generation)
    observation = seen(Presence.GONE, a_replica(Liveness.DEAD), exits={0: record}, formed_at=formed_at)
    (change,) = act(tmp_path, a_situation(a_job(), an_attempt(), observation)).changes
    assert change.attempt is not None
    assert change.attempt.failure is not None
    assert change.attempt.failure.at_launch is at_launch


# Secrets

VALUE = "hunter2-hunter2"
SUBMIT = Decision(action=Submit(), sentence="x")


class Secrets:
    """A vault with the secrets of project `default`."""

    def __init__(self, *, error: Exception | None = None, **values: str) -> None:
        self._values = values
        self._error = error

    def reveal(self, project: str, names: Collection[str]) -> Mapping[str, str]:
        if self._error is not None:
            raise self._error
        assert project == "default"
        return {name: self._values[name] for name in names}

    def mask_of_project(self, project: str) -> Mask:
        return Mask(self._values.values()) if project == "default" else NOTHING


def intended(*names: str) -> Situation:
    job = a_job(JobState.STARTING, spec=a_spec(run={"command": ["true"], "secrets": names}))
    return a_situation(job, an_attempt(AttemptState.INTENDED, started_at=None))


def test_a_start_gets_only_the_secrets_that_its_job_names(tmp_path: Path) -> None:
    plans = act(tmp_path, intended("KEY"), SUBMIT, secrets=Secrets(KEY=VALUE, OTHER="another-secret")).plans
    assert [dict(plan.secrets) for plan in plans] == [{"KEY": VALUE}]


@pytest.mark.parametrize("secrets", [None, Secrets(error=LaunchRefused("project default has no secret KEY"))])
def test_a_start_with_a_missing_secret_fails_and_names_it(tmp_path: Path, secrets: Secrets | None) -> None:
    recorder = act(tmp_path, intended("KEY"), SUBMIT, secrets=secrets)
    assert not recorder.plans
    ended = recorder.changes[-1].attempt
    assert ended is not None
    assert ended.failure is not None
    assert (ended.state, ended.failure.kind) == (AttemptState.FAILED, FailureKind.LAUNCH)
    assert "KEY" in ended.reason


@pytest.mark.parametrize("secrets", [None, Secrets(error=StoreUnavailable("no key fits"))])
def test_a_start_without_secrets_needs_no_vault(tmp_path: Path, secrets: Secrets | None) -> None:
    assert [dict(plan.secrets) for plan in act(tmp_path, intended(), SUBMIT, secrets=secrets).plans] == [{}]


def test_a_vault_that_does_not_answer_ends_no_attempt(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        act(tmp_path, intended("KEY"), SUBMIT, secrets=Secrets(error=StoreUnavailable("no key fits")))


def test_what_is_stored_about_an_end_masks_the_projects_secrets(tmp_path: Path) -> None:
    failure = Failure(kind=FailureKind.APPLICATION, message=f"bad key {VALUE}", traceback=f"X({VALUE})")
    ending = EndAttempt(AttemptState.FAILED, JobState.RECOVERING, failure)
    decision = Decision(action=ending, sentence=f"its last words: {VALUE}", blames=("node-1",))
    s = a_situation(a_job(JobState.STARTING), an_attempt(), seen(Presence.GONE))
    (change,) = act(tmp_path, s, decision, secrets=Secrets(KEY=VALUE)).changes
    assert VALUE not in repr(change)
    assert change.attempt is not None
    assert change.attempt.failure is not None
    assert change.attempt.failure.message == f"bad key {MASK}"
    assert change.job.reason == f"its last words: {MASK}"
    assert MASK in change.node_failures[0].sentence
