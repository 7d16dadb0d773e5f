"""Act: carry a decision out. The only place that submits to a cluster, cancels there, and writes status.

Each action writes its effect and its events in one transaction. What reaches into the cluster is written down before
(an intended attempt) or repeated until it is seen (a stop), so that a crash in between is healed by the next pass.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import assert_never

import structlog

from orchestrator import rundir
from orchestrator.domain.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.budget import charge
from orchestrator.domain.decision import (
    BeginRetry,
    Decision,
    EndAttempt,
    Finish,
    NoteRunning,
    Start,
    Stop,
    Submit,
    Wait,
)
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.event import Event, EventKind
from orchestrator.domain.job import Job, JobState
from orchestrator.domain.launch import Site, build_plan
from orchestrator.domain.observation import Training
from orchestrator.ports import Backend, Change, Supervised, SupervisorStore
from trainer.contract.failure import Failure, FailureKind, render_failure
from trainer.contract.launch import DesiredDocument, DesiredState

log = structlog.get_logger()


class Actor:
    """Acts on one cluster."""

    def __init__(self, store: SupervisorStore, backend: Backend, site: Site, *, ports: range) -> None:
        self._store = store
        self._backend = backend
        self._site = site
        self._ports = ports

    def act(self, supervised: Supervised, decision: Decision, *, now: datetime) -> Supervised:
        """Carry out, and return the job as it now stands. Raises StoreUnavailable, BackendUnavailable, OSError."""
        action = decision.action
        if not isinstance(action, Wait):
            log.info("decided", job=supervised.job.id, rule=decision.rule, sentence=decision.sentence)
        match action:
            case Wait():
                return self._wait(supervised, decision, now)
            case Start():
                return self._start(supervised, decision, now)
            case Submit():
                return self._submit(supervised, decision, now)
            case NoteRunning():
                return self._note_running(supervised, decision, action, now)
            case Stop():
                return self._stop(supervised, decision, action, now)
            case EndAttempt():
                return self._end(supervised, decision, action, now)
            case Finish():
                job = supervised.job.to(action.state, reason=decision.sentence, now=now)
                return self._apply(supervised, job, None, [_job_event(job, decision, now)])
            case BeginRetry():
                return self._begin_retry(supervised, decision, now)
            case _:
                assert_never(action)

    def _wait(self, supervised: Supervised, decision: Decision, now: datetime) -> Supervised:
        if decision.sentence == supervised.job.reason:
            return supervised
        job = supervised.job.to(supervised.job.state, reason=decision.sentence, now=now)
        return self._apply(supervised, job, supervised.attempt, [])

    def _start(self, supervised: Supervised, decision: Decision, now: datetime) -> Supervised:
        """Write the attempt down, fence off the ones before it, then submit it."""
        job, last = supervised.job, supervised.attempt
        key = AttemptKey(job.id, 1 if last is None else last.key.number + 1)
        attempt = Attempt(
            key=key,
            state=AttemptState.INTENDED,
            reason=decision.sentence,
            nonce=secrets.token_hex(4),
            port=self._reserve_port(job, key, last),
            created_at=now,
            restore_from=job.desired.restore_from,
        )
        job = job.to(JobState.STARTING, reason=decision.sentence, now=now)
        place = {"port": attempt.port, "rendezvous_id": attempt.rendezvous_id}
        event = _attempt_event(attempt, decision, now, f"will meet at port {attempt.port}", place)
        rundir.fence(self._job_dir(job), key.number)
        started = replace(supervised, attempt=attempt, training=Training(), exits={})
        started = self._apply(started, job, attempt, [_job_event(job, decision, now), event])
        return self._submit(started, decision, now)

    def _submit(self, supervised: Supervised, decision: Decision, now: datetime) -> Supervised:
        attempt = _live(supervised)
        try:
            handle = self._backend.submit(build_plan(supervised.job, attempt, self._site))
        except LaunchRefused as error:
            failure = Failure(kind=FailureKind.LAUNCH, message=str(error))
            ending = EndAttempt(AttemptState.FAILED, JobState.RECOVERING, failure)
            return self._end(supervised, replace(decision, sentence=str(error)), ending, now)
        except BackendUnavailable as error:
            # It may or may not have started: the attempt stays intended, and the next look tells.
            log.warning("submission failed", attempt=str(attempt.key), reason=str(error))
            job = supervised.job.to(supervised.job.state, reason=str(error), now=now)
            return self._apply(supervised, job, attempt, [])
        submitted = replace(attempt.to(AttemptState.SUBMITTED, reason=decision.sentence, now=now), handle=handle)
        event = _attempt_event(submitted, decision, now, f"was submitted as {handle}", {"handle": handle})
        return self._apply(supervised, supervised.job, submitted, [event])

    def _note_running(
        self, supervised: Supervised, decision: Decision, action: NoteRunning, now: datetime
    ) -> Supervised:
        job, attempt = supervised.job, _live(supervised)
        events = []
        if attempt.state is not AttemptState.RUNNING:
            attempt = attempt.to(AttemptState.RUNNING, reason=decision.sentence, now=now)
            events.append(_attempt_event(attempt, decision, now, "has a living agent", {}))
        attempt = attempt.to(attempt.state, reason=decision.sentence, now=now)
        job = job.to(JobState.RUNNING if action.formed else job.state, reason=decision.sentence, now=now)
        if action.formed:
            events.append(_job_event(job, decision, now))
        return self._apply(supervised, job, attempt, events)

    def _stop(self, supervised: Supervised, decision: Decision, action: Stop, now: datetime) -> Supervised:
        """Fence (by force only: an attempt that is asked politely may still commit), write down, then cancel."""
        job, attempt = supervised.job, _live(supervised)
        if action.force:
            rundir.fence(self._job_dir(job), attempt.key.number + 1)
        events = []
        if attempt.stopping_since is None:
            attempt = replace(
                attempt.to(attempt.state, reason=decision.sentence, now=now),
                stopping_since=now,
                failure=action.failure,
            )
            events = [_attempt_event(attempt, decision, now, f"is asked to end: {decision.sentence}", {})]
        stopping = self._apply(supervised, job.to(job.state, reason=decision.sentence, now=now), attempt, events)
        rundir.write_desired(self._job_dir(job), attempt.key.number, DesiredDocument(state=DesiredState.STOP))
        if action.force or _live(supervised).stopping_since is None:
            # A polite word is said once: a second signal would cut the agent's own clean-up short.
            self._backend.cancel(attempt.key, force=action.force)
        return stopping

    def _end(self, supervised: Supervised, decision: Decision, action: EndAttempt, now: datetime) -> Supervised:
        attempt = _live(supervised).to(action.state, reason=decision.sentence, now=now, failure=action.failure)
        charged = charge(supervised.job, attempt, supervised.training, action.failure, now)
        job = charged.to(action.job_state, reason=decision.sentence, now=now)
        evidence: dict[str, object] = {} if action.failure is None else {"failure": render_failure(action.failure)}
        ended = _attempt_event(attempt, decision, now, f"ended {action.state}", evidence)
        return self._apply(supervised, job, attempt, [ended, _job_event(job, decision, now)])

    def _begin_retry(self, supervised: Supervised, decision: Decision, now: datetime) -> Supervised:
        job = supervised.job
        fresh = replace(job, retries_done=job.desired.retry_number, spent={}, fruitless=0, retry_at=None)
        state = JobState.QUEUED if job.state.terminal else job.state
        fresh = fresh.to(state, reason=decision.sentence, now=now)
        return self._apply(supervised, fresh, None, [_job_event(fresh, decision, now)])

    def _reserve_port(self, job: Job, key: AttemptKey, last: Attempt | None) -> int:
        """The next free port above the last attempt's: a port that was taken there is not tried again at once.

        A job's first one is spread over the range, so that two services on one machine rarely meet.
        """
        spread = self._ports[zlib.crc32(job.id.encode()) % len(self._ports)]
        after = spread if last is None else last.port
        return self._store.reserve_port(key, job.spec.cluster, self._ports, after=after)

    def _apply(self, supervised: Supervised, job: Job, attempt: Attempt | None, events: list[Event]) -> Supervised:
        self._store.apply(Change(job=job, attempt=attempt, events=events))
        return replace(supervised, job=job, attempt=attempt if attempt is not None else supervised.attempt)

    def _job_dir(self, job: Job) -> Path:
        return self._site.root / job.id


def _live(supervised: Supervised) -> Attempt:
    if supervised.attempt is None:
        raise AssertionError(f"{supervised.job.id}: the policy acts on an attempt that is not there")
    return supervised.attempt


def _job_event(job: Job, decision: Decision, now: datetime) -> Event:
    evidence: dict[str, object] = {"state": job.state.value, "rule": decision.rule}
    return Event(at=now, kind=EventKind.JOB_STATE, sentence=decision.sentence, evidence=evidence)


def _attempt_event(
    attempt: Attempt, decision: Decision, now: datetime, what: str, evidence: dict[str, object]
) -> Event:
    return Event(
        at=now,
        kind=EventKind.ATTEMPT_STATE,
        sentence=f"attempt {attempt.key.number} {what}",
        attempt=attempt.key.number,
        evidence={"state": attempt.state.value, "rule": decision.rule, **evidence},
    )
