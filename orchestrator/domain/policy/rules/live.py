"""Rules that continue a live attempt: submit it, record what is seen of it, forward requests."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import WORKERS_RUNNING, JobState
from orchestrator.domain.observation.lost_replica import find_lost_replicas
from orchestrator.domain.observation.node_record import Exclusion, describe
from orchestrator.domain.observation.observation import UNHEARD_AFTER, Presence
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.decision import (
    AvoidOnly,
    Decision,
    MarkNodes,
    NoteMembers,
    NotePending,
    NoteRunning,
    Submit,
    TellAgents,
    Wait,
)
from orchestrator.domain.policy.rules.kinds import while_live
from orchestrator.domain.policy.situation import Situation

# How long a waiting attempt avoids a free node. Slurm may list a dead node as free for five minutes (SlurmdTimeout in
# slurm.conf(5), 300 s by default).
AVOIDS_FOR = timedelta(minutes=5)
_UNHEARD = "no reports from its agents"
_PAUSED, _UNKNOWN, _RETURNING = "it is paused", "its state is unknown", "waits for its full size"
_UNUSUAL = (_UNHEARD, _PAUSED, _UNKNOWN, _RETURNING)


@while_live
def mark_lost_nodes(s: Situation, live: Watched) -> Decision | None:
    """The failure of a node that was lost during an attempt is recorded at once, even if the other nodes continue."""
    lost = set(live.lost_nodes()) - set(live.attempt.marked_nodes)
    if not lost or s.disturbed:
        return None
    evidence = "; ".join(one.evidence for one in live.gone() if one.node in lost)
    return Decision(action=MarkNodes(), sentence=evidence, blames=tuple(sorted(lost)))


@while_live
def submit_intended(s: Situation, live: Watched) -> Decision | None:
    """A stored attempt is submitted once there is positive evidence that it was not submitted before.

    If the cluster accepts an attempt's name only once, it is submitted sooner, because two submissions count as one.
    """
    if live.attempt.state is not AttemptState.INTENDED or live.presence is not Presence.ABSENT:
        return None
    number = live.attempt.key.number
    again_at = s.submit_again_at(live.attempt)
    if s.now < again_at:
        refused = live.attempt.not_permitted
        sentence = f"waits: {refused}" if refused else f"waits to learn whether attempt {number} was submitted"
        return Decision(action=Wait(), sentence=sentence, look_again_at=again_at)
    return Decision(action=Submit(), sentence=f"submitting attempt {number}")


@while_live
def avoid_less(s: Situation, live: Watched) -> Decision | None:
    """An attempt in its cluster's queue may use an avoided node once the node's cool-down is over or its record is
    cleared, or after five minutes if the attempt could start there."""
    attempt = live.attempt
    if attempt.state is not AttemptState.PENDING or not live.seen.sighting.avoids_strictly:
        return None
    back = [node for node in attempt.excluded_nodes if node not in s.avoided]
    if back:
        return _stop_avoiding(live, back, "its cool-down is over or its record was cleared")
    blocking = [each.node for each in _find_blocking(s, live)]
    if not blocking or s.now < attempt.created_at + AVOIDS_FOR:
        return None
    return _stop_avoiding(live, blocking, "no other node that fits became free in five minutes")


@while_live
def note_pending(s: Situation, live: Watched) -> Decision | None:
    """Record that the attempt waits in the cluster's own queue, and for what."""
    if live.presence is not Presence.PENDING:
        return None
    blocking = _find_blocking(s, live)
    sentence = "; ".join([live.seen.sighting.evidence, *(describe(each) for each in blocking)])
    if live.attempt.state in (AttemptState.INTENDED, AttemptState.SUBMITTED):
        return Decision(action=NotePending(), sentence=sentence)
    gives_up_at = live.attempt.created_at + AVOIDS_FOR if blocking else None
    later = gives_up_at if gives_up_at is not None and gives_up_at > s.now else None
    waits = Decision(action=Wait(), sentence=sentence, look_again_at=later)
    return waits if live.attempt.state is AttemptState.PENDING else None


