"""Build the events that record what the supervisor did, each with its sentence and evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import REPLICA, Event, EventKind
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.masking import Mask
from orchestrator.domain.observation.lost_replica import LostReplica
from orchestrator.domain.observation.membership import INCARNATION, WORDS, Return
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.policy.decision import Decision, NoteMembers, Stop
from orchestrator.domain.policy.evidence import weigh
from orchestrator.domain.policy.situation import Situation
from orchestrator.ports.supervision import Change
from trainer.contract.failure import render_failure


def job_event(job: Job, decision: Decision, now: datetime) -> Event:
    evidence: dict[str, object] = {"state": job.state.value, "rule": decision.rule}
    return Event(at=now, kind=EventKind.JOB_STATE, sentence=decision.sentence, evidence=evidence)


def finished(s: Situation, job: Job, decision: Decision) -> Event:
    """The job ended or rests, with no live attempt. A failed job shows the failure of its last attempt."""
    event = job_event(job, decision, s.now)
    failure = None if s.attempt is None else s.attempt.failure
    if job.state is not JobState.FAILED or failure is None:
        return event
    return replace(event, evidence={**event.evidence, "rung": "stop", "failure": render_failure(failure)})


def attempt_event(attempt: Attempt, decision: Decision, now: datetime, what: str, evidence: dict[str, object]) -> Event:
    return Event(
        at=now,
        kind=EventKind.ATTEMPT_STATE,
        sentence=f"attempt {attempt.key.number} {what}",
        attempt=attempt.key.number,
        evidence={"state": attempt.state.value, "rule": decision.rule, **evidence},
    )


def intended(job: Job, attempt: Attempt, decision: Decision, now: datetime) -> Event:
    """The plan of the attempt. The first attempt of a job also records how long the job waited."""
    waited = {"waited_s": _seconds(job.created_at, now)} if attempt.key.number == 1 else {}
    place: dict[str, object] = {
        **waited,
        "port": attempt.port,
        "rendezvous_id": attempt.rendezvous_id,
        "nodes": attempt.nodes,
        "excluded_nodes": list(attempt.excluded_nodes),
    }
    avoiding = f" and avoids {', '.join(attempt.excluded_nodes[:8])}" if attempt.excluded_nodes else ""
    return attempt_event(attempt, decision, now, f"uses rendezvous port {attempt.port}{avoiding}", place)


def living(attempt: Attempt, decision: Decision, now: datetime) -> Event:
    """The first agent is alive. `waited_s` is how long the cluster took to start it."""
    waited: dict[str, object] = {"waited_s": _seconds(attempt.created_at, now)}
    return attempt_event(attempt, decision, now, "has a live agent", waited)


def stopping(attempt: Attempt, decision: Decision, now: datetime) -> list[Event]:
    """The attempt was asked to end. A second event says so if it makes room for a larger attempt."""
    asked = attempt_event(
        attempt, decision, now, f"is asked to end: {decision.sentence.removeprefix('stopping: ')}", {}
    )
    if not (isinstance(decision.action, Stop) and decision.action.grows):
        return [asked]
    rung: dict[str, object] = {"rung": "grow", "rule": decision.rule}
    number = attempt.key.number
    return [asked, Event(at=now, kind=EventKind.GREW_BACK, sentence=decision.sentence, attempt=number, evidence=rung)]


def ended(s: Situation, attempt: Attempt, decision: Decision, cost: Mapping[str, int], kept_step: int | None) -> Event:
    """The end of an attempt: what each source said, the cost by budget, and `kept_step`.

    `kept_step` is the step of the attempt's newest snapshot. None if that snapshot keeps no new steps.
    """
    sources = {source.value: liveness.value for source, liveness in weigh(s).items()}
    evidence: dict[str, object] = {"sources": sources, "cost": dict(cost)}
    words = f"ended {attempt.state}"
    if attempt.failure is not None:
        evidence["failure"] = render_failure(attempt.failure)
    if kept_step is not None:
        evidence["kept_step"] = kept_step
        words += f"; a snapshot keeps its steps up to {kept_step}"
        words += "" if cost or attempt.failure is None else ", so it costs no budget"
    return attempt_event(attempt, decision, s.now, words, evidence)


def recovered(job: Job, attempt: Attempt, decision: Decision, now: datetime) -> list[Event]:
    """The workers of a new attempt started after another attempt ended, with the seconds between the two."""
    if job.recovering_since is None:
        return []
    seconds = _seconds(job.recovering_since, now)
    sentence = f"the workers of attempt {attempt.key.number} started {seconds:.1f} s after the last attempt ended"
    evidence: dict[str, object] = {"rung": "new-attempt", "seconds": seconds, "rule": decision.rule}
    number = attempt.key.number
    return [Event(at=now, kind=EventKind.RECOVERED, sentence=sentence, attempt=number, evidence=evidence)]


def members(s: Situation, decision: Decision, action: NoteMembers) -> list[Event]:
    """The replicas that the group lost, and those that rejoined it, each with the time at which that was seen."""
    returns = [_rejoined(s, decision, each) for each in action.returns]
    return [*returns, *(_lost(s, decision, each) for each in action.lost)]


def _lost(s: Situation, decision: Decision, lost: LostReplica) -> Event:
    evidence: dict[str, object] = {
        REPLICA: lost.replica,
        INCARNATION: lost.incarnation,
        WORDS: lost.words,
        "failure": render_failure(lost.failure),
        "returns": lost.returns,
        "node": lost.node,
        "rule": decision.rule,
    }
    return _of_attempt(s, EventKind.REPLICA_LOST, s.now, lost.sentence, evidence)


def _rejoined(s: Situation, decision: Decision, back: Return) -> Event:
    after = "" if back.seconds is None else f" after {back.seconds:.1f} s"
    why = f" ({back.words})" if back.words else ""
    sentence = f"replica {back.replica} rejoined the group{after}{why}"
    evidence: dict[str, object] = {
        REPLICA: back.replica,
        INCARNATION: back.incarnation,
        "generation": back.generation,
        "seconds": back.seconds,
        "rule": decision.rule,
    }
    return _of_attempt(s, EventKind.REPLICA_REJOINED, back.at, sentence, evidence)


def _of_attempt(s: Situation, kind: EventKind, at: datetime, sentence: str, evidence: dict[str, object]) -> Event:
    number = None if s.attempt is None else s.attempt.key.number
    return Event(at=at, kind=kind, sentence=sentence, attempt=number, evidence=evidence)


def node_marked(mark: NodeFailure) -> Event:
    evidence: dict[str, object] = {"node": mark.node, "kind": mark.kind.value, "cluster": mark.cluster}
    sentence = f"node {mark.node} was marked: {mark.sentence}"
    return Event(at=mark.at, kind=EventKind.NODE_MARKED, sentence=sentence, attempt=mark.key.number, evidence=evidence)


def _seconds(since: datetime, now: datetime) -> float:
    return round(max(0.0, (now - since).total_seconds()), 3)


def hidden(change: Change, mask: Mask) -> Change:
    """The change with the project's secrets masked: a message of a cluster or an agent may contain one."""
    return replace(
        change,
        job=replace(
            change.job, reason=mask.hide(change.job.reason), last_failure=mask.hide_in_failure(change.job.last_failure)
        ),
        attempt=None if change.attempt is None else _hidden_attempt(change.attempt, mask),
        events=[mask.hide_in_event(event) for event in change.events],
        node_failures=[replace(mark, sentence=mask.hide(mark.sentence)) for mark in change.node_failures],
    )


def _hidden_attempt(attempt: Attempt, mask: Mask) -> Attempt:
    refused = attempt.not_permitted
    return replace(
        attempt,
        reason=mask.hide(attempt.reason),
        failure=mask.hide_in_failure(attempt.failure),
        not_permitted=None if refused is None else mask.hide(refused),
    )
