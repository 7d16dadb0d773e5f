"""Builders of situations for the policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.observation import (
    Liveness,
    Observation,
    Presence,
    RankReport,
    ReplicaSighting,
    Sighting,
    Training,
)
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Admission
from orchestrator.domain.specs.spec import JobSpec
from tests.builders import make_attempt, make_exit_record, make_job
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
KEY = AttemptKey("train-abc", 1)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "train", "run": {"script": "train.py"}, **fields})


def a_job(state: JobState = JobState.RUNNING, *, spec: JobSpec | None = None, **fields: Any) -> Job:
    job = make_job(KEY.job_id, spec=spec or a_spec(), state=state, reason="so far", created_at=ago(100))
    return replace(job, **fields)


def an_attempt(state: AttemptState = AttemptState.RUNNING, **fields: Any) -> Attempt:
    times: dict[str, Any] = {"created_at": ago(90), "started_at": ago(80)}
    attempt = make_attempt(KEY.job_id, state=state, reason="so far", nonce="0a1b2c3d", **times)
    return replace(attempt, **{"asked": fields.get("nodes", attempt.asked), **fields})


def a_replica(liveness: Liveness = Liveness.ALIVE, number: int = 0, *, leftovers: bool = False) -> ReplicaSighting:
    evidence = f"replica {number} is {liveness.value}"
    return ReplicaSighting(replica=number, liveness=liveness, evidence=evidence, leftovers=leftovers)


def seen(
    presence: Presence = Presence.RUNNING,
    *replicas: ReplicaSighting,
    exits: dict[int, ExitRecord] | None = None,
    heard_since: datetime = ago(10_000),  # noqa: B008
    unheard: bool = False,
    ranks: tuple[RankReport, ...] = (),
    cause: Failure | None = None,
    pause_reason: str | None = None,
    **training: Any,
) -> Observation:
    sighting = Sighting(
        key=KEY,
        presence=presence,
        evidence=f"it is {presence.value}",
        replicas=replicas,
        cause=cause,
        pause_reason=pause_reason,
    )
    training = {"generation": 1, "step": 40, "formed_at": ago(70), "progress_at": ago(1), **training}
    return Observation(
        sighting=sighting,
        training=Training(**training),
        exits=exits or {},
        heard_since=heard_since,
        unheard=unheard,
        ranks=ranks,
    )


def an_exit(outcome: Outcome, kind: FailureKind | None = None, *, at: str = "2026-11-20T11:59:00Z") -> ExitRecord:
    failure = None if kind is None else Failure(kind=kind, message=f"a failure of kind {kind.value}")
    return make_exit_record(outcome, at=at, failure=failure)


def a_situation(
    job: Job | None = None,
    attempt: Attempt | None = None,
    observation: Observation | None = None,
    admission: Admission | None = None,
    **fields: Any,
) -> Situation:
    return Situation(
        now=NOW,
        job=job or a_job(),
        attempt=attempt,
        live=None if attempt is None or observation is None else Watched(attempt, observation),
        admission=admission,
        stop_timeout_s=15,
        **fields,
    )


def with_attempt(s: Situation, attempt: Attempt) -> Situation:
    """The same situation with another attempt."""
    return replace(s, attempt=attempt, live=None if s.live is None else Watched(attempt, s.live.seen))


def with_seen(s: Situation, observation: Observation) -> Situation:
    """The same situation with another observation."""
    assert s.attempt is not None
    return replace(s, live=Watched(s.attempt, observation))
