"""The changes of the document by which agents agree on a worker group. Pure.

Every change is a function from one `Round` to the next. An agent applies it by compare-and-swap (document.py), so each
function must be correct after any order of other changes. No function reads a clock: silent nodes, and whether the time
for latecomers is over, are arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from trainer.elastic.rendezvous.round_document import Ending, Limits, Member, Round, Stage, WorkersStore
from trainer.elastic.rendezvous.round_queries import can_drop_lossy, find_successor, has_place, may_join, replaces

_MOST_SHORT_LIVED = 20  # generations in a row that did not last, until a change of the group closes the round
_UNSEEN_ROUNDS = 1000  # more than can form while an agent does not see them
_FINISHED = "another node has finished its part"
_MOST_LOSSY = 64


def join(round_: Round, me: Member, limits: Limits) -> Round:
    """Join an open round, wait beside a formed one, or open the next one if all members are gone. Idempotent.

    An agent that is not ready waits beside an open round, too. So does a newcomer if the members that are expected back
    would fill the group. An earlier incarnation of the same replica loses its place, and cannot join again.
    """
    if round_.stage is Stage.CLOSED or me in round_.members or find_successor(round_, me) is not None:
        return round_
    round_ = drop(round_, {each.node for each in (*round_.members, *round_.waiting) if replaces(me, each)})
    if round_.stage is Stage.OPEN and may_join(round_, me, limits) and has_place(round_, me.node, limits):
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
    ready = tuple(member for member in waiting if may_join(round_, member, limits))
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
    admitted = tuple(member for member in round_.waiting if may_join(round_, member, limits))[:room]
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


def close(round_: Round, reason: str) -> Round:
    """Allow no further group. The first reason is kept. It needs the next epoch, and none follows it."""
    if round_.stage is Stage.CLOSED:
        return round_
    return replace(round_, stage=Stage.CLOSED, reason=reason, epoch=round_.epoch + 1)


def _without(members: tuple[Member, ...], nodes: Collection[str]) -> tuple[Member, ...]:
    return tuple(member for member in members if member.node not in nodes)
