"""Builders of domain objects. Every argument has a default that suits tests in which it does not matter."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.journals import JournalBatch
from trainer.contract.clock import render_time
from trainer.contract.exit_record import ExitRecord, JournalEvent, Outcome
from trainer.contract.progress import Phase, Progress

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """This many seconds after NOW."""
    return NOW + timedelta(seconds=seconds)


def make_spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "demo", "run": {"command": ["true"]}, **fields})


def make_site(root: Path = Path("/"), **fields: Any) -> Site:
    defaults: dict[str, Any] = {
        "python": "python",
        "child": "child.py",
        "rendezvous_host": "127.0.0.1",
        "gpus_per_node": 0,
        "report_url": None,
        "stop_timeout_s": 10,
        "log_limit_bytes": 1000,
    }
    return Site(root=root, **{**defaults, **fields})


def make_job(job_id: str = "job-1", *, spec: JobSpec | None = None, **fields: Any) -> Job:
    created_at = fields.get("created_at", NOW)
    defaults: dict[str, Any] = {
        "state": JobState.QUEUED,
        "reason": "waits for a free slot",
        "desired": Desired(),
        "created_at": created_at,
        "updated_at": created_at,
    }
    return Job(id=job_id, spec=spec or make_spec(), **{**defaults, **fields})


def make_attempt(job_id: str = "job-1", number: int = 1, **fields: Any) -> Attempt:
    defaults: dict[str, Any] = {
        "state": AttemptState.INTENDED,
        "reason": "is written down",
        "nonce": "c0ffee",
        "nodes": "1",
        "asked": fields.get("nodes", "1"),
        "port": 20000,
        "created_at": NOW,
    }
    return Attempt(key=AttemptKey(job_id, number), **{**defaults, **fields})


def make_event(kind: str = "job.state", **fields: Any) -> Event:
    return Event(**{"at": NOW, "kind": kind, "sentence": "something happened", **fields})


def make_progress(step: int | None = None, *, seconds: float = 0, **fields: Any) -> Progress:
    defaults: dict[str, Any] = {
        "at": render_time(at(seconds)),
        "rank": 0,
        "local_rank": 0,
        "world_size": 2,
        "generation": 1,
        "pid": 4711,
        "phase": Phase.START if step is None else Phase.STEP,
        "metrics": {} if step is None else {"loss": 1.0 / (1 + step)},
    }
    return Progress(step=step, **{**defaults, **fields})


def make_journal_event(kind: str = "agent.started", **fields: Any) -> JournalEvent:
    defaults: dict[str, Any] = {"at": render_time(NOW), "sentence": "the agent says so", "generation": 1}
    return JournalEvent(kind=kind, **{**defaults, **fields})


def make_exit_record(outcome: Outcome = Outcome.SUCCEEDED, **fields: Any) -> ExitRecord:
    return ExitRecord(outcome=outcome, **{"at": render_time(NOW), "generation": 1, "restarts": 0, **fields})


def make_batch(
    job_id: str = "job-1",
    attempt: int = 1,
    *,
    replica: int = 0,
    incarnation: int = 1,
    progress: list[tuple[int, Progress]] | None = None,
    events: list[tuple[int, JournalEvent]] | None = None,
    exit_record: ExitRecord | None = None,
    progress_from: int = 0,
    reported: bool = False,
) -> JournalBatch:
    """A batch of lines, each with the offset of its end. The batch ends with its last line."""
    progress, events = progress or [], events or []
    return JournalBatch(
        key=AttemptKey(job_id, attempt),
        replica=replica,
        incarnation=incarnation,
        progress=progress,
        progress_to=progress[-1][0] if progress else 0,
        events=events,
        events_to=events[-1][0] if events else 0,
        exit_record=exit_record,
        progress_from=progress_from,
        reported=reported,
    )


def with_command(plan: LaunchPlan, *words: str) -> LaunchPlan:
    """Return the plan with another command."""
    (role,) = plan.app.roles
    other = replace(role, entrypoint=words[0], args=[word.replace("$", "$$") for word in words[1:]])
    return replace(plan, app=replace(plan.app, roles=[other]))
