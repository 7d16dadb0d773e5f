"""Rules about how an attempt has ended. Each asks for positive evidence: see domain/evidence.py."""

from __future__ import annotations

from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.decision import Decision, EndAttempt, Stop
from orchestrator.domain.job import JobState
from orchestrator.domain.node import GRAVE
from orchestrator.domain.observation import Presence
from orchestrator.domain.rules.kinds import while_live
from orchestrator.domain.situation import Situation
from orchestrator.domain.watched import Watched, is_consequence
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

SUSPENDED = "suspended by its owner"
_ENDS_AS = {FailureKind.PREEMPTED: AttemptState.PREEMPTED, FailureKind.NODE: AttemptState.LOST}


@while_live
def end_leftovers(s: Situation, live: Watched) -> Decision | None:
    """An attempt that is over but still has processes is stopped first, by force when asking did not help."""
    loss, succeeded, bad = live.vanished(), live.all_succeeded(), live.ended_badly()
    if not live.leftovers() or not (loss or succeeded or bad):
        return None
    if succeeded:
        return Decision(action=Stop(force=s.overdue(live)), sentence="finished; what it left running is being ended")
    # Without a living agent nobody passes a polite word on to orphaned workers.
    orphans = live.presence is Presence.GONE
    explained = bad is not None and not is_consequence(bad)
    failure = _loss(live, loss) if loss is not None and not explained else None
    sentence = f"{loss}; ending what is left of the attempt" if failure else "ending what is left of the attempt"
    blames = live.lost_nodes() if failure is not None and failure.kind in GRAVE else ()
    return Decision(action=Stop(force=orphans or s.overdue(live), failure=failure), sentence=sentence, blames=blames)


@while_live
def adopt_success(s: Situation, live: Watched) -> Decision | None:
    """An attempt whose replicas all recorded success has succeeded, whatever was wished meanwhile."""
    if not live.all_succeeded():
        return None
    step = live.seen.training.step
    sentence = "training finished" if step is None else f"training finished at step {step}"
    return Decision(action=EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED), sentence=sentence)


@while_live
def adopt_end(s: Situation, live: Watched) -> Decision | None:
    """An attempt ends as the record of the first cause says, or as what made us stop it."""
    record, cause = live.ended_badly(), live.seen.sighting.cause
    if record is None or (is_consequence(record) and live.vanished() is not None and not _by_our_doing(live)):
        return None
    if live.attempt.failure is not None:
        return end(s, stopped_as(live.attempt.failure), live.attempt.failure)
    if record.outcome is Outcome.PREEMPTED:
        # A scheduler's signal looks alike whatever its reason: its own word says which it was.
        told_to_go = Failure(kind=FailureKind.PREEMPTED, message="the attempt was told to go by its cluster")
        return _end_as(s, live, cause or told_to_go)
    if record.outcome is Outcome.CANCELLED:
        return end(s, AttemptState.CANCELLED, None)
    unnamed = Failure(kind=FailureKind.UNKNOWN, message="the agent recorded a failure without a cause")
    failure = record.failure or unnamed
    if failure.kind is FailureKind.UNKNOWN and cause is not None:
        return _end_as(s, live, cause)
    return end(s, AttemptState.FAILED, failure, blames=_blamed(live, failure))


@while_live
def notice_loss(s: Situation, live: Watched) -> Decision | None:
    """An attempt whose agents are gone without a record is lost: the machine, or all of a replica, has died."""
    evidence = live.vanished()
    if evidence is None:
        return None
    if _by_our_doing(live):
        return end(s, stopped_as(live.attempt.failure), live.attempt.failure)
    return _end_as(s, live, _loss(live, evidence))


@while_live
def notice_failed_launch(s: Situation, live: Watched) -> Decision | None:
    """An attempt that was submitted and of which nothing is there died before it could claim its place."""
    if live.stopping or live.attempt.state is AttemptState.INTENDED or not s.absent(live):
        return None
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=live.seen.sighting.evidence)
    return end(s, AttemptState.LOST, failure)


def end(s: Situation, state: AttemptState, failure: Failure | None, *, blames: tuple[str, ...] = ()) -> Decision:
    """End the attempt with its own cause. A job that was cancelled or suspended meanwhile stands so after it, any
    other recovers, and so does one that failed before it is suspended: its budget may be spent."""
    reason = "stopped" if s.live is None else s.live.attempt.reason.replace("stopping", "stopped", 1)
    job_state, sentence = JobState.RECOVERING, reason if failure is None else failure.message
    if s.job.desired.cancelled:
        job_state, sentence = JobState.CANCELLED, "cancelled by its owner"
    elif s.job.desired.suspended and not s.retry_wished and failure is None:
        job_state, sentence = JobState.SUSPENDED, SUSPENDED
    return Decision(action=EndAttempt(state, job_state, failure), sentence=sentence, blames=blames)


def _by_our_doing(live: Watched) -> bool:
    """Whom we stop vanishes by our own doing, and explains nothing; unless the cluster says that a machine was lost."""
    cause = live.seen.sighting.cause
    by_node = cause is not None and cause.kind is FailureKind.NODE
    return live.stopping and (live.attempt.failure is not None or not by_node)


def _loss(live: Watched, evidence: str) -> Failure:
    """Why its agents are gone: as the cluster says, else a machine has died."""
    return live.seen.sighting.cause or Failure(kind=FailureKind.NODE, message=evidence)


def _end_as(s: Situation, live: Watched, cause: Failure) -> Decision:
    """End the attempt for a cause from outside it."""
    state = _ENDS_AS.get(cause.kind, AttemptState.FAILED)
    return end(s, state, cause, blames=live.lost_nodes() if cause.kind in GRAVE else ())


def _blamed(live: Watched, failure: Failure) -> tuple[str, ...]:
    """The node of the replica that recorded a failure of its machine."""
    if failure.kind not in GRAVE:
        return ()
    of = [replica for replica, record in live.seen.exits.items() if record.failure == failure]
    return tuple(node for replica in of[:1] if (node := live.node_of(replica)) is not None)


def stopped_as(failure: Failure | None) -> AttemptState:
    """How an attempt ended that we stopped: for a fault, or because its owner wished it."""
    if failure is None:
        return AttemptState.CANCELLED
    return _ENDS_AS.get(failure.kind, AttemptState.FAILED)
