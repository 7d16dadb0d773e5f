"""Rules that go on with a live attempt: submit it, write down what is seen of it, pass a wish on."""

from __future__ import annotations

from datetime import datetime

from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.decision import Decision, MarkNodes, NotePending, NoteRunning, Submit, TellAgents, Wait
from orchestrator.domain.job import JobState
from orchestrator.domain.observation import UNHEARD_AFTER, Presence
from orchestrator.domain.rules.kinds import while_live
from orchestrator.domain.situation import Situation
from orchestrator.domain.watched import Watched

_UNHEARD = "nobody hears its agents"
_HALTED, _UNKNOWN = "it stands still", "its state is unknown"


@while_live
def mark_lost_nodes(s: Situation, live: Watched) -> Decision | None:
    """A node that died under a running attempt enters its record at once, also where the others go on without it."""
    lost = set(live.lost_nodes()) - set(live.attempt.marked_nodes)
    if not lost or s.disturbed:
        return None
    evidence = "; ".join(one.evidence for one in live.gone() if one.node in lost)
    return Decision(action=MarkNodes(), sentence=evidence, blames=tuple(sorted(lost)))


@while_live
def submit_intended(s: Situation, live: Watched) -> Decision | None:
    """An attempt that was written down and, by positive evidence, never submitted is submitted now.

    A cluster that takes an attempt's name once is asked sooner: what is still under way and this are one submission.
    """
    if live.attempt.state is not AttemptState.INTENDED or live.presence is not Presence.ABSENT:
        return None
    number = live.attempt.key.number
    again_at = s.submit_again_at(live.attempt)
    if s.now < again_at:
        sentence = f"waits to learn whether attempt {number} was submitted"
        return Decision(action=Wait(), sentence=sentence, look_again_at=again_at)
    return Decision(action=Submit(), sentence=f"submitting attempt {number}")


@while_live
def note_pending(s: Situation, live: Watched) -> Decision | None:
    """Write down that the cluster holds the attempt in its own queue, and for what it waits there."""
    if live.presence is not Presence.PENDING:
        return None
    sentence = live.seen.sighting.evidence
    if live.attempt.state in (AttemptState.INTENDED, AttemptState.SUBMITTED):
        return Decision(action=NotePending(), sentence=sentence)
    return Decision(action=Wait(), sentence=sentence) if live.attempt.state is AttemptState.PENDING else None


@while_live
def note_running(s: Situation, live: Watched) -> Decision | None:
    """Write down that agents are alive, and that the worker group has formed, once each."""
    if live.presence is not Presence.RUNNING:
        return None
    formed = live.seen.training.formed_at is not None
    if live.attempt.state is not AttemptState.RUNNING or (formed and s.job.state is JobState.STARTING):
        return Decision(action=NoteRunning(formed), sentence=_stand(live))
    return None


@while_live
def tell_agents(s: Situation, live: Watched) -> Decision | None:
    """What is wished of a running attempt, and not of its end, is passed on to its agents, once."""
    attempt, desired = live.attempt, s.job.desired
    if attempt.state is not AttemptState.RUNNING:
        return None
    if desired.snapshot_number <= attempt.snapshots_told and desired.errand(attempt.key.number) <= attempt.errand_told:
        return None
    return Decision(action=TellAgents(), sentence=s.job.reason)


def hearing(s: Situation) -> str | None:
    """What to tell while an attempt that has run cannot be seen, or its agents cannot be heard where reports are all
    that tells of them, and when they can be again; None where there is nothing to tell."""
    if s.live is None or s.live.attempt.started_at is None:
        return None
    again = _stand(s.live) if s.job.reason.startswith((_UNHEARD, _HALTED, _UNKNOWN)) else None
    if s.live.presence is Presence.UNKNOWN:
        return _out_of_sight(s.live, s.now) or again
    if s.live.presence is not Presence.RUNNING:
        return None
    if not s.live.seen.unheard:
        return again
    if s.now - s.live.attempt.started_at <= UNHEARD_AFTER:
        return None  # the first report is under way
    heard_at = s.live.seen.training.heard_at
    since = "they started" if heard_at is None else f"{heard_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{_UNHEARD}: no report since {since}; check that pods reach the service (`orchestrator doctor`)"


def _out_of_sight(live: Watched, now: datetime) -> str | None:
    """The cluster's word, and since when nothing was heard. While the attempt is heard, only a halt is told."""
    heard_at, halted = live.seen.training.last_heard_at, live.seen.sighting.halted
    silent_since = heard_at or live.attempt.started_at
    if halted is None and silent_since is not None and now - silent_since <= UNHEARD_AFTER:
        return None
    since = "it has reported nothing yet" if heard_at is None else f"last heard {heard_at:%Y-%m-%d %H:%M:%S} UTC"
    told = f"{_UNKNOWN}: {live.seen.sighting.evidence}" if halted is None else f"{_HALTED}: {halted}"
    return f"{told}; {since}"


def _stand(live: Watched) -> str:
    formed = live.seen.training.formed_at is not None
    return "the workers are running" if formed else "the agents are up, the workers are starting"
