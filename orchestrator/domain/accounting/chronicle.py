"""The life of a job, read from its events: the service's own and those of agents and workers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.domain.accounting.injections import read_injections
from orchestrator.domain.accounting.life import AttemptLife, GenerationLife, Kept, Life, Rest, Trouble
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.event import EventKind as Ours
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.launch_plan import workers_per_node
from trainer.contract.exit_record import GROUP_CHANGES
from trainer.contract.exit_record import EventKind as Theirs
from trainer.contract.failure import Failure, FailureKind, parse_failure

# What was done to a job, for its owner.
ACTIONS = frozenset(
    {
        *GROUP_CHANGES,
        Ours.JOB_STATE.value,
        Ours.RECOVERED.value,
        Ours.GREW_BACK.value,
        Ours.NODE_MARKED.value,
        Theirs.RESTORED.value,
        Theirs.STACKS_SAVED.value,
        Theirs.CHAOS_INJECTED.value,
    }
)
# What a life, and why a job stands so, are read from; a store may leave the others out.
KINDS = ACTIONS | {
    Ours.ATTEMPT_STATE.value,
    Ours.CHAOS_REQUESTED.value,
    Ours.REMOVED.value,  # with it stands what metrics that are gone summed up to
    Theirs.AGENT_STARTED.value,
    Theirs.GENERATION_STARTED.value,
    Theirs.WORKER_FAILED.value,
}
_AT_WORK = (Theirs.AGENT_STARTED.value, Theirs.GENERATION_STARTED.value)
_LONGEST_NAME = 255
_RESTING = frozenset(state.value for state in JobState if state.terminal or state is JobState.SUSPENDED)
_DAY, _CENTURY = timedelta(days=1), timedelta(days=36525)
_LONGEST_STALL_S = 1e8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronicle:
    """What a job left behind. `kept` by (attempt, generation), `heard_at` (its newest step) by attempt."""

    job: Job
    attempts: Sequence[Attempt]
    events: Sequence[Event]  # of KINDS, in the order of their arrival
    kept: Mapping[tuple[int, int], Kept]
    heard_at: Mapping[int, datetime]
    reported: Collection[int] = frozenset()  # attempts with a worker that has reported what it does
    has_snapshot: bool = False  # one that was not deleted; beside a quarantined one training does not begin anew


def read_life(whole: Chronicle) -> Life:
    """Never raises: whatever agents say, no life is unreadable."""
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
    """Agents' and workers' clocks may say anything: what is far from the job's life is moved near it."""
    earliest, latest = chronicle.job.created_at - _DAY, chronicle.job.created_at + _CENTURY

    def near(moment: datetime) -> datetime:
        return min(max(moment, earliest), latest)

    def near_steps(kept: Kept) -> Kept:
        stall_s = kept.stall_s if 0 <= kept.stall_s <= _LONGEST_STALL_S else 0.0
        return replace(kept, first_at=near(kept.first_at), last_at=near(kept.last_at), stall_s=stall_s)

    return replace(
        chronicle,
        events=[replace(event, at=near(event.at)) for event in chronicle.events],
        kept={term: near_steps(kept) for term, kept in chronicle.kept.items()},
        heard_at={attempt: near(moment) for attempt, moment in chronicle.heard_at.items()},
    )


def _read_attempt(chronicle: Chronicle, attempt: Attempt, events: Sequence[Event]) -> AttemptLife:
    """`events` are the attempt's."""
    number = attempt.key.number
    states = {str(event.evidence.get("state")) for event in events if event.kind == Ours.ATTEMPT_STATE}
    asked_to_end = attempt.stopping_since is not None and attempt.failure is None
    most = int(attempt.asked.rpartition(":")[2])
    agent_at = min((event.at for event in events if event.kind == Theirs.AGENT_STARTED), default=None)
    imported_s = (event.number("imported_in_s") for event in events if event.kind == Theirs.GENERATION_STARTED)
    took_s = next((seconds for seconds in imported_s if seconds is not None), None)
    changes = _read_changes(events)
    troubles = _read_troubles(events, changes)
    return AttemptLife(
        number=number,
        devices=most * _width(chronicle, attempt),
        created_at=attempt.created_at,
        queued=AttemptState.PENDING.value in states,
        agent_at=agent_at,
        ready_at=None if agent_at is None or took_s is None else agent_at + timedelta(seconds=took_s),
        heard_at=chronicle.heard_at.get(number),
        ended_at=attempt.ended_at,
        went_well=attempt.state is AttemptState.SUCCEEDED or asked_to_end,
        cause=None if attempt.failure is None else attempt.failure.kind,
        nodes=tuple(sorted({host for event in events if (host := _host(event)) and event.kind in _AT_WORK})),
        generations=tuple(
            replace(
                one,
                noticed_at=changes.noticed_at(one.number),
                cause=_cause(one.number, changes, troubles),
                kept=chronicle.kept.get((number, one.number)),
            )
            for one in _read_generations(events)
        ),
        troubles=tuple(troubles[each] for each in sorted(troubles)),
    )


