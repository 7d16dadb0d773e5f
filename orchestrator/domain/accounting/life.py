"""A job's life, laid out from what its attempts and generations left behind. Pure.

Every source has a clock of its own: the service's for attempts, the agents' for generations, the workers' for steps.
What would lie before its predecessor is moved behind it, so that no moment counts twice and none is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest

from orchestrator.domain.accounting.goodput import Bin, Stretch
from trainer.contract.failure import FailureKind

LOSSES = (Bin.RE_DONE, Bin.STALLED, Bin.RECOVERING)  # what failures cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The steps of one generation that no restore went back behind. Times are the worker's."""

    steps: int
    first_at: datetime  # when the first of them was done
    last_at: datetime
    stall_s: float = 0.0  # of all of them, for snapshots
    snapshots: int = 0  # that training stood still for

    @property
    def began_at(self) -> datetime:
        """Before the first step, by as much as a usual one takes."""
        usual = (self.last_at - self.first_at) / (self.steps - 1) if self.steps > 1 else timedelta()
        return self.first_at - usual


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLife:
    """One generation, as its agents' journals tell it."""

    number: int
    started_at: datetime  # its workers
    world_size: int
    noticed_at: datetime | None = None  # the reason for it: the end of the one before
    restored_at: datetime | None = None
    restored_step: int = 0
    failed_at: datetime | None = None
    failed_step: int | None = None  # completed by then
    silent_s: float = 0.0  # before the failure, where that was a hang
    cause: FailureKind | None = None  # of its end; None: it lives, ended well, or was ended to grow
    nodes: Mapping[str, int] = field(default_factory=dict)  # its workers on each
    kept: Kept | None = None

    @property
    def trained(self) -> bool:
        return self.kept is not None or (self.failed_step or 0) > self.restored_step


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLife:
    number: int
    devices: int  # that it asked for
    created_at: datetime
    queued: bool = False  # the cluster let it wait in a queue of its own
    agent_at: datetime | None = None  # its first agent started
    ready_at: datetime | None = None  # that had imported what workers need
    heard_at: datetime | None = None  # its newest step
    ended_at: datetime | None = None
    went_well: bool = False  # it succeeded, or ended because it was asked to
    cause: FailureKind | None = None  # of its end, where it failed
    nodes: tuple[str, ...] = ()  # where its agents ran
    generations: tuple[GenerationLife, ...] = ()


@dataclass(frozen=True, slots=True)
class Rest:
    """The job was suspended, or had ended before its owner wanted more of it."""

    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """`devices` is what the job asks for now. Attempts and generations in their order."""

    created_at: datetime
    ended_at: datetime | None
    devices: int
    attempts: tuple[AttemptLife, ...] = ()
    rests: tuple[Rest, ...] = ()

    @property
    def tells_steps(self) -> bool:
        """Whether any worker ever told of a step."""
        lives = [generation for attempt in self.attempts for generation in attempt.generations]
        return any(each.trained for each in lives) or any(each.heard_at for each in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """From then on, until the next mark. `used`: None is all devices."""

    at: datetime
    bin: Bin
    devices: int
    used: int | None = None
    attempt: int | None = None
    generation: int | None = None
    stall_s: float = 0.0
    cause: FailureKind | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)


def lay_out(life: Life, now: datetime) -> tuple[Stretch, ...]:
    """The job's life until `now`, without a gap; what lasted no time is left out."""
    end = max(life.created_at, life.ended_at or now)
    marks = [mark for group in _in_order(life) for mark in group]
    times = [life.created_at]
    for mark in marks[1:]:
        times.append(min(max(mark.at, times[-1]), end))
    stretches = [
        Stretch(
            bin=mark.bin,
            since=since,
            until=until,
            devices=mark.devices,
            used=mark.devices if mark.used is None else min(mark.used, mark.devices),
            attempt=mark.attempt,
            generation=mark.generation,
            stall_s=mark.stall_s,
            cause=mark.cause if mark.bin in LOSSES else None,
            nodes=mark.nodes,
        )
        for mark, (since, until) in zip(marks, pairwise([*times, end]), strict=True)
        if until > since
    ]
    return tuple(stretches if life.ended_at is None else _without_hope(stretches))


