"""Reads the life of a job from its events: those of the service, of agents and of workers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestrator.domain.accounting.injections import read_injections
from orchestrator.domain.accounting.life import AttemptLife, GenerationLife, Kept, Life, Rest, Trouble
from orchestrator.domain.accounting.losses import Losses, Lost, find_left
from orchestrator.domain.accounting.training_summary import LONGEST_S
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.event import EventKind as Ours
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.membership import Participant, read_host, read_participants
from trainer.contract.exit_record import GROUP_CHANGES
from trainer.contract.exit_record import EventKind as Theirs
from trainer.contract.failure import Failure, FailureKind, name_cause, parse_failure

# Events that `why` lists as actions.
ACTIONS = frozenset(
    {
        *GROUP_CHANGES,
        Ours.JOB_STATE.value,
        Ours.RECOVERED.value,
        Ours.GREW_BACK.value,
        Ours.NODE_MARKED.value,
        Ours.REPLICA_REJOINED.value,
        Theirs.RESTORED.value,
        Theirs.STACKS_SAVED.value,
        Theirs.CHAOS_INJECTED.value,
    }
)
# Events that a life and `why` are read from. A store may omit all others.
KINDS = ACTIONS | {
    Ours.ATTEMPT_STATE.value,
    Ours.CHAOS_REQUESTED.value,
    Ours.REPLICA_LOST.value,
    Ours.REMOVED.value,  # has the sums of removed metrics
    Theirs.AGENT_STARTED.value,
    Theirs.GENERATION_STARTED.value,
    Theirs.WORKER_FAILED.value,
}
_AT_WORK = (Theirs.AGENT_STARTED.value, Theirs.GENERATION_STARTED.value)
_RESTING = frozenset(state.value for state in JobState if state.terminal or state is JobState.SUSPENDED)
_DAY, _CENTURY = timedelta(days=1), timedelta(days=36525)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronicle:
    """Everything stored about a job. `kept` and `heard_step` are by (attempt, generation), `heard_at` by attempt.

    `heard_at` is the time of an attempt's newest step. `heard_step` has that step, for the generation that made it.
    """

    job: Job
    attempts: Sequence[Attempt]
    events: Sequence[Event]  # of KINDS, in the order of their arrival
    kept: Mapping[tuple[int, int], Kept]
    heard_at: Mapping[int, datetime]
    heard_step: Mapping[tuple[int, int], int] = field(default_factory=dict)
    reported: Collection[int] = frozenset()  # attempts with a worker that has reported
    has_snapshot: bool = False  # one that was not deleted; a quarantined one counts
    snapshot_step: int | None = None  # of the newest snapshot that is neither deleted nor quarantined


def read_life(whole: Chronicle) -> Life:
    """Read a job's life. Never raises, whatever agents report."""
    chronicle = _bounded(whole)
    job = chronicle.job
    by_attempt = defaultdict[int | None, list[Event]](list)
    for event in chronicle.events:
        by_attempt[event.attempt].append(event)
    attempts = (_read_attempt(chronicle, attempt, by_attempt[attempt.key.number]) for attempt in chronicle.attempts)
    return Life(
        created_at=job.created_at,
        ended_at=job.finished_at,
        devices=job.spec.topology.max_nodes * _width(chronicle, None),
        attempts=tuple(attempts),
        rests=_read_rests(chronicle.events, job),
        injections=read_injections(chronicle.events),
    )


def _bounded(chronicle: Chronicle) -> Chronicle:
    """Move times that are far from the job's life near it, because clocks of agents and workers may be wrong."""
    earliest, latest = chronicle.job.created_at - _DAY, chronicle.job.created_at + _CENTURY

    def near(moment: datetime) -> datetime:
        return min(max(moment, earliest), latest)

    def near_steps(kept: Kept) -> Kept:
        stall_s = kept.stall_s if 0 <= kept.stall_s <= LONGEST_S else 0.0
        return replace(kept, first_at=near(kept.first_at), last_at=near(kept.last_at), stall_s=stall_s)

    return replace(
        chronicle,
        events=[replace(event, at=near(event.at)) for event in chronicle.events],
        kept={term: near_steps(kept) for term, kept in chronicle.kept.items()},
        heard_at={attempt: near(moment) for attempt, moment in chronicle.heard_at.items()},
    )


