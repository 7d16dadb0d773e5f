"""Rules that end an attempt. Each needs positive evidence (policy/evidence.py)."""

from __future__ import annotations

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.cause import Cause, find_cause
from orchestrator.domain.observation.observation import Presence
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.decision import Decision, EndAttempt, Stop
from orchestrator.domain.policy.rules.kinds import while_live
from orchestrator.domain.policy.situation import CANCELLED, SUSPENDED, Situation
from trainer.contract.failure import Failure, FailureKind


@while_live
def end_leftovers(s: Situation, live: Watched) -> Decision | None:
    """An attempt that is over but still has processes is stopped first, by force after the stop timeout."""
    if not live.leftovers():
        return None
    if live.all_succeeded():
        return Decision(action=Stop(force=s.overdue(live)), sentence="finished; stopping its remaining processes")
    cause = find_cause(live)
    if cause is None:
        return None
    # Without an agent, nothing forwards a graceful stop to orphaned workers.
    force = live.presence is Presence.GONE or s.overdue(live)
    failure = None if cause.recorded else cause.failure
    message = "" if failure is None else f"{failure.message}; "
    return Decision(
        action=Stop(force=force, failure=failure),
        sentence=f"{message}stopping the remaining processes of the attempt",
        blames=() if failure is None else cause.blames,
    )


@while_live
def adopt_success(s: Situation, live: Watched) -> Decision | None:
    """An attempt whose replicas all recorded success has succeeded, whatever was requested since."""
    if not live.all_succeeded():
        return None
    step = live.seen.training.step
    sentence = "training finished" if step is None else f"training finished at step {step}"
    return Decision(action=EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED), sentence=sentence)


@while_live
def adopt_end(s: Situation, live: Watched) -> Decision | None:
    """An attempt that is over without success ends with its first cause."""
    cause = find_cause(live)
    return None if cause is None else end(s, cause)


@while_live
def notice_failed_launch(s: Situation, live: Watched) -> Decision | None:
    """A submitted attempt that the cluster does not list failed before its agents started."""
    if live.stopping or live.attempt.state is AttemptState.INTENDED or not s.absent(live):
        return None
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=live.seen.sighting.evidence)
    return end(s, Cause(failure), AttemptState.LOST)


def end(s: Situation, cause: Cause, state: AttemptState | None = None) -> Decision:
    """End the attempt for a cause, in `state` or in the cause's own state.

    A job that was cancelled or suspended meanwhile ends up so. Any other job recovers. So does a job that failed before
    it was suspended, because its budget may be spent.
    """
    reason = "stopped" if s.live is None else s.live.attempt.reason.replace("stopping", "stopped", 1)
    failure = cause.failure
    job_state, sentence = JobState.RECOVERING, reason if failure is None else failure.message
    if s.job.desired.cancelled:
        job_state, sentence = JobState.CANCELLED, CANCELLED
    elif s.job.desired.suspended and not s.job.retry_requested and failure is None:
        job_state, sentence = JobState.SUSPENDED, SUSPENDED
    action = EndAttempt(state or cause.state, job_state, failure)
    return Decision(action=action, sentence=sentence, blames=cause.blames)
