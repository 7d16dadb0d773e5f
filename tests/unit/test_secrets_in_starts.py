"""A start opens the secrets that its job names, and what is told of it hides them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import rundir
from orchestrator.domain.errors import LaunchRefused, StoreUnavailable
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.masking import MASK, NOTHING, Mask
from orchestrator.domain.observation.observation import Presence
from orchestrator.domain.policy.decision import Decision, EndAttempt, Submit
from orchestrator.intake.intake import Intake
from orchestrator.ports.cluster import Backend
from orchestrator.ports.jobs import JobLookup
from orchestrator.ports.journals import JournalBatch, JournalStore
from orchestrator.ports.supervision import Change, SupervisorWriter
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor.act import Actor
from orchestrator.wire.reports import ReportBody
from tests.unit.situations import a_job, a_situation, a_spec, an_attempt, seen
from tests.unit.test_launch import SITE
from trainer.contract.failure import Failure, FailureKind

VALUE = "hunter2-hunter2"


class Applied:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def apply(self, change: Change) -> None:
        self.changes.append(change)


class Submitted:
    def __init__(self) -> None:
        self.plans: list[LaunchPlan] = []

    def submit(self, plan: LaunchPlan) -> str:
        self.plans.append(plan)
        return "handle"


class Secrets:
    def __init__(self, **values: str) -> None:
        self.values = values
        self.error: Exception | None = None

    def reveal(self, project: str, names: Collection[str]) -> Mapping[str, str]:
        if self.error is not None:
            raise self.error
        assert project == "default"
        return {name: self.values[name] for name in names}

    def mask_of_project(self, project: str) -> Mask:
        return Mask(self.values.values()) if project == "default" else NOTHING

    def masks(self, job_ids: Collection[str]) -> Mapping[str, Mask]:
        return {}


def act(
    folder: Path, decision: Decision, secrets: Secrets | None, *, names: tuple[str, ...] = ("KEY",), **attempt: Any
) -> tuple[Applied, Submitted]:
    store, backend = Applied(), Submitted()
    actor = Actor(
        cast(SupervisorWriter, store),
        cast(Backend, backend),
        rundir.LocalRunDirectories(folder),
        SITE,
        ports=range(20000, 20010),
        secrets=secrets,
    )
    job = a_job(JobState.STARTING, spec=a_spec(run={"command": ["true"], "secrets": names}))
    gone = seen(Presence.GONE) if isinstance(decision.action, EndAttempt) else None
    actor.act(a_situation(job, an_attempt(**attempt), gone), decision, ())
    return store, backend


SUBMIT = Decision(action=Submit(), sentence="x")


def test_a_start_is_given_what_its_job_names(tmp_path: Path) -> None:
    secrets = Secrets(KEY=VALUE, OTHER="another-secret")
    _, backend = act(tmp_path, SUBMIT, secrets, state=AttemptState.INTENDED, started_at=None)
    assert [dict(plan.secrets) for plan in backend.plans] == [{"KEY": VALUE}]


@pytest.mark.parametrize("secrets", [None, Secrets()])
def test_a_start_without_a_secret_that_is_named_fails_and_says_so(tmp_path: Path, secrets: Secrets | None) -> None:
    if secrets is not None:
        secrets.error = LaunchRefused("project default has no secret KEY")
    store, backend = act(tmp_path, SUBMIT, secrets, state=AttemptState.INTENDED, started_at=None)
    assert not backend.plans
    ended = store.changes[-1].attempt
    assert ended is not None
    assert ended.failure is not None
    assert (ended.state, ended.failure.kind) == (AttemptState.FAILED, FailureKind.LAUNCH)
    assert "KEY" in ended.reason


def test_a_start_that_names_no_secret_needs_no_vault(tmp_path: Path) -> None:
    silent = Secrets()
    silent.error = StoreUnavailable("no key fits")
    for vault in (None, silent):
        _, backend = act(tmp_path, SUBMIT, vault, names=(), state=AttemptState.INTENDED, started_at=None)
        assert [dict(plan.secrets) for plan in backend.plans] == [{}]


def test_a_vault_that_does_not_answer_ends_no_attempt(tmp_path: Path) -> None:
    secrets = Secrets(KEY=VALUE)
    secrets.error = StoreUnavailable("no key fits")
    with pytest.raises(StoreUnavailable):
        act(tmp_path, SUBMIT, secrets, state=AttemptState.INTENDED, started_at=None)


def test_what_is_told_of_an_end_hides_the_projects_secrets(tmp_path: Path) -> None:
    failure = Failure(kind=FailureKind.APPLICATION, message=f"bad key {VALUE}", traceback=f"X({VALUE})")
    ending = EndAttempt(AttemptState.FAILED, JobState.RECOVERING, failure)
    decision = Decision(action=ending, sentence=f"its last words: {VALUE}", blames=("node-1",))
    store, _ = act(tmp_path, decision, Secrets(KEY=VALUE), state=AttemptState.RUNNING)
    (change,) = store.changes
    assert VALUE not in repr(change)
    assert change.attempt is not None
    assert change.attempt.failure is not None
    assert change.attempt.failure.message == f"bad key {MASK}"
    assert change.job.reason == f"its last words: {MASK}"
    assert MASK in change.node_failures[0].sentence


def test_what_agents_tell_is_stored_without_secrets() -> None:
    stored: list[JournalBatch] = []

    class Journals:
        def ingest(self, batches: Collection[JournalBatch], *, arrived_at: object) -> Mapping[int, str]:
            stored.extend(batches)
            return {}

    class Jobs:
        def requested(self, job_ids: Collection[str]) -> Mapping[str, object]:
            return {}

    intake = Intake(
        cast(JournalStore, Journals()),
        cast(JobLookup, Jobs()),
        VirtualClock(),
        lambda _: Path("/nowhere"),
        masks=lambda job_ids: {"job-1": Mask([VALUE])} if "job-1" in job_ids else {},
    )
    told_once = {"at": "2026-01-01T00:00:00Z", "kind": "worker.failed", "sentence": VALUE, "evidence": {"a": VALUE}}
    line = json.dumps(told_once)
    ending = {
        "outcome": "failed",
        "at": "2026-01-01T00:00:00Z",
        "generation": 1,
        "restarts": 0,
        "failure": {"kind": "application", "message": VALUE},
    }
    for job_id in ("job-1", "job-2"):
        body = {"job_id": job_id, "attempt": 1, "replica": 0, "incarnation": 1, "exit_record": ending}
        told = {"events": [line], "events_to": len(line) + 1}
        intake.accept([ReportBody.model_validate({**body, **told})])
    hidden, plain = stored
    assert VALUE not in repr(hidden)
    assert MASK in repr(hidden)
    assert VALUE in repr(plain), "a job of another project"
