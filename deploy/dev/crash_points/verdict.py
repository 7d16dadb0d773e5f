"""Check what must hold at the end of every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from deploy.dev.crash_points.cell import Outcome
from orchestrator.domain.job import attempt, job
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState

# Job -> its final state, its attempts' final states, the starts of its workers as "attempt rank".
EXPECTED = {
    "one": (JobState.SUCCEEDED, [AttemptState.SUCCEEDED], ["1 0", "1 1"]),
    "two": (JobState.CANCELLED, [AttemptState.CANCELLED], ["1 0"]),
    "three": (JobState.SUCCEEDED, [AttemptState.LOST, AttemptState.SUCCEEDED], ["1 0", "2 0"]),
}


def judge(outcome: Outcome) -> list[str]:
    """Return all problems as sentences."""
    ends = _wrong_ends_cancelled(outcome) if outcome.cancelled else _wrong_ends(outcome)
    return [*outcome.problems, *ends, *wrong_accounts(outcome.jobs, outcome.attempts, outcome.events)]


def _wrong_ends(outcome: Outcome) -> Iterator[str]:
    for name, (state, attempts, starts) in EXPECTED.items():
        if name in outcome.jobs and outcome.jobs[name].state is not state:
            yield f"job {name} is {outcome.jobs[name].state}, not {state}: {outcome.jobs[name].reason}"
        found = [one.state for one in outcome.attempts.get(name, [])]
        if name in outcome.jobs and found != attempts:
            yield f"the attempts of job {name} ended {found}, not {attempts}"
        if sorted(outcome.starts.get(name, [])) != starts:
            yield f"job {name} was started {sorted(outcome.starts.get(name, []))}, not {starts}"


def _wrong_ends_cancelled(outcome: Outcome) -> Iterator[str]:
    """A cancelled job may have succeeded before. No worker starts twice."""
    for name in EXPECTED:
        starts = outcome.starts.get(name, [])
        if len(starts) != len(set(starts)):
            yield f"job {name} was started {sorted(starts)}"
        if name in outcome.jobs and outcome.jobs[name].state not in (JobState.SUCCEEDED, JobState.CANCELLED):
            yield f"job {name} is {outcome.jobs[name].state}: {outcome.jobs[name].reason}"


def wrong_accounts(
    jobs: Mapping[str, Any], attempts: Mapping[str, list[Any]], reported: Mapping[str, list[Any]]
) -> Iterator[str]:
    """Check that each change of state has one event and follows the table of transitions."""
    for name, events in reported.items():
        states = [JobState(event.evidence["state"]) for event in events if event.kind == "job.state"]
        yield from _wrong_path(f"job {name}", [JobState.QUEUED, *states], job.TRANSITIONS)
        if states[-1:] != [jobs[name].state]:
            yield f"job {name} is {jobs[name].state}, its last event says {states[-1:]}"
        for each in attempts[name]:
            changes = [event for event in events if event.kind == "attempt.state" and event.attempt == each.number]
            asked = [event for event in changes if " is asked to end" in event.sentence]
            path = [AttemptState(event.evidence["state"]) for event in changes if event not in asked]
            if path[:1] != [AttemptState.INTENDED] or len(asked) > 1:
                yield f"attempt {each.number} of job {name} has the events {[event.sentence for event in changes]}"
            yield from _wrong_path(f"attempt {each.number} of job {name}", path, attempt.TRANSITIONS)
            if path[-1:] != [each.state]:
                yield f"attempt {each.number} of job {name} is {each.state}, its last event says {path[-1:]}"
        submitted = Counter(event.kind for event in events)["job.submitted"]
        if submitted != 1:
            yield f"job {name} has {submitted} events of its submission"


def _wrong_path(what: str, states: list[Any], table: Any) -> Iterator[str]:
    for before, after in pairwise(states):
        if after not in table[before]:
            yield f"{what}: an event reports {before} -> {after}"
