"""What to do about a job: the policy, a list of rules. Pure: the same situation gives the same decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.budget import hopeless, overspent
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
from orchestrator.domain.job import JobState
from orchestrator.domain.observation import Presence
from orchestrator.domain.situation import Situation, is_consequence
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

Rule = Callable[[Situation], Decision | None]


def decide(s: Situation) -> Decision:
    """The first rule of POLICY that has an opinion decides."""
    for rule in POLICY:
        decision = rule(s)
        if decision is not None:
            return replace(decision, rule=rule.__name__)
    raise AssertionError("POLICY ends with a rule that always decides")


def adopt_success(s: Situation) -> Decision | None:
    """An attempt whose replicas all recorded success has succeeded, whatever was wished meanwhile."""
    if not s.all_succeeded():
        return None
    step = s.observation.training.step if s.observation else None
    sentence = "training finished" if step is None else f"training finished at step {step}"
    return Decision(action=EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED), sentence=sentence)


def end_leftovers(s: Situation) -> Decision | None:
    """An attempt that is over but still has processes is stopped first, by force when asking did not help."""
    loss = s.vanished()
    succeeded = s.all_succeeded()
    if s.live is None or not s.leftovers() or not (loss or succeeded or s.ended_badly()):
        return None
    if succeeded:
        return Decision(action=Stop(force=s.stop_overdue), sentence="finished; what it left running is being ended")
    # Without a living agent nobody passes a polite word on to orphaned workers.
    orphans = s.observation is not None and s.observation.sighting.presence is Presence.GONE
    failure = Failure(kind=FailureKind.NODE, message=loss) if loss is not None and s.ended_badly() is None else None
    sentence = f"{loss}; ending what is left of the attempt" if failure else "ending what is left of the attempt"
    return Decision(action=Stop(force=orphans or s.stop_overdue, failure=failure), sentence=sentence)


def adopt_end(s: Situation) -> Decision | None:
    """An attempt ends as the record of the first cause says, or as what made us stop it."""
    record = s.ended_badly()
    if s.live is None or record is None or (is_consequence(record) and s.vanished() is not None):
        return None
    if s.live.failure is not None:
        return _end(s, _stopped_as(s.live.failure), s.live.failure)
    if record.outcome is Outcome.PREEMPTED:
        failure = Failure(kind=FailureKind.PREEMPTED, message="the attempt was told to go by its cluster")
        return _end(s, AttemptState.PREEMPTED, failure)
    if record.outcome is Outcome.CANCELLED:
        return _end(s, AttemptState.CANCELLED, None)
    unnamed = Failure(kind=FailureKind.UNKNOWN, message="the agent recorded a failure without a cause")
    return _end(s, AttemptState.FAILED, record.failure or unnamed)


def notice_loss(s: Situation) -> Decision | None:
    """An attempt whose agents are gone without a record is lost: the machine, or all of a replica, has died."""
    evidence = s.vanished()
    if s.live is None or evidence is None:
        return None
    if s.live.stopping_since is not None:
        return _end(s, _stopped_as(s.live.failure), s.live.failure)
    return _end(s, AttemptState.LOST, Failure(kind=FailureKind.NODE, message=evidence))


def notice_failed_launch(s: Situation) -> Decision | None:
    """An attempt that was submitted and of which nothing is there died before it could claim its place."""
    if s.live is None or s.observation is None or s.live.state is AttemptState.INTENDED:
        return None
    if s.observation.sighting.presence is not Presence.ABSENT:
        return None
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=s.observation.sighting.evidence)
    return _end(s, AttemptState.LOST, failure)


def stop_unwanted(s: Situation) -> Decision | None:
    """A live attempt is stopped when its owner cancelled the job or asked for another attempt."""
    if s.live is None or not (s.job.desired.cancelled or s.retry_wished):
        return None
    if s.observation is not None and s.observation.sighting.presence is Presence.ABSENT:
        return _end(s, AttemptState.CANCELLED, None)
    why = "cancelled by its owner" if s.job.desired.cancelled else "its owner asked for another attempt"
    return Decision(action=Stop(force=s.stop_overdue), sentence=f"stopping: {why}")


def go_on_stopping(s: Situation) -> Decision | None:
    """A stop that was begun is seen through, by force after the stop time-out."""
    if s.live is None or s.live.stopping_since is None:
        return None
    if s.observation is not None and s.observation.sighting.presence is Presence.ABSENT:
        # It was stopped before any agent could claim it: nothing of it is left.
        return _end(s, _stopped_as(s.live.failure), s.live.failure)
    return Decision(action=Stop(force=s.stop_overdue, failure=s.live.failure), sentence=s.live.reason)


def stop_overlong(s: Situation) -> Decision | None:
    """An attempt that has run longer than the job may is stopped."""
    limit = s.job.spec.supervise.max_runtime_s
    if s.live is None or limit is None or _age(s, s.live.started_at) <= limit:
        return None
    failure = Failure(kind=FailureKind.TIMEOUT, message=f"the attempt ran longer than max_runtime_s = {limit:g}")
    return Decision(action=Stop(force=False, failure=failure), sentence=failure.message)


def stop_slow_start(s: Situation) -> Decision | None:
    """An attempt whose workers tell nothing for too long after the agent's start is stopped."""
    limit = s.job.spec.supervise.startup_timeout_s
    if s.live is None or s.observation is None or s.observation.training.formed_at is not None:
        return None
    if _age(s, s.live.started_at) <= limit:
        return None
    failure = Failure(kind=FailureKind.HANG, message=f"the workers formed no group within {limit:g} s")
    return Decision(action=Stop(force=False, failure=failure), sentence=failure.message)


