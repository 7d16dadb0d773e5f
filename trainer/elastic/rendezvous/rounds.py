"""The protocol by which agents agree on a worker group: a document in a shared store, and its changes. Pure.

Every change is a function from one `Round` to the next. An agent applies it by compare-and-swap (document.py), so each
function must be correct after any order of other changes. No function reads a clock: silent nodes, and whether the time
for latecomers is over, are arguments.

A round is OPEN while agents join it, FORMED once it has its group, and CLOSED when no group may follow. A formed round
takes no new member: a newcomer waits. Once it is ready, the members open the next round for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum

# Generations in a row that did not last. Up to _AT_ONCE the next one starts without a pause. After _MOST_SHORT_LIVED
# the next change of the group closes the round.
_AT_ONCE, _MOST_SHORT_LIVED = 3, 20
_LONGEST_PAUSE_S = 30.0
_UNSEEN_ROUNDS = 1000  # more than can form while an agent does not see them
_GIVEN_UP = "the other nodes have dropped this one"
_FINISHED = "another node has finished its part"
_MOST_LOSSY = 64


class Stage(str, Enum):
    OPEN = "open"
    FORMED = "formed"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many agents a group may have."""

    min_nodes: int
    max_nodes: int


@dataclass(frozen=True, kw_only=True)
class Member:
    """One agent. `node_rank` orders the group; `generation` is the highest that this agent knows of."""

    node: str
    node_rank: int | None  # None: after the members that have one, in the order of arrival
    address: str
    workers: int
    generation: int = 0
    copies_url: str = ""  # where its agent serves copies of the state
    beats_port: int = 0  # for heartbeats by UDP
    is_ready: bool = True  # its workers could start at once
    incarnation: int = 0  # of its replica; 0: not known


