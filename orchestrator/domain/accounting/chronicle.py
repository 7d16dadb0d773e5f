"""The life of a job, read from its events: the service's own and those of agents and workers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest

from orchestrator.domain.accounting.life import AttemptLife, GenerationLife, Kept, Life, Rest
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.event import EventKind as Ours
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.launch_plan import workers_per_node
from trainer.contract.exit_record import EventKind as Theirs
from trainer.contract.failure import FailureKind, parse_failure

# What a life is read from; a store may leave the others out.
KINDS = frozenset(
    {
        Ours.JOB_STATE.value,
        Ours.ATTEMPT_STATE.value,
        Ours.REMOVED.value,  # with it stands what metrics that are gone summed up to
        Theirs.AGENT_STARTED.value,
        Theirs.GENERATION_STARTED.value,
        Theirs.RESTORED.value,
        Theirs.WORKER_FAILED.value,
        Theirs.RESTARTED_IN_PLACE.value,
        Theirs.GROUP_SHRUNK.value,
        Theirs.GROUP_GREW.value,
    }
)
_AT_WORK = (Theirs.AGENT_STARTED.value, Theirs.GENERATION_STARTED.value)
_LONGEST_NAME = 255
_RESTING = frozenset(state.value for state in JobState if state.terminal or state is JobState.SUSPENDED)
_DAY, _CENTURY = timedelta(days=1), timedelta(days=36525)
_LARGEST = 1e8  # seconds, steps or workers that are believed
_CHANGES = (Theirs.RESTARTED_IN_PLACE.value, Theirs.GROUP_SHRUNK.value, Theirs.GROUP_GREW.value)


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
    attempts = tuple(_read_attempt(chronicle, attempt) for attempt in chronicle.attempts)
    return Life(
        created_at=job.created_at,
        ended_at=job.finished_at,
        devices=job.spec.topology.max_nodes * _width(chronicle, None),
        attempts=attempts,
        rests=_read_rests(chronicle.events, job),
    )


def _bounded(chronicle: Chronicle) -> Chronicle:
    """Agents' and workers' clocks may say anything: what is far from the job's life is moved near it."""
    earliest, latest = chronicle.job.created_at - _DAY, chronicle.job.created_at + _CENTURY

    def near(moment: datetime) -> datetime:
        return min(max(moment, earliest), latest)

    def near_steps(kept: Kept) -> Kept:
        stall_s = kept.stall_s if 0 <= kept.stall_s <= _LARGEST else 0.0
        return replace(kept, first_at=near(kept.first_at), last_at=near(kept.last_at), stall_s=stall_s)

    return replace(
        chronicle,
        events=[replace(event, at=near(event.at)) for event in chronicle.events],
        kept={term: near_steps(kept) for term, kept in chronicle.kept.items()},
        heard_at={attempt: near(moment) for attempt, moment in chronicle.heard_at.items()},
    )


def _read_attempt(chronicle: Chronicle, attempt: Attempt) -> AttemptLife:
    number = attempt.key.number
    events = [event for event in chronicle.events if event.attempt == number]
    states = {str(event.evidence.get("state")) for event in events if event.kind == Ours.ATTEMPT_STATE}
    asked_to_end = attempt.stopping_since is not None and attempt.failure is None
    most = int(attempt.asked.rpartition(":")[2])
    agent_at = min((event.at for event in events if event.kind == Theirs.AGENT_STARTED), default=None)
    imported_s = (_number(event, "imported_in_s") for event in events if event.kind == Theirs.GENERATION_STARTED)
    took_s = next((seconds for seconds in imported_s if seconds is not None), None)
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
        generations=_read_generations(events, number, chronicle.kept),
    )


def _read_generations(
    events: Sequence[Event], attempt: int, kept: Mapping[tuple[int, int], Kept]
) -> tuple[GenerationLife, ...]:
    """Every agent journals the same generation: its first word counts, but for the size and the restore."""
    found: dict[int, GenerationLife] = {}
    noticed: dict[int, datetime] = {}
    shrunk: set[int] = set()
    victims: set[int] = set()  # generations of which so far the loss of a peer alone was told
    for event in events:
        number = event.generation
        if number is None:
            continue
        if event.kind in _CHANGES:
            noticed.setdefault(number, event.at - timedelta(seconds=_number(event, "seconds") or 0.0))
            shrunk |= {number} if event.kind == Theirs.GROUP_SHRUNK else set()
        elif event.kind == Theirs.GENERATION_STARTED:
            size = int(_number(event, "world_size") or 1)
            known = found.get(number) or GenerationLife(number=number, started_at=event.at, world_size=size)
            found[number] = _placed(known, event)
        elif number in found:
            is_first = found[number].failed_at is None
            found[number] = _with_event(found[number], event)
            if event.kind == Theirs.WORKER_FAILED:
                lost_a_peer = event.evidence.get("lost_a_peer") is True
                if is_first and lost_a_peer:
                    victims.add(number)
                elif number in victims and not lost_a_peer:
                    victims.discard(number)
                    found[number] = replace(found[number], cause=parse_failure(event.evidence).kind)
    numbers = sorted(found)
    return tuple(
        replace(
            found[number],
            noticed_at=noticed.get(number),
            cause=_cause(found[number], is_victim=number in victims, shrank=following in shrunk),
            kept=kept.get((attempt, number)),
        )
        for number, following in zip_longest(numbers, numbers[1:])
    )


def _cause(one: GenerationLife, *, is_victim: bool, shrank: bool) -> FailureKind | None:
    """A group that shrank lost a node, unless a worker told of a cause of its own."""
    return FailureKind.NODE if shrank and (is_victim or one.cause is None) else one.cause


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
    step = _number(event, "step")
    if event.kind == Theirs.RESTORED and one.restored_at is None:
        return replace(one, restored_at=event.at, restored_step=int(step or 0))
    if event.kind == Theirs.WORKER_FAILED and one.failed_at is None:
        failed_step = None if step is None else int(step)
        return replace(
            one,
            failed_at=event.at,
            failed_step=failed_step,
            silent_s=_number(event, "silent_s") or 0.0,
            cause=parse_failure(event.evidence).kind,
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
    largest = max((int(_number(event, "world_size") or 1) for event in started), default=1)
    return workers_per_node(spec, max(1, largest // spec.topology.max_nodes))


def _number(event: Event, name: str) -> float | None:
    """Agents of any version write evidence, and anyone may write into a run directory."""
    value = event.evidence.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= _LARGEST else None