def stop_stalled(s: Situation) -> Decision | None:
    """An attempt that told of progress and then fell silent for longer than heartbeat_timeout_s is stopped.

    `auto` waits for 10 minutes or 50 steps, whichever is longer: rather late than a healthy job lost.
    """
    if s.live is None or s.observation is None or s.observation.training.progress_at is None:
        return None
    limit = heartbeat_timeout_s(s)
    silent = _age(s, s.observation.training.progress_at)
    if silent <= limit:
        return None
    step = s.observation.training.step
    message = f"no worker made progress for {silent:.0f} s (limit {limit:.0f} s) after step {step}"
    failure = Failure(kind=FailureKind.HANG, message=message, step=step)
    return Decision(action=Stop(force=False, failure=failure), sentence=message)


def submit_intended(s: Situation) -> Decision | None:
    """An attempt that was written down and, by positive evidence, never submitted is submitted now."""
    if s.live is None or s.observation is None or s.live.state is not AttemptState.INTENDED:
        return None
    if s.observation.sighting.presence is not Presence.ABSENT:
        return None
    return Decision(action=Submit(), sentence=f"submitting attempt {s.live.key.number}")


def note_running(s: Situation) -> Decision | None:
    """Write down that agents are alive, and that the worker group has formed, once each."""
    if s.live is None or s.observation is None or s.observation.sighting.presence is not Presence.RUNNING:
        return None
    formed = s.observation.training.formed_at is not None
    if s.live.state is not AttemptState.RUNNING or (formed and s.job.state is JobState.STARTING):
        sentence = "the workers are running" if formed else "the agents are up, the workers are starting"
        return Decision(action=NoteRunning(formed), sentence=sentence)
    return None


def begin_retry(s: Situation) -> Decision | None:
    """The owner's retry is honoured once nothing of the job runs."""
    if s.live is not None or not s.retry_wished:
        return None
    return Decision(action=BeginRetry(), sentence="its owner asked for another attempt")


def finish_cancelled(s: Situation) -> Decision | None:
    """A cancelled job of which nothing runs has ended."""
    if s.live is not None or s.job.state.terminal or not s.job.desired.cancelled:
        return None
    return Decision(action=Finish(JobState.CANCELLED), sentence="cancelled by its owner")


def give_up(s: Situation) -> Decision | None:
    """A job is stopped when its last failure cannot be mended by another attempt, or its budget is spent."""
    failure = None if s.attempt is None else s.attempt.failure
    if not s.waits_to_recover() or failure is None:
        return None
    verdict = hopeless(failure) or overspent(s.job, failure)
    if verdict is None:
        return None
    return Decision(action=Finish(JobState.FAILED), sentence=f"{failure.message}; {verdict}")


def recover(s: Situation) -> Decision | None:
    """A job between attempts gets the next one as soon as its back-off is over."""
    if not s.waits_to_recover():
        return None
    if s.job.retry_at is not None and s.now < s.job.retry_at:
        return Decision(action=Wait(), sentence=_pause(s), look_again_at=s.job.retry_at)
    number = 1 if s.attempt is None else s.attempt.key.number + 1
    return Decision(action=Start(), sentence=f"recovering with attempt {number}")


def start(s: Situation) -> Decision | None:
    """A queued job starts when it is admitted; until then its reason says what it waits for."""
    if s.job.state is not JobState.QUEUED or s.live is not None or s.admission is None:
        return None
    if not s.admission.admitted:
        return Decision(action=Wait(), sentence=s.admission.sentence)
    return Decision(action=Start(), sentence=f"starting: {s.admission.sentence}")


def wait(s: Situation) -> Decision:
    """Nothing to do."""
    return Decision(action=Wait(), sentence=s.job.reason)


# First match wins: this order is the policy.
POLICY: tuple[Rule, ...] = (
    end_leftovers,
    adopt_success,
    adopt_end,
    notice_loss,
    notice_failed_launch,
    stop_unwanted,
    go_on_stopping,
    stop_overlong,
    stop_slow_start,
    stop_stalled,
    submit_intended,
    note_running,
    begin_retry,
    finish_cancelled,
    give_up,
    recover,
    start,
    wait,
)


def heartbeat_timeout_s(s: Situation) -> float:
    wanted = s.job.spec.supervise.heartbeat_timeout_s
    if wanted != "auto":
        return wanted
    step_s = s.observation.training.step_s if s.observation is not None else None
    return max(600.0, 50 * (step_s or 0.0))


def _end(s: Situation, state: AttemptState, failure: Failure | None) -> Decision:
    """End the attempt. A job that was cancelled meanwhile ends with it, any other recovers."""
    if s.job.desired.cancelled:
        action = EndAttempt(AttemptState.CANCELLED, JobState.CANCELLED)
        return Decision(action=action, sentence="cancelled by its owner")
    sentence = failure.message if failure is not None else "stopped"
    return Decision(action=EndAttempt(state, JobState.RECOVERING, failure), sentence=sentence)


def _pause(s: Situation) -> str:
    """How long the pause is in all, so that the sentence stays the same while it lasts."""
    last, until = s.attempt, s.job.retry_at
    if last is None or last.ended_at is None or until is None:
        return s.job.reason
    cause = "" if last.failure is None else f" after: {last.failure.message}"
    return f"waits {(until - last.ended_at).total_seconds():.0f} s before its next attempt{cause}"


def _stopped_as(failure: Failure | None) -> AttemptState:
    """How an attempt ended that we stopped: for a fault, or because its owner wished it."""
    if failure is None:
        return AttemptState.CANCELLED
    return AttemptState.LOST if failure.kind is FailureKind.NODE else AttemptState.FAILED


def _age(s: Situation, since: datetime | None) -> float:
    return 0.0 if since is None else (s.now - since) / timedelta(seconds=1)
