"""Rules for a job without a live attempt: rest, give up, or start an attempt."""

from __future__ import annotations

from datetime import datetime

from orchestrator.domain.counted import counted
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.policy.budget import hopeless, longest_backoff, overspent
from orchestrator.domain.policy.decision import BeginRetry, Decision, Finish, Start, Wait
from orchestrator.domain.policy.rules.kinds import while_idle
from orchestrator.domain.policy.rules.live import explain_silence
from orchestrator.domain.policy.situation import CANCELLED, SUSPENDED, Situation

_QUEUED_AGAIN = "queued again with full budgets"
_RETRY_WITHDRAWN = "its owner cancelled the retry; training had finished before"


@while_idle
def begin_retry(s: Situation) -> Decision | None:
    """A retry that the owner requested begins once no attempt is live."""
    if not s.job.retry_requested:
        return None
    return Decision(action=BeginRetry(), sentence=_QUEUED_AGAIN)


@while_idle
def finish_cancelled(s: Situation) -> Decision | None:
    """A cancelled job ends once no attempt is live. If a retry had not started yet, an earlier success stays one."""
    if s.job.state.terminal or not s.job.desired.cancelled:
        return None
    if s.attempt is not None and s.attempt.state is AttemptState.SUCCEEDED:
        return Decision(action=Finish(JobState.SUCCEEDED), sentence=_RETRY_WITHDRAWN)
    return Decision(action=Finish(JobState.CANCELLED), sentence=CANCELLED)


@while_idle
def rest_suspended(s: Situation) -> Decision | None:
    """A suspended job rests once no attempt is live, until its owner resumes it."""
    if s.job.state.terminal or s.job.state is JobState.SUSPENDED:
        return None
    return Decision(action=Finish(JobState.SUSPENDED), sentence=SUSPENDED) if s.job.desired.suspended else None


@while_idle
def resume(s: Situation) -> Decision | None:
    """A job that its owner resumes goes back into the queue."""
    if s.job.state is not JobState.SUSPENDED or s.job.desired.suspended:
        return None
    return Decision(action=Finish(JobState.QUEUED), sentence="resumed by its owner")


@while_idle
def give_up(s: Situation) -> Decision | None:
    """A job fails if another attempt cannot help against its last failure, or if its budget is spent."""
    failure = None if s.attempt is None else s.attempt.failure
    if s.job.state is not JobState.RECOVERING or failure is None:
        return None
    verdict = hopeless(s.job, failure) or overspent(s.job, failure)
    if verdict is None:
        return None
    return Decision(action=Finish(JobState.FAILED), sentence=f"{failure.message}; {verdict}")


@while_idle
def recover(s: Situation) -> Decision | None:
    """A job between attempts gets the next one once its back-off is over."""
    if s.job.state is not JobState.RECOVERING:
        return None
    until = s.job.retry_at
    if until is not None and s.now < until <= s.now + longest_backoff(s.job):
        return Decision(action=Wait(), sentence=_pause(s, until), look_again_at=until)
    if s.admission is None:
        return _await_answer(s)
    if not s.admission.admitted:
        return Decision(action=Wait(), sentence=s.admission.sentence)
    number = 1 if s.attempt is None else s.attempt.key.number + 1
    size = "" if s.admission.nodes == s.job.spec.topology.max_nodes else f" on {counted(s.admission.nodes, 'node')}"
    return Decision(action=Start(s.admission.nodes), sentence=f"starting attempt {number}{size}")


@while_idle
def start(s: Situation) -> Decision | None:
    """A queued job starts once it is admitted. Until then its reason says what it waits for."""
    if s.job.state is not JobState.QUEUED:
        return None
    if s.admission is None:
        return _await_answer(s)
    if not s.admission.admitted:
        return Decision(action=Wait(), sentence=s.admission.sentence)
    return Decision(action=Start(s.admission.nodes), sentence=f"starting: {s.admission.sentence}")


def wait(s: Situation) -> Decision:
    """Otherwise nothing is done. The job's reason says if the attempt's state is unknown, if its agents send no
    reports, or if its cluster does not answer."""
    starting = s.live is not None and s.live.attempt.state is not AttemptState.RUNNING
    unanswered = _await_answer(s) if starting else None
    return unanswered or Decision(action=Wait(), sentence=explain_silence(s) or s.job.reason)


def _await_answer(s: Situation) -> Decision | None:
    """A cluster that does not answer admits no job."""
    return None if s.silence is None else Decision(action=Wait(), sentence=f"waits: {s.silence}")


def _pause(s: Situation, until: datetime) -> str:
    """Names the length of the whole pause, so that the sentence stays the same while it lasts."""
    last = s.attempt
    if last is None or last.ended_at is None:
        return s.job.reason
    cause = "" if last.failure is None else f"{last.failure.message}; "
    pause_s = (until - last.ended_at).total_seconds()
    return f"{cause}attempt {last.key.number + 1} starts after a pause of {pause_s:.0f} s"
