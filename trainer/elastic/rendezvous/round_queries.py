"""What agents read from a round: who is lost, who may join, whom to watch. Pure."""

from __future__ import annotations

from collections.abc import Collection

from trainer.elastic.rendezvous.round_document import Limits, Member, Round, Stage

# Up to so many generations in a row that did not last, the next one starts without a pause.
_AT_ONCE = 3
_LONGEST_PAUSE_S = 30.0
_SMALL = 8  # agents
_GIVEN_UP = "the other nodes have dropped this one"


def find_successor(round_: Round, me: Member) -> Member | None:
    """The agent of a later incarnation of the same replica. None if there is none."""
    return next((each for each in (*round_.members, *round_.waiting) if replaces(each, me)), None)


def replaces(new: Member, old: Member) -> bool:
    is_same = new.node_rank is not None and new.node_rank == old.node_rank
    return is_same and new.incarnation > old.incarnation > 0


def may_join(round_: Round, newcomer: Member, limits: Limits) -> bool:
    """Whether a newcomer may take part now. One that is lossy may if the group is too small without it."""
    is_left_out = newcomer.node in round_.lossy and newcomer_can_wait(round_, newcomer.node, limits)
    return newcomer.is_ready and not is_left_out


def newcomer_can_wait(round_: Round, node: str, limits: Limits) -> bool:
    """Whether a group has formed before, and enough others are in it or expected back to train without this agent."""
    others = round_.nodes | round_.awaited
    return round_.generation > 0 and node not in others and len(others) >= limits.min_nodes


def is_minority(round_: Round) -> bool:
    """Whether most of the newest group is missing in an open round. They may be alive on the other side of a cut."""
    return round_.stage is Stage.OPEN and 2 * len(round_.members) < round_.size


def pause_s(short_lived: int) -> float:
    """How long a round stays open before a group forms, after `short_lived` generations in a row that did not last."""
    doubled = short_lived - _AT_ONCE
    return 0.0 if doubled <= 0 else min(_LONGEST_PAUSE_S, 2.0 ** (doubled - 1))


def find_stillness(round_: Round) -> tuple[str, ...] | None:
    """The reports of all members whose workers run. None while a report is missing."""
    reported = {node: report for node, report in round_.still if round_.has(node) and node not in round_.finished}
    return tuple(reported.values()) if reported and reported.keys() == round_.nodes - round_.finished else None


def watched_by(round_: Round, node: str) -> frozenset[str]:
    """The agents whose heartbeats this one watches. The first member watches all others, and they watch it.

    So the number of heartbeats that are read grows with the number of agents, not with its square.
    """
    nodes = [member.node for member in (*round_.members, *round_.waiting)]
    nodes += sorted(round_.awaited - set(nodes))
    if not nodes:
        return frozenset()
    return frozenset(nodes if nodes[0] == node else nodes[:1]) - {node}


def linked_to(round_: Round, node: str, host: str) -> frozenset[str]:
    """The agents with which this one exchanges heartbeats.

    In a small group these are all others. In a larger one the first member and `host`, which serves the store, link to
    all. All others link to these two and to two neighbors, whom they can ask.
    """
    known = sorted(round_.nodes | round_.awaited | {member.node for member in round_.waiting})
    if len(known) <= _SMALL or node == host or len(watched_by(round_, node)) > 1 or node not in known:
        return frozenset(known) - {node}
    place = known.index(node)
    beside = {known[place - 1], known[(place + 1) % len(known)]}
    return (watched_by(round_, node) | beside | ({host} & set(known))) - {node}


def can_form_without(round_: Round, nodes: Collection[str], limits: Limits) -> bool:
    """Whether a group can form without these agents. If not, ending the workers because of them would not help."""
    if round_.stage is not Stage.FORMED or not round_.nodes & set(nodes):
        return True
    left = {member.node for member in (*round_.members, *round_.waiting)} - set(nodes)
    return not round_.finished and len(left) >= limits.min_nodes


def can_drop_lossy(round_: Round, node: str, limits: Limits) -> bool:
    """Whether enough other agents are in the round, or expected back, for a group without this one."""
    others = (round_.nodes | round_.awaited) - {node}
    return not round_.finished and len(others) >= limits.min_nodes


def find_change(now: Round, formed: Round, node: str, limits: Limits) -> str | None:
    """How the group of `formed` has changed, as seen by its member `node`. None while it has not."""
    if now.stage is Stage.CLOSED:
        return f"the rendezvous is closed: {now.reason}"
    if now.number != formed.number:
        return "another node has opened the next round"
    if not now.has(node):
        return _GIVEN_UP
    lost = find_lost(now, formed)
    if lost:
        return _describe_loss(now, lost)
    ready = [member for member in now.waiting if may_join(now, member, limits)]
    if ready and len(now.members) < limits.max_nodes and not now.finished:
        return f"{ready[0].address} is waiting to join"
    return None


def find_lost(now: Round, formed: Round) -> list[Member]:
    """The members of the group of `formed` that were dropped, or left before they had finished.

    Empty once another round is open, because its members are only those that have come back.
    """
    if now.number != formed.number:
        return []
    return [member for member in formed.members if not (now.has(member.node) or member.node in now.finished)]


def find_missing(now: Round, before: Round | None) -> list[Member]:
    """The members of `before`, this agent's last round, that are neither in the open round nor awaited."""
    if before is None or now.stage is not Stage.OPEN or now.number <= before.number:
        return []
    return _find_absent(now, before)


def _find_absent(now: Round, before: Round) -> list[Member]:
    """The members of `before` that are neither in the round, nor waiting, nor awaited."""
    known = {member.node for member in (*now.members, *now.waiting)} | now.awaited
    return [member for member in before.members if member.node not in known]


def explain_lost_peers(now: Round, formed: Round, node: str) -> str | None:
    """Why agents have ended workers of `formed` without a failure. None if there is no such reason.

    Workers that lose their peers for this reason have not failed. In the same round, a member that was dropped counts
    as lost even while it waits to join again.
    """
    if now.number == formed.number:
        lost = find_lost(now, formed)
    elif now.change:
        return now.change
    else:
        lost = _find_absent(now, formed)
    if node in {member.node for member in lost}:
        return _GIVEN_UP
    return _describe_loss(now, lost) if lost else None


def _describe_loss(now: Round, lost: Collection[Member]) -> str:
    names = ", ".join(sorted(member.address for member in lost))
    is_lossy = all(member.node in now.lossy for member in lost)
    return f"too many packets of {names} were lost" if is_lossy else f"the group lost {names}"


def has_place(round_: Round, node: str, limits: Limits) -> bool:
    """Whether an agent may join an open round now. Members that are expected back keep their places."""
    kept = round_.awaited - round_.nodes
    return not kept or node in kept | round_.nodes or len(round_.nodes | kept) < limits.max_nodes
