"""The true causes of an attempt's end, which the world knows and the service does not."""

from __future__ import annotations

from orchestrator.domain.job.attempt import Attempt, AttemptState
from tests.fakes.group import FakeAttempt
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind, is_collateral, is_taken_port


def explain_end(attempt: Attempt, real: FakeAttempt, *, by_request: bool, overlong: bool) -> bool:
    """Whether something that happened to the attempt explains the recorded end."""
    if attempt.state is AttemptState.SUCCEEDED:
        return True
    records = [agent.exit_record for agent in real.agents if agent.exit_record is not None]
    outcomes = {record.outcome for record in records}
    if attempt.failure is None:
        return by_request or Outcome.CANCELLED in outcomes
    kinds = {record.failure.kind for record in records if record.failure is not None}
    if real.cause is not None:
        kinds.add(real.cause.kind)
    if real.deaths or real.cut_off or real.partial or real.missed:
        kinds |= {FailureKind.NODE, FailureKind.INFRASTRUCTURE}  # the latter if the cluster has forgotten it
    if real.stalled is not None or real.deaths or real.missed:
        kinds.add(FailureKind.HANG)  # also if the others wait for a replica that is dead and hidden
    if overlong:
        kinds.add(FailureKind.TIMEOUT)
    if Outcome.PREEMPTED in outcomes:
        kinds.add(FailureKind.PREEMPTED)
    if not any(agent.claimed for agent in real.agents):
        kinds |= {FailureKind.INFRASTRUCTURE, FailureKind.LAUNCH}
    return attempt.failure.kind in kinds


def first_cause(real: FakeAttempt) -> Failure | None:
    """The earliest failure that does not follow from another one, if the records show which it was."""
    records = [agent.exit_record for agent in real.agents if agent.exit_record is not None]
    if any(record.outcome not in (Outcome.FAILED, Outcome.SUCCEEDED) for record in records):
        return None
    causes = [
        (record.at, record.failure)
        for record in records
        if record.failure is not None
        and not is_collateral(record.failure)
        and (record.failure.kind is not FailureKind.RENDEZVOUS or is_taken_port(record.failure))
    ]
    earliest = [failure for at, failure in causes if at == min(at for at, _ in causes)]
    return earliest[0] if len({failure.message for failure in earliest}) == 1 else None


def ran_too_long(attempt: Attempt, limit_s: float | None) -> bool:
    """Whether the attempt exceeded the limit, by its recorded times."""
    if limit_s is None or attempt.started_at is None or attempt.stopping_since is None:
        return False
    return (attempt.stopping_since - attempt.started_at).total_seconds() >= limit_s