@dataclass(frozen=True, slots=True)
class _Changes:
    """The first word of each change of an attempt's group, by the generation that it led to."""

    events: Mapping[int, Event]
    order: Sequence[int]

    def noticed_at(self, number: int) -> datetime | None:
        """When the reason for this generation was noticed."""
        change = self.events.get(number)
        return None if change is None else change.at - timedelta(seconds=change.number("seconds") or 0.0)

    def shrink_after(self, number: int) -> Event | None:
        """The change that ended this generation, if the group shrank by it."""
        place = bisect_right(self.order, number)
        change = self.events[self.order[place]] if place < len(self.order) else None
        return change if change is not None and change.kind == Theirs.GROUP_SHRUNK else None


def _read_changes(events: Sequence[Event]) -> _Changes:
    found: dict[int, Event] = {}
    for event in events:
        if event.kind in GROUP_CHANGES and event.generation is not None:
            found.setdefault(event.generation, event)
    return _Changes(found, sorted(found))


def _read_troubles(events: Sequence[Event], changes: _Changes) -> Mapping[int, Trouble]:
    """By generation, from all that its agents said of its end."""
    said = defaultdict[int, list[Event]](list)
    for event in events:
        if event.kind == Theirs.WORKER_FAILED:
            said[event.generation or 0].append(event)
    return {number: _read_trouble(number, max(said[number], key=_first_cause), changes) for number in said}


def _first_cause(event: Event) -> tuple[bool, float]:
    """Not who lost a peer; of those that hung, who is behind in steps."""
    behind = -(event.number("step") or 0.0) if event.evidence.get("kind") == FailureKind.HANG else 0.0
    return not _lost_a_peer(event), behind


def _read_trouble(number: int, event: Event, changes: _Changes) -> Trouble:
    """If workers reported the loss of a peer alone and the group shrank, the node that is not in it is the cause."""
    failure, change = parse_failure(event.evidence), changes.shrink_after(number)
    if change is not None and _lost_a_peer(event):
        failure = Failure(kind=FailureKind.NODE, message=f"a node or its agent was lost: {change.sentence}")
    ranks = event.evidence.get("collateral_ranks")
    named = {rank for rank in ranks if isinstance(rank, int)} if isinstance(ranks, list) else set()
    return Trouble(
        attempt=event.attempt or 0,
        generation=number,
        at=event.at,
        failure=failure,
        collateral_ranks=tuple(sorted(named)),
    )


def _lost_a_peer(event: Event) -> bool:
    return event.evidence.get("lost_a_peer") is True


def _cause(number: int, changes: _Changes, troubles: Mapping[int, Trouble]) -> FailureKind | None:
    """A group that shrank lost a node, unless a worker reported a cause of its own."""
    if number in troubles:
        return troubles[number].failure.kind
    return None if changes.shrink_after(number) is None else FailureKind.NODE


def _read_generations(events: Sequence[Event]) -> Sequence[GenerationLife]:
    """Every agent journals the same generation: its first word counts, but for the size."""
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
    """An agent told of its own workers: so many on its node."""
    host, pids = _host(event), event.evidence.get("pids")
    if host is None or not isinstance(pids, Mapping):
        return one
    return replace(one, nodes={**one.nodes, host: one.nodes.get(host, 0) + len(pids)})


def _host(event: Event) -> str | None:
    host = event.evidence.get("host")
    return host if isinstance(host, str) and 0 < len(host) <= _LONGEST_NAME else None


def _with_event(one: GenerationLife, event: Event) -> GenerationLife:
    step = event.number("step")
    if event.kind == Theirs.RESTORED and one.restored_at is None:
        return replace(one, restored_at=event.at, restored_step=int(step or 0))
    if event.kind == Theirs.WORKER_FAILED and one.failed_at is None:
        failed_step = None if step is None else int(step)
        return replace(
            one,
            failed_at=event.at,
            failed_step=failed_step,
            silent_s=event.number("silent_s") or 0.0,
        )
    return one


def _read_rests(events: Sequence[Event], job: Job) -> tuple[Rest, ...]:
    """From each state in which nothing is tried to the next in which something is; the last end is the job's own."""
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
    """Workers of each node. With "gpu" the cluster decided: it shows in the largest group that formed."""
    if attempt is not None and attempt.workers_per_node is not None:
        return attempt.workers_per_node
    spec = chronicle.job.spec
    started = [event for event in chronicle.events if event.kind == Theirs.GENERATION_STARTED]
    largest = max((int(event.number("world_size") or 1) for event in started), default=1)
    return workers_per_node(spec, max(1, largest // spec.topology.max_nodes))