def _read_attempt(chronicle: Chronicle, attempt: Attempt, events: Sequence[Event]) -> AttemptLife:
    """`events` are those of the attempt."""
    number = attempt.key.number
    states = {str(event.evidence.get("state")) for event in events if event.kind == Ours.ATTEMPT_STATE}
    asked_to_end = attempt.stopping_since is not None and attempt.failure is None
    agent_at = min((event.at for event in events if event.kind == Theirs.AGENT_STARTED), default=None)
    imported_s = (event.number("imported_in_s") for event in events if event.kind == Theirs.GENERATION_STARTED)
    took_s = next((seconds for seconds in imported_s if seconds is not None), None)
    changes = _read_changes(events)
    generations = _read_generations(events)
    troubles = _read_troubles(events, changes, _Groups(events, generations))
    return AttemptLife(
        number=number,
        devices=attempt.most_asked * _width(chronicle, attempt),
        created_at=attempt.created_at,
        queued=AttemptState.PENDING.value in states,
        agent_at=agent_at,
        ready_at=None if agent_at is None or took_s is None else agent_at + timedelta(seconds=took_s),
        heard_at=chronicle.heard_at.get(number),
        ended_at=attempt.ended_at,
        went_well=attempt.state is AttemptState.SUCCEEDED or asked_to_end,
        cause=None if attempt.failure is None else _cause_of(attempt.failure),
        nodes=tuple(sorted({host for event in events if (host := read_host(event)) and event.kind in _AT_WORK})),
        unreported=bool(generations) and not chronicle.reported and chronicle.job.spec.run.trainer is None,
        generations=tuple(
            replace(
                one,
                noticed_at=changes.noticed_at(one.number),
                cause=_cause_of(troubles[one.number].failure) if one.number in troubles else None,
                kept=chronicle.kept.get((number, one.number)),
                heard_step=chronicle.heard_step.get((number, one.number), one.heard_step),
            )
            for one in generations
        ),
        troubles=tuple(troubles[each] for each in sorted(troubles)),
    )


def _cause_of(failure: Failure) -> str:
    return name_cause(failure.kind.value, failure.signal)


@dataclass(frozen=True, slots=True)
class _Changes:
    """The first event of each change of an attempt's group, by the generation that it led to."""

    events: Mapping[int, Event]
    order: Sequence[int]

    def noticed_at(self, number: int) -> datetime | None:
        """Return when the reason for this generation was noticed."""
        change = self.events.get(number)
        return None if change is None else change.at - timedelta(seconds=change.number("seconds") or 0.0)

    def after(self, number: int) -> Event | None:
        """Return the change that ended this generation."""
        place = bisect_right(self.order, number)
        return self.events[self.order[place]] if place < len(self.order) else None


def _read_changes(events: Sequence[Event]) -> _Changes:
    found: dict[int, Event] = {}
    for event in events:
        if event.kind in GROUP_CHANGES and event.generation is not None:
            found.setdefault(event.generation, event)
    return _Changes(found, sorted(found))


def _read_troubles(events: Sequence[Event], changes: _Changes, groups: _Groups) -> Mapping[int, Trouble]:
    """Find what ended each generation, from all reports of its agents."""
    reports = defaultdict[int, list[Event]](list)
    for event in events:
        if event.kind == Theirs.WORKER_FAILED:
            reports[event.generation or 0].append(event)
    losses = Losses(events)
    troubles: dict[int, Trouble] = {}
    for number in reports.keys() | groups.numbers:
        first, change = max(reports[number], key=_first_cause, default=None), changes.after(number)
        if change is not None and (first is None or _lost_a_peer(first)) and groups.lost_any(number, change):
            lost, failure = groups.explain_loss(number, change, losses)
            at = (changes.noticed_at(change.generation or 0) or change.at) if first is None else first.at
            troubles[number] = replace(_trouble_of(number, at, failure, first or change), lost=lost)
        elif first is not None:
            troubles[number] = _trouble_of(number, first.at, parse_failure(first.evidence), first)
    return troubles