@dataclass(frozen=True, kw_only=True)
class WorkersStore:
    """The store of a generation's workers. `by_agent`: the agent of group rank 0 serves it; otherwise worker 0 does."""

    address: str
    port: int
    by_agent: bool


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a generation ended, as seen by the agent that opens the next round."""

    change: str = ""  # of the group; empty: a worker failed
    lasted: bool = True  # it made progress, so the next one may start at once


@dataclass(frozen=True, kw_only=True)
class Round:
    """The document. The `members` of a formed round are in the order of their group ranks."""

    number: int = 0
    stage: Stage = Stage.OPEN
    generation: int = 0
    epoch: int = 0  # of the newest group or store; see epochs.py
    size: int = 0  # of the newest group, when it formed
    members: tuple[Member, ...] = ()
    awaited: frozenset[str] = frozenset()  # members of the previous round that are expected back
    waiting: tuple[Member, ...] = ()  # newcomers to a formed round
    finished: frozenset[str] = frozenset()  # members whose workers all succeeded
    lossy: tuple[str, ...] = ()  # agents from which too many packets are lost, the latest last
    store: WorkersStore | None = None
    still: tuple[tuple[str, str], ...] = ()  # members whose workers are still, each with its report (stillness.py)
    change: str = ""  # why this round was opened; empty: it is the first, or a worker failed
    short_lived: int = 0  # how many generations in a row before this one did not last
    reason: str = ""  # why it was closed

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(member.node for member in self.members)

    def has(self, node: str) -> bool:
        return node in self.nodes


def join(round_: Round, me: Member, limits: Limits) -> Round:
    """Join an open round, wait beside a formed one, or open the next one if all members are gone. Idempotent.

    An agent that is not ready waits beside an open round, too. So does a newcomer if the members that are expected back
    would fill the group. An earlier incarnation of the same replica loses its place, and cannot join again.
    """
    if round_.stage is Stage.CLOSED or me in round_.members or find_successor(round_, me) is not None:
        return round_
    round_ = drop(round_, {each.node for each in (*round_.members, *round_.waiting) if _replaces(me, each)})
    if round_.stage is Stage.OPEN and _may_join(round_, me, limits) and _has_place(round_, me.node, limits):
        return replace(
            round_,
            members=(*_without(round_.members, {me.node}), me),
            awaited=round_.awaited - {me.node},
            waiting=_without(round_.waiting, {me.node}),
        )
    if round_.has(me.node):
        return round_
    if not round_.members and round_.stage is Stage.FORMED:
        return reopen(round_, me, limits, Ending(change="all agents of the group are gone", lasted=False))
    return round_ if me in round_.waiting else replace(round_, waiting=(*_without(round_.waiting, {me.node}), me))


def find_successor(round_: Round, me: Member) -> Member | None:
    """The agent of a later incarnation of the same replica. None if there is none."""
    return next((each for each in (*round_.members, *round_.waiting) if _replaces(each, me)), None)


def _replaces(new: Member, old: Member) -> bool:
    is_same = new.node_rank is not None and new.node_rank == old.node_rank
    return is_same and new.incarnation > old.incarnation > 0


def _may_join(round_: Round, newcomer: Member, limits: Limits) -> bool:
    """Whether a newcomer may take part now. One that is lossy may if the group is too small without it."""
    is_left_out = newcomer.node in round_.lossy and newcomer_can_wait(round_, newcomer.node, limits)
    return newcomer.is_ready and not is_left_out


def _has_place(round_: Round, node: str, limits: Limits) -> bool:
    """Whether an agent may join an open round now. Members that are expected back keep their places."""
    kept = round_.awaited - round_.nodes
    return not kept or node in kept | round_.nodes or len(round_.nodes | kept) < limits.max_nodes


def newcomer_can_wait(round_: Round, node: str, limits: Limits) -> bool:
    """Whether a group has formed before, and enough others are in it or expected back to train without this agent."""
    others = round_.nodes | round_.awaited
    return round_.generation > 0 and node not in others and len(others) >= limits.min_nodes


def reopen(round_: Round, me: Member, limits: Limits, ending: Ending) -> Round:
    """Open the next round, with this agent and the waiting ones as members. The other members are awaited.

    The round is closed instead if a member has finished, because then the group cannot form again, and after too many
    changes in a row without progress.
    """
    if round_.stage is not Stage.FORMED:
        return round_
    if round_.finished:
        return close(round_, _FINISHED)
    short_lived = 0 if ending.lasted else round_.short_lived + 1
    if ending.change and short_lived > _MOST_SHORT_LIVED:
        return close(
            round_, f"{short_lived} generations in a row made no progress; the last ended because {ending.change}"
        )
    room = limits.max_nodes - len(round_.nodes | {me.node})
    waiting = _without(round_.waiting, {me.node})
    ready = tuple(member for member in waiting if _may_join(round_, member, limits))
    return Round(
        number=round_.number + 1,
        generation=round_.generation,
        epoch=round_.epoch,
        size=round_.size,
        members=(me, *ready[: max(0, room)]),
        awaited=round_.nodes - {me.node},
        waiting=tuple(member for member in waiting if member not in ready),
        lossy=round_.lossy,
        change=ending.change,
        short_lived=short_lived,
    )


def succeed(round_: Round, epoch: int, lost: str, address: str, *, may_return: bool) -> Round:
    """The first document of the next store, after the loss of the agent `lost` at `address`.

    `may_return`: only its process has ended, so a replacement may come back under the same name. `round_` is the newest
    document that the new host knew. Others may have known a newer one, so the new number is far above it. After a
    member has finished, no other group may form, and the number stays.
    """
    if round_.finished and round_.stage is Stage.OPEN:
        return replace(round_, stage=Stage.CLOSED, reason=_FINISHED, epoch=epoch)
    if round_.finished or round_.stage is Stage.CLOSED:
        return replace(drop(round_, {lost}), epoch=epoch)
    return Round(
        number=max(round_.number, epoch * _UNSEEN_ROUNDS) + _UNSEEN_ROUNDS,
        generation=round_.generation,
        epoch=epoch,
        size=round_.size,
        awaited=(round_.nodes | round_.awaited) - (frozenset() if may_return else {lost}),
        lossy=round_.lossy,
        change=f"the group lost {address}, which served the rendezvous store",
        short_lived=round_.short_lived + 1,  # whether it lasted is not known here
    )


def is_minority(round_: Round) -> bool:
    """Whether most of the newest group is missing in an open round. They may be alive on the other side of a cut."""
    return round_.stage is Stage.OPEN and 2 * len(round_.members) < round_.size


def pause_s(short_lived: int) -> float:
    """How long a round stays open before a group forms, after `short_lived` generations in a row that did not last."""
    doubled = short_lived - _AT_ONCE
    return 0.0 if doubled <= 0 else min(_LONGEST_PAUSE_S, 2.0 ** (doubled - 1))


def form(round_: Round, limits: Limits, *, time_is_up: bool) -> Round:
    """Turn an open round with at least `min_nodes` members into a group.

    It forms with `max_nodes` members, or when all awaited members are back, or when `time_is_up` for latecomers. Ready
    newcomers take the places that are left. Members beyond `max_nodes` wait. Each group needs the next epoch.
    """
    if round_.stage is not Stage.OPEN or len(round_.members) < limits.min_nodes:
        return round_
    all_back = round_.number > 0 and not round_.awaited
    if len(round_.members) < limits.max_nodes and not all_back and not time_is_up:
        return round_
    room = max(0, limits.max_nodes - len(round_.members))
    admitted = tuple(member for member in round_.waiting if _may_join(round_, member, limits))[:room]
    present = (*round_.members, *admitted)
    arrived = {member.node: order for order, member in enumerate(present)}
    ordered = sorted(
        present, key=lambda each: (each.node_rank is None, each.node_rank or 0, arrived[each.node], each.node)
    )
    members = tuple(ordered[: limits.max_nodes])
    known = max([round_.generation, *(member.generation for member in members)])
    waiting = _without(round_.waiting, {member.node for member in admitted})
    return replace(
        round_,
        stage=Stage.FORMED,
        generation=known + 1,
        epoch=round_.epoch + 1,
        size=len(members),
        members=members,
        awaited=frozenset(),
        waiting=(*ordered[limits.max_nodes :], *waiting),
    )


def drop(round_: Round, nodes: Collection[str]) -> Round:
    """Remove agents that are silent or leave. A formed round stays formed; its other members notice the loss."""
    return replace(
        round_,
        members=_without(round_.members, nodes),
        awaited=round_.awaited - set(nodes),
        waiting=_without(round_.waiting, nodes),
    )


def mark_lossy(round_: Round, lossy: Collection[str], good: Collection[str]) -> Round:
    """Add agents from which too many packets are lost, and remove agents whose links are good."""
    marked = [node for node in round_.lossy if node not in good]
    marked += sorted(set(lossy) - set(marked))
    return replace(round_, lossy=tuple(marked[-_MOST_LOSSY:]))


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Agents without which the group goes on. `finished`: those that had finished the generation."""

    silent: frozenset[str] = frozenset()
    lossy: frozenset[str] = frozenset()
    generation: int = 0
    finished: frozenset[str] = frozenset()


