"""Find why an attempt ends: the first cause among exit records, the scheduler's reason and lost nodes. Pure.

Most signs of an end are consequences of another one. An agent that loses its peer fails too, an agent that the service
stops records that, and a record may arrive minutes late. So each sign has a rank, and time decides only among signs of
the same rank:

1. the failure for which the service stopped the attempt, unless that was only a lost peer;
2. an agent's record of its own failure, or of a signal that the service did not send;
3. the scheduler's reason, a node that the scheduler cannot reach, or an agent that is gone without a record;
4. a lost peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.observation.node_record import GRAVE
from orchestrator.domain.observation.observation import ReplicaSighting
from orchestrator.domain.observation.watched import Watched, is_lost_peer
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

_ENDS_AS = {FailureKind.PREEMPTED: AttemptState.PREEMPTED, FailureKind.NODE: AttemptState.LOST}


@dataclass(frozen=True, slots=True)
class Cause:
    """`failure` is None if the service stopped the attempt on its owner's request."""

    failure: Failure | None
    blames: tuple[str, ...] = ()  # nodes whose records get the failure
    recorded: bool = False  # by an agent, so it outlives a stop; a scheduler may forget its reason

    @property
    def state(self) -> AttemptState:
        """The state in which the attempt ends."""
        if self.failure is None:
            return AttemptState.CANCELLED
        return _ENDS_AS.get(self.failure.kind, AttemptState.FAILED)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of replicas that a group needs: the failure to stop it for, and the nodes to avoid."""

    failure: Failure
    blames: tuple[str, ...]


def find_cause(live: Watched) -> Cause | None:
    """Return the first cause of the end. None while the attempt continues or if it succeeds."""
    loss, bad = live.vanished(), live.bad_exits()
    if loss is None and not bad:
        return None
    record = _first_record(live, bad)
    stopped_for = live.attempt.failure
    if stopped_for is not None and not is_lost_peer(stopped_for):
        return Cause(stopped_for)
    if record is not None and not _is_lost_peer(record):
        return _cause_of_record(live, record)
    from_outside = _from_outside(live, loss)
    if from_outside is not None:
        return from_outside
    return Cause(stopped_for or (None if record is None else record.failure))


def find_cut_off(live: Watched) -> Loss | None:
    """Return the nodes that a running group lost: neither the scheduler nor the other agents can reach them.

    None if the group can continue without them.
    """
    missed = [one for one in live.unreachable() if one.replica in live.seen.missed]
    if len(missed) <= live.nodes - live.attempt.min_nodes:
        return None
    return _node_loss(missed, ", and the other agents have lost it")


def find_absent_peers(live: Watched, silent_s: float) -> Loss | None:
    """Return why a group has been silent: its agents lost more replicas than it can spare, and wait for them.

    The scheduler's view of their nodes does not matter. Replicas with an exit record do not count.
    """
    lost = [one for one in live.seen.sighting.replicas if one.replica in live.seen.missed - live.seen.exits.keys()]
    if len(lost) <= live.nodes - live.attempt.min_nodes:
        return None
    names = ", ".join(f"replica {one.replica}" + (f" on {one.node}" if one.node else "") for one in lost)
    message = f"the group lost {names}, and no rank reported anything for {silent_s:.0f} s"
    nodes = tuple(sorted({one.node for one in lost if one.node is not None}))
    return Loss(Failure(kind=FailureKind.NODE, message=message), nodes)


def _first_record(live: Watched, bad: Sequence[ExitRecord]) -> ExitRecord | None:
    """Return the earliest exit record of a bad end. A lost peer counts only if there is no other record.

    A stop by the service does not count. A signal before the first record of a lost peer was not the service's.
    A failure that another record quotes closed the group. It counts even if the group had formed again without it.
    """
    complained_at = min((record.at for record in bad if _is_lost_peer(record)), default="")
    stopped_for_fault = live.attempt.failure is not None
    ours = [one for one in bad if stopped_for_fault and _is_stop(one) and one.at >= complained_at]
    counts = [record for record in bad if record not in ours]
    counts += [one for one in live.exits() if one not in bad and any(_quotes(record, one) for record in counts)]
    return min(counts, key=lambda record: (_is_lost_peer(record), record.at), default=None)


def _cause_of_record(live: Watched, record: ExitRecord) -> Cause:
    word = live.seen.sighting.cause
    match record.outcome:
        case Outcome.PREEMPTED:
            # A scheduler's signal looks the same for every reason, so the scheduler's own reason decides.
            if word is not None:
                return _from_cluster(live, word)
            reported = Failure(kind=FailureKind.PREEMPTED, message="the cluster preempted the attempt")
            return Cause(reported, recorded=True)
        case Outcome.CANCELLED if live.stopping:
            return Cause(None)
        case Outcome.CANCELLED:
            message = "its agent was stopped by something other than this service"
            return Cause(Failure(kind=FailureKind.INFRASTRUCTURE, message=message), recorded=True)
    unnamed = Failure(kind=FailureKind.UNKNOWN, message="the agent recorded a failure without a cause")
    failure = record.failure or unnamed
    if failure.kind is FailureKind.UNKNOWN and word is not None:
        return _from_cluster(live, word)
    return Cause(failure, _node_of(live, failure), recorded=True)


def _from_outside(live: Watched, loss: str | None) -> Cause | None:
    """Return the scheduler's reason, unreachable nodes, or agents that are gone without a stop by the service."""
    word, unreachable = live.seen.sighting.cause, live.unreachable()
    if word is not None and (word.kind is FailureKind.NODE or not live.stopping):
        return _from_cluster(live, word)
    if unreachable:
        lost = _node_loss(unreachable)
        return Cause(lost.failure, lost.blames)
    if loss is None or live.stopping:
        return None  # the service stopped the agents, so their absence explains nothing
    return _from_cluster(live, Failure(kind=FailureKind.NODE, message=loss))


def _node_loss(lost: Sequence[ReplicaSighting], witness: str = "") -> Loss:
    evidence = "; ".join(f"{one.evidence}{witness}" for one in lost)
    nodes = tuple(sorted({one.node for one in lost if one.node is not None}))
    return Loss(Failure(kind=FailureKind.NODE, message=evidence), nodes)


def _from_cluster(live: Watched, failure: Failure) -> Cause:
    return Cause(failure, live.lost_nodes() if failure.kind in GRAVE else ())


def _node_of(live: Watched, failure: Failure) -> tuple[str, ...]:
    """Return the node of the replica that recorded the failure, if the failure speaks against a node."""
    if failure.kind not in GRAVE:
        return ()
    of = [replica for replica, record in live.seen.exits.items() if record.failure == failure]
    return tuple(node for replica in of[:1] if (node := live.node_of(replica)) is not None)


def _is_lost_peer(record: ExitRecord) -> bool:
    return record.failure is not None and is_lost_peer(record.failure)


def _quotes(record: ExitRecord, other: ExitRecord) -> bool:
    """Whether an agent ended because another one closed the group: its record quotes the other's failure."""
    if record.failure is None or other.failure is None or not is_lost_peer(record.failure):
        return False
    return record.failure.message.endswith(f": {other.failure.message}")


def _is_stop(record: ExitRecord) -> bool:
    return record.outcome in (Outcome.CANCELLED, Outcome.PREEMPTED)