def _without_hope(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Of a job that has ended: nothing came of its last recovery."""
    kept = list(stretches)
    for place in reversed(range(len(kept))):
        if kept[place].bin is not Bin.RECOVERING:
            break
        kept[place] = replace(kept[place], bin=Bin.IDLE, cause=None)
    return kept


def _in_order(life: Life) -> Iterator[list[_Mark]]:
    """The marks of the beginning, and of each attempt and rest after the other."""
    first = life.attempts[0].devices if life.attempts else life.devices
    yield [_Mark(at=life.created_at, bin=Bin.QUEUE, devices=first)]
    parts: list[AttemptLife | Rest] = sorted([*life.attempts, *life.rests], key=_began_at)
    rested, after = True, None
    for part in parts:
        if isinstance(part, Rest):
            yield list(_mark_rest(part, life.devices))
        else:
            yield list(_mark_attempt(part, afresh=rested, after=after, tells_steps=life.tells_steps))
            after = part.cause
        rested = isinstance(part, Rest)


def _began_at(part: AttemptLife | Rest) -> datetime:
    return part.since if isinstance(part, Rest) else part.created_at


def _mark_rest(rest: Rest, devices: int) -> Iterator[_Mark]:
    yield _Mark(at=rest.since, bin=Bin.IDLE, devices=devices)
    if rest.until is not None:
        yield _Mark(at=rest.until, bin=Bin.QUEUE, devices=devices)


def _mark_attempt(
    attempt: AttemptLife, *, afresh: bool, after: FailureKind | None, tells_steps: bool
) -> Iterator[_Mark]:
    """`afresh`: nothing of the job ran since it was submitted or last rested, so that this is a start, no recovery from
    `after`."""

    def mark(at: datetime, into: Bin) -> _Mark:
        found = into if afresh else Bin.RECOVERING
        nodes = {} if found is Bin.QUEUE else _spread(attempt)
        return _Mark(at=at, bin=found, devices=attempt.devices, attempt=attempt.number, cause=after, nodes=nodes)

    yield mark(attempt.created_at, Bin.QUEUE if attempt.queued else Bin.START_UP)
    if attempt.agent_at is not None:
        yield mark(attempt.agent_at, Bin.START_UP)
    if attempt.ready_at is not None:
        yield mark(attempt.ready_at, Bin.RENDEZVOUS)
    for one, following in zip_longest(attempt.generations, attempt.generations[1:]):
        yield from _mark_generation(attempt, one, following, afresh=afresh, after=after, tells_steps=tells_steps)
        afresh, after = False, _cause_of_end(attempt, one, following)
    if attempt.ended_at is not None:
        after = attempt.cause or after
        yield mark(attempt.ended_at, Bin.RECOVERING)


def _mark_generation(
    attempt: AttemptLife,
    one: GenerationLife,
    following: GenerationLife | None,
    *,
    afresh: bool,
    after: FailureKind | None,
    tells_steps: bool,
) -> Iterator[_Mark]:
    def mark(at: datetime, into: Bin, cause: FailureKind | None = None, stall_s: float = 0.0) -> _Mark:
        return _Mark(
            at=at,
            bin=into,
            devices=attempt.devices,
            used=one.world_size,
            attempt=attempt.number,
            generation=one.number,
            stall_s=stall_s,
            cause=cause,
            nodes=one.nodes or _spread(attempt),
        )

    over_at, cause = _over_at(attempt, one, following), _cause_of_end(attempt, one, following)
    if not tells_steps:
        yield mark(one.started_at, Bin.NOT_REPORTED)
        if over_at is not None and one.silent_s:
            yield mark(max(one.started_at, over_at - timedelta(seconds=one.silent_s)), Bin.STALLED, cause)
    else:
        yield mark(one.started_at, Bin.LOAD if afresh else Bin.RECOVERING, after)
        if one.restored_at is not None:
            yield mark(one.restored_at, Bin.COMPILE if afresh else Bin.RECOVERING, after)
        if one.kept is not None:
            yield mark(one.kept.began_at, Bin.PRODUCTIVE, stall_s=one.kept.stall_s)
        if over_at is not None:
            is_last = following is None
            yield from (mark(at, into, cause) for at, into in _ending(attempt, one, over_at, is_last=is_last))
    if over_at is not None:
        yield _Mark(
            at=over_at,
            bin=Bin.RECOVERING,
            devices=attempt.devices,
            attempt=attempt.number,
            cause=cause,
            nodes=_spread(attempt),
        )


def _spread(attempt: AttemptLife) -> Mapping[str, int]:
    """The devices that it asked for, over the nodes that it is known to have had."""
    return dict.fromkeys(attempt.nodes, 1)


def _cause_of_end(attempt: AttemptLife, one: GenerationLife, following: GenerationLife | None) -> FailureKind | None:
    """Of the last generation the attempt knows best: it has heard all agents, and the cluster."""
    return one.cause if following is not None else attempt.cause or one.cause


def _over_at(attempt: AttemptLife, one: GenerationLife, following: GenerationLife | None) -> datetime | None:
    """When the generation was seen to be over; None: it lives."""
    after = None if following is None else following.noticed_at or following.started_at
    known: Sequence[datetime] = [at for at in (one.failed_at, after, attempt.ended_at) if at is not None]
    return min(known, default=None)


def _ending(
    attempt: AttemptLife, one: GenerationLife, over_at: datetime, *, is_last: bool
) -> Iterator[tuple[datetime, Bin]]:
    """What lies between the last step that counts and the end."""
    if not one.trained:
        return
    trained_until = one.kept.last_at if one.kept is not None else one.restored_at or one.started_at
    if is_last and attempt.went_well:
        yield trained_until, Bin.IDLE
        return
    yield trained_until, Bin.RE_DONE
    if one.failed_at is not None:
        yield over_at - timedelta(seconds=one.silent_s), Bin.STALLED if one.silent_s else Bin.RE_DONE
    elif is_last and attempt.heard_at is not None:  # the agents are gone without a word
        yield max(attempt.heard_at, trained_until), Bin.STALLED