def lose(round_: Round, lost: Lost, limits: Limits) -> Round:
    """Remove silent and lossy agents. A silent agent that has finished is noted as finished."""
    for node in sorted(lost.finished & lost.silent):
        round_ = finish(round_, lost.generation, node, limits)
    round_ = drop(round_, lost.silent)
    for node in sorted(lost.lossy - lost.silent):
        if can_drop_lossy(round_, node, limits):
            round_ = drop(mark_lossy(round_, {node}, ()), {node})
    return round_


def publish_store(round_: Round, number: int, store: WorkersStore) -> Round:
    """Publish where the workers of formed round `number` meet."""
    is_current = round_.stage is Stage.FORMED and round_.number == number
    return replace(round_, store=store) if is_current else round_


def finish(round_: Round, generation: int, node: str, limits: Limits) -> Round:
    """Note that all workers of a member have succeeded in the newest generation.

    If another member has opened the next round meanwhile, that round goes on without this member. It is closed if too
    few are left.
    """
    if round_.generation != generation:
        return round_
    if round_.stage is Stage.FORMED and round_.has(node):
        return replace(round_, finished=round_.finished | {node})
    if round_.stage is not Stage.OPEN:
        return round_
    is_enough = len((round_.nodes | round_.awaited) - {node}) >= limits.min_nodes
    return drop(round_, {node}) if is_enough else close(round_, _FINISHED)


