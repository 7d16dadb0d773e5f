"""The replicas of an attempt's group, read from its events: who left it, and who has rejoined it. Pure.

A replica keeps its number when its cluster replaces its agent. Each agent is the next incarnation of the replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from orchestrator.domain.job.event import REPLICA, Event
from orchestrator.domain.job.event import EventKind as Ours
from trainer.contract.exit_record import GROUP_CHANGES
from trainer.contract.exit_record import EventKind as Theirs

Life = tuple[int, int]  # replica, incarnation
# Returns the attempt's events of these kinds, in the order of their arrival: of these replicas, or of all.
ReadEvents = Callable[[Collection[str], Collection[int] | None], Sequence[Event]]

INCARNATION = "incarnation"  # the key of its number in the evidence of events
WORDS = "words"  # the key of what ended the agent, as a clause
NOTES = (Ours.REPLICA_LOST.value, Ours.REPLICA_REJOINED.value)
_STARTS = (Theirs.AGENT_STARTED.value, Theirs.GENERATION_STARTED.value)
_LARGEST = 2**31 - 1
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A replica whose new agent has formed a group with the others. `seconds` is how long the group was without it."""

    replica: int
    incarnation: int
    generation: int
    at: datetime
    seconds: float | None
    words: str  # what ended the agent before, as a clause; empty if not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What is stored of an attempt's replicas. The agents that a claim refused do not count."""

    reported: Mapping[int, int] = field(default_factory=dict)  # the newest incarnation of each replica's agent
    lost: frozenset[Life] = frozenset()  # those whose loss is recorded
    returns: tuple[Return, ...] = ()  # those that are not recorded yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One replica in one generation."""

    replica: int
    incarnation: int
    generation: int
    at: datetime
    host: str | None  # where its agent ran


def read_life(event: Event) -> Life | None:
    """Return the replica and the incarnation that an event names. None if it names none."""
    replica, incarnation = _number(event, REPLICA), _number(event, INCARNATION)
    return None if replica is None or incarnation is None else (replica, incarnation)


def read_host(event: Event) -> str | None:
    """Return the name of the agent's machine."""
    host = event.evidence.get("host")
    return host if isinstance(host, str) and 0 < len(host) <= _LONGEST_NAME else None


def read_participants(events: Sequence[Event]) -> list[Participant]:
    """Return who was in each generation. `events` are those of one attempt, in the order of their arrival.

    Agents of older versions report no replica and are left out.
    """
    newest: dict[int, int] = {}
    participants: dict[tuple[int, int, int], Participant] = {}
    for event in events:
        replica, generation = event.replica, event.generation
        if replica is None:
            continue
        if event.kind == Theirs.AGENT_STARTED:
            _, newest[replica] = read_life(event) or (replica, 1)
        elif event.kind == Theirs.GENERATION_STARTED and generation is not None:
            life = replica, newest.get(replica, 1)
            host = read_host(event)
            one = Participant(replica=replica, incarnation=life[1], generation=generation, at=event.at, host=host)
            participants.setdefault((*life, generation), one)
    return list(participants.values())


def read_members(reported: Mapping[int, Sequence[int]], gone: Collection[int], read: ReadEvents) -> Members:
    """`reported` has all incarnations of each replica. Of those, the ones in `gone` are not seen alive.

    Reads events only for a replica that is gone or has had more than one agent, because usually there is none.
    """
    newest = {replica: max(lives) for replica, lives in reported.items() if lives}
    if not any(replica in gone or len(lives) > 1 for replica, lives in reported.items()):
        return Members(reported=newest)
    notes = read(NOTES, None)
    rejoined = _read_lives(notes, Ours.REPLICA_REJOINED)
    waiting = {each for each, lives in reported.items() if len(lives) > 1 and (each, max(lives)) not in rejoined}
    found = _find_returns(notes, read(_STARTS, waiting), read(GROUP_CHANGES, None)) if waiting else ()
    return Members(
        reported=newest,
        lost=_read_lives(notes, Ours.REPLICA_LOST),
        returns=tuple(each for each in found if (each.replica, each.incarnation) not in rejoined),
    )


def _read_lives(notes: Sequence[Event], kind: str) -> frozenset[Life]:
    return frozenset(life for event in notes if event.kind == kind and (life := read_life(event)) is not None)


def _find_returns(notes: Sequence[Event], starts: Sequence[Event], changes: Sequence[Event]) -> Iterator[Return]:
    """Yield each group that formed with a later incarnation of a replica than before, in the order of time."""
    words = {read_life(event): event.evidence.get(WORDS) for event in notes if event.kind == Ours.REPLICA_LOST}
    noticed = _read_noticed(changes)
    by_life = defaultdict[Life, list[Participant]](list)
    for one in read_participants(starts):
        by_life[one.replica, one.incarnation].append(one)
    found = []
    for before, life in pairwise(sorted(by_life)):
        if before[0] != life[0]:
            continue
        last = max(one.generation for one in by_life[before])
        first = min((one for one in by_life[life] if one.generation > last), key=_by_generation, default=None)
        if first is None:
            continue
        since = noticed[min(later)] if (later := [number for number in noticed if number > last]) else None
        why = words.get(before)
        found.append(
            Return(
                replica=first.replica,
                incarnation=first.incarnation,
                generation=first.generation,
                at=first.at,
                seconds=None if since is None else max(0.0, round((first.at - since).total_seconds(), 3)),
                words=why if isinstance(why, str) else "",
            )
        )
    yield from sorted(found, key=lambda each: (each.at, each.replica))


def _read_noticed(events: Sequence[Event]) -> dict[int, datetime]:
    """Return when the reason for each change of the group was noticed, by the generation that it led to."""
    found: dict[int, datetime] = {}
    for event in events:
        if event.generation is not None:
            noticed = _move_back(event.at, event.number("seconds") or 0.0)
            found[event.generation] = min(noticed, found.get(event.generation, noticed))
    return found


def _move_back(moment: datetime, seconds: float) -> datetime:
    try:
        return moment - timedelta(seconds=seconds)
    except OverflowError:  # an agent may report a time in the year 1
        return moment


def _by_generation(one: Participant) -> int:
    return one.generation


def _number(event: Event, name: str) -> int | None:
    value = event.evidence.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _LARGEST else None