@while_live
def note_running(s: Situation, live: Watched) -> Decision | None:
    """Record once that agents are alive, and once that the worker group has formed."""
    if live.presence is not Presence.RUNNING:
        return None
    formed = live.seen.training.formed_at is not None
    if live.attempt.state is not AttemptState.RUNNING or (formed and s.job.state is JobState.STARTING):
        return Decision(action=NoteRunning(formed), sentence=_usual_reason(live))
    return None


@while_live
def note_members(s: Situation, live: Watched) -> Decision | None:
    """A replica that a running group has lost, or that has rejoined it, is recorded once, with what ended its agent."""
    if live.presence is not Presence.RUNNING:
        return None
    lost, returns = find_lost_replicas(live), live.seen.members.returns
    if not lost and not returns:
        return None
    return Decision(action=NoteMembers(lost, returns), sentence=s.job.reason)


@while_live
def tell_agents(s: Situation, live: Watched) -> Decision | None:
    """A request for a snapshot, stacks or a fault is sent to the agents of a running attempt, once."""
    attempt, desired = live.attempt, s.job.desired
    if attempt.state is not AttemptState.RUNNING:
        return None
    if desired.snapshot_number <= attempt.snapshots_told and desired.errand(attempt.key.number) <= attempt.errand_told:
        return None
    return Decision(action=TellAgents(), sentence=s.job.reason)


def _find_blocking(s: Situation, live: Watched) -> list[Exclusion]:
    """Return the avoided nodes on which the waiting attempt could start now."""
    sighting = live.seen.sighting
    if not sighting.avoids_strictly or sighting.spare_nodes is None:
        return []
    if len(sighting.spare_nodes) < live.attempt.min_nodes:
        return []
    within = {*sighting.spare_nodes} & {*live.attempt.excluded_nodes}
    return [each for each in s.exclusions if each.node in within]


def _stop_avoiding(live: Watched, nodes: list[str], why: str) -> Decision:
    rest = tuple(node for node in live.attempt.excluded_nodes if node not in nodes)
    return Decision(action=AvoidOnly(rest), sentence=f"no longer avoids {', '.join(nodes)}: {why}")


def explain_silence(s: Situation) -> str | None:
    """Return the job's reason while its started attempt is silent: its state is unknown, or its agents send no reports
    and nothing else shows them. A running attempt says which replicas its cluster replaces. Afterwards, return the
    usual reason. None if the reason needs no change."""
    live = s.live
    if live is None:
        return None
    started_at = live.attempt.started_at
    if started_at is None:
        return None
    again = _usual_reason(live) if s.job.reason.startswith(_UNUSUAL) else None
    if live.presence is Presence.UNKNOWN:
        return _explain_unknown(live, started_at, s.now) or again
    if live.presence is not Presence.RUNNING:
        return None
    if not live.seen.unheard:
        return _explain_returning(live) or again
    if s.now - started_at <= UNHEARD_AFTER:
        return None  # the first report may still come
    heard_at = live.seen.training.heard_at
    since = "they started" if heard_at is None else f"{heard_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{_UNHEARD} since {since}; check that pods reach the service (`orchestrator doctor`)"


def _explain_returning(live: Watched) -> str | None:
    back = [one.evidence for one in live.seen.sighting.replicas if one.returns]
    return f"{_RETURNING}: {'; '.join(back)}" if back else None


def _explain_unknown(live: Watched, started_at: datetime, now: datetime) -> str | None:
    """Say what the cluster says and when the last report came. While reports come, mention only a pause."""
    heard_at, pause_reason = live.seen.training.last_heard_at, live.seen.sighting.pause_reason
    if pause_reason is None and now - (heard_at or started_at) <= UNHEARD_AFTER:
        return None
    since = "no report yet" if heard_at is None else f"last report {heard_at:%Y-%m-%d %H:%M:%S} UTC"
    detail = f"{_UNKNOWN}: {live.seen.sighting.evidence}" if pause_reason is None else f"{_PAUSED}: {pause_reason}"
    return f"{detail}; {since}"


def _usual_reason(live: Watched) -> str:
    formed = live.seen.training.formed_at is not None
    return WORKERS_RUNNING if formed else "the agents are running, the workers are starting"