def report_stillness(round_: Round, number: int, node: str, report: str | None) -> Round:
    """Note the report of a member of round `number` that its workers are still. None withdraws it."""
    if round_.stage is not Stage.FORMED or round_.number != number or not round_.has(node):
        return round_
    others = tuple(each for each in round_.still if each[0] != node)
    return replace(round_, still=others if report is None else (*others, (node, report)))


def find_stillness(round_: Round) -> tuple[str, ...] | None:
    """The reports of all members whose workers run. None while a report is missing."""
    reported = {node: report for node, report in round_.still if round_.has(node) and node not in round_.finished}
    return tuple(reported.values()) if reported and reported.keys() == round_.nodes - round_.finished else None


def close(round_: Round, reason: str) -> Round:
    """Allow no further group. The first reason is kept. It needs the next epoch, and none follows it."""
    if round_.stage is Stage.CLOSED:
        return round_
    return replace(round_, stage=Stage.CLOSED, reason=reason, epoch=round_.epoch + 1)


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

    The first member and `host`, which serves the store, link to all. All others link to these two and to two neighbors,
    whom they can ask.
    """
    known = sorted(round_.nodes | round_.awaited | {member.node for member in round_.waiting})
    if node == host or len(watched_by(round_, node)) > 1 or node not in known:
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
        names = ", ".join(sorted(member.address for member in lost))
        is_lossy = all(member.node in now.lossy for member in lost)
        return f"too many packets of {names} were lost" if is_lossy else f"the group lost {names}"
    ready = [member for member in now.waiting if _may_join(now, member, limits)]
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
    known = {member.node for member in (*now.members, *now.waiting)} | now.awaited
    return [member for member in before.members if member.node not in known]


def explain_lost_peers(now: Round, formed: Round, node: str) -> str | None:
    """Why agents have ended workers of `formed` without a failure. None if there is no such reason.

    Workers that lose their peers for this reason have not failed.
    """
    if now.number != formed.number and now.change:
        return now.change
    known = {each.node for each in (*now.members, *now.waiting)} | now.awaited
    if now.number == formed.number:
        known |= now.finished
    if node not in known:
        return _GIVEN_UP
    names = sorted(member.address for member in formed.members if member.node not in known)
    return f"the group lost {', '.join(names)}" if names else None


def render_round(round_: Round) -> str:
    sets = {name: sorted(getattr(round_, name)) for name in ("awaited", "finished")}
    document = asdict(round_) | sets
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def parse_round(text: str) -> Round:
    """Parse the text of `render_round`. Raises ValueError for another text."""
    try:
        document = json.loads(text)
        return Round(
            number=document["number"],
            stage=Stage(document["stage"]),
            generation=document["generation"],
            epoch=document["epoch"],
            size=document["size"],
            members=_parse_members(document["members"]),
            awaited=frozenset(document["awaited"]),
            waiting=_parse_members(document["waiting"]),
            finished=frozenset(document["finished"]),
            lossy=tuple(document["lossy"]),
            store=None if document["store"] is None else WorkersStore(**document["store"]),
            still=tuple((node, report) for node, report in document["still"]),
            change=document["change"],
            short_lived=document["short_lived"],
            reason=document["reason"],
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the rendezvous document is not elasticrun's: {text[:200]!r}") from error


def _parse_members(documents: Collection[Mapping[str, object]]) -> tuple[Member, ...]:
    return tuple(Member(**document) for document in documents)  # type: ignore[arg-type]


def _without(members: tuple[Member, ...], nodes: Collection[str]) -> tuple[Member, ...]:
    return tuple(member for member in members if member.node not in nodes)
