"""Rules that stop a live attempt: on the owner's request, at a limit, or to continue with another size."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.domain.counted import counted
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.observation.cause import Cause, Loss, find_absent_peers, find_cut_off
from orchestrator.domain.observation.hang import find_hang
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.budget import overlong
from orchestrator.domain.policy.decision import Decision, Stop
from orchestrator.domain.policy.rules.ends import end
from orchestrator.domain.policy.rules.kinds import while_live
from orchestrator.domain.policy.situation import Situation
from trainer.contract.failure import Failure, FailureKind

# A cluster that gave fewer nodes than seemed free has its reasons, and each restart costs time. So wait longer.
_PATIENCE_WHERE_GIVEN_LESS = 10


@while_live
def stop_unwanted(s: Situation, live: Watched) -> Decision | None:
    """A live attempt is stopped if its owner cancels or suspends the job, or requests a retry."""
    if s.unwanted is None:
        return None
    if s.absent(live):
        return end(s, Cause(None))
    return Decision(action=Stop(force=s.overdue(live)), sentence=f"stopping: {s.unwanted}")


@while_live
def go_on_stopping(s: Situation, live: Watched) -> Decision | None:
    """A stop continues until the attempt ends, by force after the stop timeout."""
    if not live.stopping:
        return None
    failure = live.attempt.failure
    if s.absent(live):
        # It was stopped before any agent claimed it.
        return end(s, Cause(failure))
    return Decision(action=Stop(force=s.overdue(live), failure=failure), sentence=live.attempt.reason)


@while_live
def stop_overlong(s: Situation, live: Watched) -> Decision | None:
    """An attempt that ran longer than `max_runtime_s` is stopped."""
    limit = s.job.spec.supervise.max_runtime_s
    if limit is None or _age(s, live.attempt.started_at) <= limit:
        return None
    failure = overlong(s.job)
    return Decision(action=Stop(force=False, failure=failure), sentence=failure.message)


@while_live
def stop_cut_off(s: Situation, live: Watched) -> Decision | None:
    """A group is stopped if it needs a node that neither the scheduler nor the other agents reach."""
    lost = find_cut_off(live)
    return None if lost is None else _stop_for(lost)


@while_live
def stop_slow_start(s: Situation, live: Watched) -> Decision | None:
    """An attempt whose workers report nothing for too long after the agent's start is stopped."""
    limit = s.job.spec.supervise.startup_timeout_s
    started_at = live.attempt.started_at
    if started_at is None or live.seen.training.formed_at is not None or live.presence is Presence.UNKNOWN:
        return None
    if _age(s, max(started_at, live.seen.heard_since)) <= limit:
        return None
    failure = Failure(kind=FailureKind.HANG, message=f"the workers formed no group within {limit:g} s")
    return Decision(action=Stop(force=False, failure=failure), sentence=failure.message)


@while_live
def stop_stalled(s: Situation, live: Watched) -> Decision | None:
    """An attempt that reported progress and then nothing for longer than its phase may last is stopped."""
    if live.presence is Presence.UNKNOWN:
        return None
    hang = find_hang(live.seen, s.job.spec.supervise, s.now)
    if hang is None:
        return None
    lost = find_absent_peers(live, hang.silent_s)
    if lost is not None:
        return _stop_for(lost)
    first = hang.stopped_first[0].rank if hang.stopped_first else None
    failure = Failure(kind=FailureKind.HANG, message=hang.sentence, rank=first, step=hang.step)
    nodes = {live.node_of(word.replica) for word in hang.stopped_first}
    blames = tuple(sorted(node for node in nodes if node is not None))
    return Decision(action=Stop(force=False, failure=failure), sentence=hang.sentence, blames=blames)


@while_live
def resize(s: Situation, live: Watched) -> Decision | None:
    """A running attempt is stopped for one of the size that its owner requested, once that size fits."""
    topology, attempt = s.job.spec.topology, live.attempt
    if attempt.state is not AttemptState.RUNNING or attempt.asked == topology.nodes:
        return None
    if attempt.max_nodes == topology.max_nodes:
        return None  # it has that size already
    if topology.max_nodes > attempt.max_nodes:
        gains = s.admission is not None and s.admission.nodes >= max(topology.min_nodes, attempt.max_nodes + 1)
        if not gains:
            return None
    sentence = f"stopping after a snapshot, to continue on {counted(topology.nodes, 'node')} as requested"
    return Decision(action=Stop(force=False), sentence=sentence)


@while_live
def grow_back(s: Situation, live: Watched) -> Decision | None:
    """An elastic job that has trained for a while on fewer nodes than it could have continues on more."""
    patience_s, room = s.job.spec.supervise.grow_back_after_s, s.room(live)
    if room is None or patience_s is None or live.attempt.state is not AttemptState.RUNNING:
        return None
    training = live.seen.training
    takes_snapshots = training.snapshots > 0 or training.restored is not None
    if training.formed_at is None or not takes_snapshots or live.exits():
        return None  # without snapshots it would start from the beginning
    replicas = live.seen.sighting.replicas
    lost = sum(seen.liveness is Liveness.DEAD and not seen.returns for seen in replicas)
    alive = live.nodes - lost  # a replica out of sight may still train
    if lost and (training.resized_at is None or _is_larger(live, alive)):
        return None  # the other nodes have not formed a group again yet, and the wait counts from then
    since = max(filter(None, (live.attempt.started_at, training.resized_at)), default=None)
    if training.resized_at is None and live.nodes < live.attempt.max_nodes:
        patience_s *= _PATIENCE_WHERE_GIVEN_LESS
    if alive >= room or _age(s, since) < patience_s:
        return None
    sentence = f"stopping after a snapshot, to grow from {alive} to {counted(room, 'node')}"
    return Decision(action=Stop(force=False, grows=True), sentence=sentence)


def _is_larger(live: Watched, nodes: int) -> bool:
    """Whether the newest group is known to have the workers of more nodes."""
    width, world_size = live.attempt.workers_per_node, live.seen.training.world_size
    return width is not None and world_size is not None and world_size > nodes * width


def _stop_for(lost: Loss) -> Decision:
    return Decision(action=Stop(force=False, failure=lost.failure), sentence=lost.failure.message, blames=lost.blames)


def _age(s: Situation, since: datetime | None) -> float:
    return 0.0 if since is None else (s.now - since) / timedelta(seconds=1)
