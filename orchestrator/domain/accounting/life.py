"""Lays a job's life out in stretches, from its attempts and generations. Pure.

Each source has its own clock: the service for attempts, the agents for generations, the workers for steps. A time that
lies before its predecessor is moved up to it, so that no moment counts twice and none is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest

from orchestrator.domain.accounting.goodput import LOSSES, Bin, Stretch
from orchestrator.domain.accounting.injections import Injection, mark_stretches
from orchestrator.domain.accounting.losses import Lost
from trainer.contract.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The steps of one generation that no later restore discarded. Times are the worker's."""

    steps: int
    first_at: datetime  # when the first of them was completed
    last_at: datetime
    stall_s: float = 0.0  # how long they paused for snapshots
    snapshots: int = 0  # snapshots that training paused for

    @property
    def began_at(self) -> datetime:
        """The start of the first step, if it took as long as the mean step."""
        usual = (self.last_at - self.first_at) / (self.steps - 1) if self.steps > 1 else timedelta()
        return self.first_at - usual


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLife:
    """One generation, read from its agents' journals."""

    number: int
    started_at: datetime  # when its workers started
    world_size: int
    noticed_at: datetime | None = None  # when the end of the generation before it was noticed
    restored_at: datetime | None = None
    restored_step: int = 0
    restored_from: str = "disk"  # or `memory`, `buddy`, `survivor`
    failed_at: datetime | None = None
    failed_step: int | None = None  # the newest step that it had completed by then
    heard_step: int | None = None  # the newest step that it reported
    silent_s: float = 0.0  # the silence before a hang was noticed
    cause: str | None = None  # why it ended; None if it is live, succeeded, or was ended to grow
    nodes: Mapping[str, int] = field(default_factory=dict)  # the number of its workers by node
    kept: Kept | None = None

    @property
    def trained(self) -> bool:
        return self.kept is not None or (self.failed_step or 0) > self.restored_step

    @property
    def reached_step(self) -> int | None:
        """The newest step of its state. None if not known, as after the loss of an agent that reported no step."""
        if self.failed_at is None and self.heard_step is None:
            return None
        began = None if self.restored_at is None else self.restored_step
        return max((step for step in (began, self.failed_step, self.heard_step) if step is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What ended a generation: the first cause of all that its agents reported."""

    attempt: int
    generation: int
    at: datetime
    failure: Failure
    collateral_ranks: tuple[int, ...] = ()
    lost: Lost | None = None  # who left the group, if that ended the generation


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLife:
    number: int
    devices: int  # the devices that it requested
    created_at: datetime
    queued: bool = False  # it waited in the cluster's own queue
    agent_at: datetime | None = None  # its first agent started
    ready_at: datetime | None = None  # that agent had imported what workers need
    heard_at: datetime | None = None  # when its newest step was reached
    ended_at: datetime | None = None
    went_well: bool = False  # it succeeded, or was stopped on request
    cause: str | None = None  # the name of its failure
    nodes: tuple[str, ...] = ()  # where its agents ran
    unreported: bool = False  # its workers ran, and no worker of the job ever reported; False with the bundled trainer
    generations: tuple[GenerationLife, ...] = ()
    troubles: tuple[Trouble, ...] = ()  # by generation, even if its start was not reported

    @property
    def failed_untrained(self) -> bool:
        """Whether the attempt failed before its workers reported a step. Those that report nothing may have trained."""
        return self.cause is not None and not self.unreported and not any(one.trained for one in self.generations)

    @property
    def causes(self) -> tuple[str | None, ...]:
        """Why each generation ended. The attempt's own cause replaces the last one, because it takes all agents and the
        cluster into account. Without generations, it is the only one."""
        causes = [one.cause for one in self.generations] or [None]
        return (*causes[:-1], self.cause or causes[-1])


@dataclass(frozen=True, slots=True)
class Rest:
    """A time in which the job was suspended, or had ended before its owner requested a retry."""

    since: datetime
    until: datetime | None


def _began_at(part: AttemptLife | Rest) -> datetime:
    return part.since if isinstance(part, Rest) else part.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """`devices` is what the job requests now. Attempts and generations are in order."""

    created_at: datetime
    ended_at: datetime | None
    devices: int
    attempts: tuple[AttemptLife, ...] = ()
    rests: tuple[Rest, ...] = ()
    injections: tuple[Injection, ...] = ()

    @property
    def parts(self) -> Sequence[AttemptLife | Rest]:
        """Attempts and rests in the order of their beginning."""
        return sorted([*self.attempts, *self.rests], key=_began_at)

    @property
    def reports_steps(self) -> bool:
        """Whether any worker has reported a step."""
        lives = [generation for attempt in self.attempts for generation in attempt.generations]
        return any(each.trained for each in lives) or any(each.heard_at for each in self.attempts)


def lay_out(life: Life, now: datetime) -> tuple[Stretch, ...]:
    """Return the job's life until `now`, without gaps and without empty stretches."""
    end = max(life.created_at, life.ended_at or now)
    marks = list(_in_order(life))
    times = [life.created_at]
    for mark in marks[1:]:
        times.append(min(max(mark.since, times[-1]), end))
    stretches = [
        replace(mark, since=since, until=until, cause=mark.cause if mark.bin in LOSSES else None)
        for mark, (since, until) in zip(marks, pairwise([*times, end]), strict=True)
        if until > since
    ]
    return mark_stretches(stretches if life.ended_at is None else _end_recovery(stretches), life.injections)


def _end_recovery(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Count the last recovery of an ended job as idle time, because nothing recovered."""
    kept = list(stretches)
    for place in reversed(range(len(kept))):
        if kept[place].bin is not Bin.RECOVERING:
            break
        kept[place] = replace(kept[place], bin=Bin.IDLE, cause=None)
    return kept


def _in_order(life: Life) -> Iterator[Stretch]:
    """Yield the starts of all stretches, in order. Each stretch lasts until the next one."""
    first = life.attempts[0].devices if life.attempts else life.devices
    yield _without_devices(life.created_at, Bin.QUEUE, first)
    rested, after = True, None
    for part in life.parts:
        if isinstance(part, Rest):
            yield from _mark_rest(part, life.devices)
        else:
            yield from _mark_attempt(part, afresh=rested, after=after, reports_steps=life.reports_steps)
            after = part.cause
        rested = isinstance(part, Rest)


def _without_devices(at: datetime, into: Bin, devices: int) -> Stretch:
    return Stretch(bin=into, since=at, until=at, devices=devices, used=devices)


def _mark_rest(rest: Rest, devices: int) -> Iterator[Stretch]:
    yield _without_devices(rest.since, Bin.IDLE, devices)
    if rest.until is not None:
        yield _without_devices(rest.until, Bin.QUEUE, devices)


def _mark_attempt(attempt: AttemptLife, *, afresh: bool, after: str | None, reports_steps: bool) -> Iterator[Stretch]:
    """Mark an attempt. `afresh` means that the job has not run since its submission or its last rest. Otherwise this is
    a recovery from `after`."""
    for mark in _mark_course(attempt, afresh=afresh, after=after, reports_steps=reports_steps):
        is_lost = attempt.failed_untrained and mark.bin not in (Bin.QUEUE, Bin.STALLED)
        yield replace(mark, bin=Bin.FAILED, cause=attempt.cause) if is_lost else mark
    if attempt.ended_at is not None:
        cause = attempt.causes[-1] if attempt.generations else attempt.cause or after
        yield _between(attempt, attempt.ended_at, Bin.RECOVERING, cause)


def _mark_course(attempt: AttemptLife, *, afresh: bool, after: str | None, reports_steps: bool) -> Iterator[Stretch]:
    """Mark an attempt from its creation to its end."""

    def mark(at: datetime, into: Bin) -> Stretch:
        return _between(attempt, at, into if afresh else Bin.RECOVERING, after)

    yield mark(attempt.created_at, Bin.QUEUE if attempt.queued else Bin.START_UP)
    if attempt.agent_at is not None:
        yield mark(attempt.agent_at, Bin.START_UP)
    if attempt.ready_at is not None:
        yield mark(attempt.ready_at, Bin.RENDEZVOUS)
    for end in list_ends(attempt):
        if reports_steps:
            yield from _mark_generation(end, afresh=afresh, after=after)
        else:
            yield from _mark_silent_generation(end)
        if end.over_at is not None:
            yield _between(attempt, end.over_at, Bin.RECOVERING, end.cause)
        afresh, after = False, end.cause


def _between(attempt: AttemptLife, at: datetime, into: Bin, cause: str | None) -> Stretch:
    """Mark a time of an attempt without workers. It counts for the nodes on which the attempt's agents ran."""
    return Stretch(
        bin=into,
        since=at,
        until=at,
        devices=attempt.devices,
        used=attempt.devices,
        attempt=attempt.number,
        cause=cause,
        nodes={} if into is Bin.QUEUE else dict.fromkeys(attempt.nodes, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A generation with its end. `over_at` is None while it is live."""

    attempt: AttemptLife
    generation: GenerationLife
    over_at: datetime | None
    cause: str | None
    is_last: bool

    def mark(self, at: datetime, into: Bin, cause: str | None = None, stall_s: float = 0.0) -> Stretch:
        attempt, one = self.attempt, self.generation
        return Stretch(
            bin=into,
            since=at,
            until=at,
            devices=attempt.devices,
            used=min(one.world_size, attempt.devices),
            attempt=attempt.number,
            generation=one.number,
            stall_s=stall_s,
            cause=cause,
            nodes=one.nodes or dict.fromkeys(attempt.nodes, 1),
        )


def list_ends(attempt: AttemptLife) -> Iterator[End]:
    """Yield an attempt's generations with their ends, in order."""
    generations = attempt.generations
    for one, following, cause in zip_longest(generations, generations[1:], attempt.causes[: len(generations)]):
        after = None if following is None else following.noticed_at or following.started_at
        known: Sequence[datetime] = [at for at in (one.failed_at, after, attempt.ended_at) if at is not None]
        yield End(
            attempt=attempt,
            generation=one,
            over_at=min(known, default=None),
            cause=cause,
            is_last=following is None,
        )


def _mark_silent_generation(end: End) -> Iterator[Stretch]:
    """Mark a generation whose workers report no steps."""
    one = end.generation
    yield end.mark(one.started_at, Bin.NOT_REPORTED)
    if end.over_at is not None and one.silent_s:
        yield end.mark(max(one.started_at, end.over_at - timedelta(seconds=one.silent_s)), Bin.STALLED, end.cause)


def _mark_generation(end: End, *, afresh: bool, after: str | None) -> Iterator[Stretch]:
    one = end.generation
    yield end.mark(one.started_at, Bin.LOAD if afresh else Bin.RECOVERING, after)
    if one.restored_at is not None:
        yield end.mark(one.restored_at, Bin.COMPILE if afresh else Bin.RECOVERING, after)
    if one.kept is not None:
        yield end.mark(one.kept.began_at, Bin.PRODUCTIVE, stall_s=one.kept.stall_s)
    if end.over_at is None or not one.trained:
        return
    # From the last step that counts to the end.
    trained_until = one.kept.last_at if one.kept is not None else one.restored_at or one.started_at
    if end.is_last and end.attempt.went_well:
        yield end.mark(trained_until, Bin.IDLE)
        return
    yield end.mark(trained_until, Bin.RE_DONE, end.cause)
    if one.failed_at is not None:
        silent_since = end.over_at - timedelta(seconds=one.silent_s)
        yield end.mark(silent_since, Bin.STALLED if one.silent_s else Bin.RE_DONE, end.cause)
    elif end.is_last and end.attempt.heard_at is not None:  # the agents are gone without a report
        yield end.mark(max(end.attempt.heard_at, trained_until), Bin.STALLED, end.cause)