class _Groups:
    """Who was in each generation of an attempt."""

    def __init__(self, events: Sequence[Event], generations: Sequence[GenerationLife]) -> None:
        self._generations = {one.number: one for one in generations}
        self._participants = defaultdict[int, list[Participant]](list)
        for one in read_participants(events):
            self._participants[one.generation].append(one)

    @property
    def numbers(self) -> Set[int]:
        return self._generations.keys()

    def lost_any(self, number: int, change: Event) -> bool:
        """Whether the change of the group was one that lost somebody."""
        return change.kind == Theirs.GROUP_SHRUNK or bool(self._find_left(number, change))

    def explain_loss(self, number: int, change: Event, losses: Losses) -> tuple[Lost, Failure]:
        """Name who left this generation, and say why. The workers reported at most the loss of a peer."""
        before, after = self._generations.get(number), self._generations.get(change.generation or 0)
        left = self._find_left(number, change)
        if left:
            return losses.explain(left)
        if before is None or after is None or not self._is_complete(after.number):
            return losses.explain_hosts((), change.at)
        return losses.explain_hosts(sorted(before.nodes.keys() - after.nodes.keys()), before.started_at)

    def _find_left(self, number: int, change: Event) -> list[Participant]:
        after = change.generation or 0
        return find_left(self._participants[number], self._participants[after]) if self._is_complete(after) else []

    def _is_complete(self, number: int) -> bool:
        """Whether all agents of the generation have reported."""
        one = self._generations.get(number)
        return one is not None and sum(one.nodes.values()) == one.world_size


def _first_cause(event: Event) -> tuple[bool, float]:
    """Rank a report as the first cause: a lost peer last, and of hung ranks the one with the fewest steps first."""
    behind = -(event.number("step") or 0.0) if event.evidence.get("kind") == FailureKind.HANG else 0.0
    return not _lost_a_peer(event), behind


def _trouble_of(number: int, at: datetime, failure: Failure, event: Event) -> Trouble:
    ranks = event.evidence.get("collateral_ranks")
    named = {rank for rank in ranks if isinstance(rank, int)} if isinstance(ranks, list) else set()
    return Trouble(
        attempt=event.attempt or 0,
        generation=number,
        at=at,
        failure=failure,
        collateral_ranks=tuple(sorted(named)),
    )


def _lost_a_peer(event: Event) -> bool:
    return event.evidence.get("lost_a_peer") is True


def _read_generations(events: Sequence[Event]) -> Sequence[GenerationLife]:
    """Read the generations. Every agent journals each. The first event counts, and all add their node's workers."""
    found: dict[int, GenerationLife] = {}
    for event in events:
        number = event.generation
        if number is None:
            continue
        if event.kind == Theirs.GENERATION_STARTED:
            size = int(event.number("world_size") or 1)
            known = found.get(number) or GenerationLife(number=number, started_at=event.at, world_size=size)
            found[number] = _placed(known, event)
        elif number in found:
            found[number] = _with_event(found[number], event)
    return [found[number] for number in sorted(found)]


def _placed(one: GenerationLife, event: Event) -> GenerationLife:
    """Add the workers that an agent started on its node."""
    host, pids = read_host(event), event.evidence.get("pids")
    if host is None or not isinstance(pids, Mapping):
        return one
    return replace(one, nodes={**one.nodes, host: one.nodes.get(host, 0) + len(pids)})


def _with_event(one: GenerationLife, event: Event) -> GenerationLife:
    step = event.number("step")
    if event.kind == Theirs.RESTORED and one.restored_at is None:
        source = str(event.evidence.get("source", one.restored_from))
        return replace(one, restored_at=event.at, restored_step=int(step or 0), restored_from=source)
    if event.kind == Theirs.WORKER_FAILED and one.failed_at is None:
        failed_step = None if step is None else int(step)
        return replace(
            one,
            failed_at=event.at,
            failed_step=failed_step,
            silent_s=event.number("silent_s") or 0.0,
        )
    if event.kind == Theirs.PEER_LOST and step is not None:
        return replace(one, heard_step=max(int(step), one.heard_step or 0))
    return one


def _read_rests(events: Sequence[Event], job: Job) -> tuple[Rest, ...]:
    """Return the times in which the job was suspended or ended until a retry. The job's own end is no rest."""
    rests: list[Rest] = []
    since: datetime | None = None
    for event in events:
        if event.kind != Ours.JOB_STATE:
            continue
        resting = str(event.evidence.get("state")) in _RESTING
        if resting and since is None:
            since = event.at
        elif not resting and since is not None:
            rests.append(Rest(since, event.at))
            since = None
    return (*rests, Rest(since, None)) if since is not None and not job.state.terminal else tuple(rests)


def _width(chronicle: Chronicle, attempt: Attempt | None) -> int:
    """Return the workers per node. With "gpu", the cluster chose it, so it follows from the largest group."""
    if attempt is not None and attempt.workers_per_node is not None:
        return attempt.workers_per_node
    spec = chronicle.job.spec
    started = [event for event in chronicle.events if event.kind == Theirs.GENERATION_STARTED]
    largest = max((int(event.number("world_size") or 1) for event in started), default=1)
    return spec.topology.count_workers(max(1, largest // spec.topology.max_nodes))
