"""Rules that go on with a live attempt: submit it, write down what is seen of it, pass a wish on."""

from __future__ import annotations

from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.decision import AskForSnapshot, Decision, MarkNodes, NotePending, NoteRunning, Submit, Wait
from orchestrator.domain.job import JobState
from orchestrator.domain.observation import Presence
from orchestrator.domain.rules.kinds import while_live
from orchestrator.domain.situation import Situation
from orchestrator.domain.watched import Watched


@while_live
def mark_lost_nodes(s: Situation, live: Watched) -> Decision | None:
    """A node that died under a running attempt enters its record at once, also where the others go on without it."""
    lost = {one.node for one in live.gone() if one.node is not None} - set(live.attempt.marked_nodes)
    if not lost:
        return None
    evidence = "; ".join(one.evidence for one in live.gone() if one.node in lost)
    return Decision(action=MarkNodes(), sentence=evidence, blames=tuple(sorted(lost)))


@while_live
def submit_intended(s: Situation, live: Watched) -> Decision | None:
    """An attempt that was written down and, by positive evidence, never submitted is submitted now."""
    if live.attempt.state is not AttemptState.INTENDED or live.presence is not Presence.ABSENT:
        return None
    number = live.attempt.key.number
    if not s.absent(live):
        sentence = f"waits to learn whether attempt {number} was submitted"
        return Decision(action=Wait(), sentence=sentence, look_again_at=s.look_up_at(live.attempt))
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
        sentence = "the workers are running" if formed else "the agents are up, the workers are starting"
        return Decision(action=NoteRunning(formed), sentence=sentence)
    return None


@while_live
def ask_for_snapshot(s: Situation, live: Watched) -> Decision | None:
    """The owner's wish for a snapshot is passed on to a running attempt, once."""
    if live.attempt.state is not AttemptState.RUNNING or s.job.desired.snapshot_number <= live.attempt.snapshots_told:
        return None
    return Decision(action=AskForSnapshot(), sentence=s.job.reason)
