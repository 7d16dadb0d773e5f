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
from orchestrator.domain.errors import LaunchRefused
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

    def act(self, supervised: Supervised, decision: Decision, *, now: datetime) -> None:
        """Carry out. Raises StoreUnavailable, BackendUnavailable, Refused, OSError; the next pass then looks again."""
        action = decision.action
        if not isinstance(action, (Wait, Stop)):
            log.info("decided", job=supervised.job.id, rule=decision.rule, sentence=decision.sentence)
        match action:
            case Wait():
                if decision.sentence != supervised.job.reason:
                    self._store.note(supervised.job.id, decision.sentence, now)
            case Start():
                self._start(supervised, decision, now)
            case Submit():
                self._submit(supervised, decision, now)
            case NoteRunning():
                self._note_running(supervised, decision, action, now)
            case Stop():
                self._stop(supervised, decision, action, now)
            case EndAttempt():
                self._end(supervised, decision, action, now)
            case Finish():
                job = supervised.job.to(action.state, reason=decision.sentence, now=now)
                self._apply(job, None, [_job_event(job, decision, now)])
            case BeginRetry():
                self._begin_retry(supervised, decision, now)
            case _:
                assert_never(action)

    def _start(self, supervised: Supervised, decision: Decision, now: datetime) -> None:
        """Write the attempt down, fence off the ones before it, then submit it."""
        job, last = supervised.job, supervised.attempt
        key = AttemptKey(job.id, 1 if last is None else last.key.number + 1)
        attempt = Attempt(
            key=key,
            state=AttemptState.INTENDED,
            reason=decision.sentence,
            nonce=secrets.token_hex(4),
            port=self._reserve_port(job, key, last),
            nodes=job.spec.topology.nodes,
            created_at=now,
            restore_from=job.desired.restore_from,
        )
        job = job.to(JobState.STARTING, reason=decision.sentence, now=now)
        place = {"port": attempt.port, "rendezvous_id": attempt.rendezvous_id}
        event = _attempt_event(attempt, decision, now, f"will meet at port {attempt.port}", place)
        rundir.fence(self._job_dir(job), key.number)
        self._apply(job, attempt, [_job_event(job, decision, now), event])
        self._submit(replace(supervised, job=job, attempt=attempt, training=Training(), exits={}), decision, now)

    def _submit(self, supervised: Supervised, decision: Decision, now: datetime) -> None:
        """Submit the intended attempt. When the cluster does not answer it stays intended: the next look tells."""
        attempt = _live(supervised)
        try:
            handle = self._backend.submit(build_plan(supervised.job, attempt, self._site))
        except LaunchRefused as error:
            failure = Failure(kind=FailureKind.LAUNCH, message=str(error))
            ending = EndAttempt(AttemptState.FAILED, JobState.RECOVERING, failure)
            self._end(supervised, replace(decision, sentence=str(error)), ending, now)
            return
        submitted = replace(attempt.to(AttemptState.SUBMITTED, reason=decision.sentence, now=now), handle=handle)
        event = _attempt_event(submitted, decision, now, f"was submitted as {handle}", {"handle": handle})
        self._apply(supervised.job, submitted, [event])

    def _note_running(self, supervised: Supervised, decision: Decision, action: NoteRunning, now: datetime) -> None:
        job, attempt = supervised.job, _live(supervised)
        running = attempt.to(AttemptState.RUNNING, reason=decision.sentence, now=now)
        events = []
        if attempt.state is not AttemptState.RUNNING:
            events.append(_attempt_event(running, decision, now, "has a living agent", {}))
        job = job.to(JobState.RUNNING if action.formed else job.state, reason=decision.sentence, now=now)
        if action.formed:
            events.append(_job_event(job, decision, now))
        self._apply(job, running, events)

    def _stop(self, supervised: Supervised, decision: Decision, action: Stop, now: datetime) -> None:
        """Write down, fence (by force only: an attempt that is asked politely may still commit), then cancel."""
        job, attempt = supervised.job, _live(supervised)
        first = attempt.stopping_since is None
        if first or decision.sentence != job.reason:
            log.info("decided", job=job.id, rule=decision.rule, sentence=decision.sentence, force=action.force)
            stopping = attempt.to(attempt.state, reason=decision.sentence, now=now)
            events = [_attempt_event(attempt, decision, now, f"is asked to end: {decision.sentence}", {})]
            if first:
                stopping = replace(stopping, stopping_since=now, failure=action.failure)
            self._apply(job.to(job.state, reason=decision.sentence, now=now), stopping, events if first else [])
        try:
            if action.force:
                rundir.fence(self._job_dir(job), attempt.key.number + 1)
            rundir.write_desired(self._job_dir(job), attempt.key.number, DesiredDocument(state=DesiredState.STOP))
        finally:
            # Whatever the disk says. A polite word is said once: a second signal would cut the agent's clean-up short.
            if action.force or first:
                self._backend.cancel(attempt.key, force=action.force)

    def _end(self, supervised: Supervised, decision: Decision, action: EndAttempt, now: datetime) -> None:
        attempt = _live(supervised).to(action.state, reason=decision.sentence, now=now, failure=action.failure)
        charged = charge(supervised.job, attempt, supervised.training, action.failure, now)
        job = charged.to(action.job_state, reason=decision.sentence, now=now)
        evidence: dict[str, object] = {} if action.failure is None else {"failure": render_failure(action.failure)}
        ended = _attempt_event(attempt, decision, now, f"ended {action.state}", evidence)
        self._apply(job, attempt, [ended, _job_event(job, decision, now)])

    def _begin_retry(self, supervised: Supervised, decision: Decision, now: datetime) -> None:
        job = supervised.job
        fresh = replace(job, retries_done=job.desired.retry_number, spent={}, fruitless=0, retry_at=None)
        fresh = fresh.to(JobState.QUEUED, reason=decision.sentence, now=now)
        self._apply(fresh, None, [_job_event(fresh, decision, now)])

    def _reserve_port(self, job: Job, key: AttemptKey, last: Attempt | None) -> int:
        """The next free port above the last attempt's: a port that was taken there is not tried again at once.

        A job's first one is spread over the range, so that two services on one machine rarely meet.
        """
        spread = self._ports[zlib.crc32(job.id.encode()) % len(self._ports)]
        after = spread if last is None else last.port
        return self._store.reserve_port(key, job.spec.cluster, self._ports, after=after)

    def _apply(self, job: Job, attempt: Attempt | None, events: list[Event]) -> None:
        self._store.apply(Change(job=job, attempt=attempt, events=events))

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
