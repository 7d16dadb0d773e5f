from __future__ import annotations

from itertools import count

import pytest

from orchestrator.domain.accounting.life import Kept
from orchestrator.domain.job.job import JobState
from tests.builders import at, make_batch, make_event, make_journal_event, make_progress, make_spec
from tests.store.harness import Stores
from trainer.contract.clock import render_time


def trained(stores: Stores, steps: range, *, generation: int, restored: int | None = None) -> None:
    """Report steps of one second. Every third step stalls for 0.25 s for a snapshot."""
    offsets, events = count(generation * 10_000), [make_journal_event("agent.started", generation=generation)]
    if restored is not None:
        events.append(make_journal_event("restored", generation=generation, evidence={"step": restored}))
    lines = [
        make_progress(
            step,
            seconds=100 * generation + step,
            generation=generation,
            metrics={"loss": 1.0, **({} if step % 3 else {"snapshot_s": 0.25})},
        )
        for step in steps
    ]
    progress, numbered = [(next(offsets), line) for line in lines], [(next(offsets), event) for event in events]
    stores.ingest(make_batch(incarnation=generation, progress=progress, events=numbered))


def kept(stores: Stores) -> dict[tuple[int, int], Kept]:
    return dict(stores.chronicles.chronicle("job-1").kept)


def test_a_repeated_step_counts_for_its_last_repetition(stores: Stores) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(5, 8), generation=2, restored=4)
    assert kept(stores) == {
        (1, 1): Kept(steps=4, first_at=at(101), last_at=at(104), stall_s=0.25, snapshots=1),
        (1, 2): Kept(steps=3, first_at=at(205), last_at=at(207), stall_s=0.25, snapshots=1),
    }


def test_a_restore_discards_later_steps_before_they_are_repeated(stores: Stores) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(0), generation=2, restored=6)
    assert kept(stores) == {(1, 1): Kept(steps=6, first_at=at(101), last_at=at(106), stall_s=0.5, snapshots=2)}


def test_a_start_from_scratch_discards_all_steps(stores: Stores) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(1, 3), generation=2)
    assert kept(stores) == {(1, 2): Kept(steps=2, first_at=at(201), last_at=at(202))}


def test_pauses_that_no_snapshot_takes_do_not_count(stores: Stores) -> None:
    stores.add_with_attempt()
    paused = (1.5e308, 1.5e308, -4.0, float("nan"), float("inf"), 0.5)
    lines = [(step, make_progress(step, metrics={"loss": 1.0, "snapshot_s": s})) for step, s in enumerate(paused, 1)]
    stores.ingest(make_batch(progress=lines))
    (one,) = kept(stores).values()
    assert (one.steps, one.stall_s, one.snapshots) == (6, 0.5, 1)


def test_a_chronicle_has_the_events_for_accounts_and_the_time_of_the_newest_step(stores: Stores) -> None:
    job = stores.add_with_attempt()
    stores.apply(job, None, make_event("webhook.test"), make_event("job.state", evidence={"state": "RUNNING"}))
    trained(stores, range(1, 3), generation=1)
    chronicle = stores.chronicles.chronicle("job-1")
    assert [event.kind for event in chronicle.events] == ["job.state", "agent.started"]
    assert (chronicle.job.id, len(chronicle.attempts), chronicle.heard_at) == ("job-1", 1, {1: at(102)})
    assert chronicle.heard_step == {(1, 1): 2}
    assert render_time(chronicle.heard_at[1])


def test_a_chronicle_has_a_snapshot_until_it_is_deleted(stores: Stores) -> None:
    stores.add_with_attempt()
    chronicle = stores.chronicles.chronicle("job-1")
    assert (chronicle.has_snapshot, chronicle.snapshot_step) == (False, None)
    known = []
    for place, what in enumerate(("committed", "quarantined", "deleted"), 1):
        event = make_journal_event(f"snapshot.{what}", evidence={"name": "step-00000010-a1-g1"})
        stores.ingest(make_batch(events=[(place, event)]))
        chronicle = stores.chronicles.chronicle("job-1")
        known.append((chronicle.has_snapshot, chronicle.snapshot_step))
    assert known == [(True, 10), (True, None), (False, None)]


@pytest.mark.parametrize("step", [10**30, -(10**30), True, "many"])
def test_a_restore_of_an_invalid_step_is_ignored(stores: Stores, step: object) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 4), generation=1)
    event = make_journal_event("restored", generation=2, evidence={"step": step})
    stores.ingest(make_batch(incarnation=2, events=[(50_000, event)]))
    assert sum(each.steps for each in kept(stores).values()) == 3


def test_jobs_that_existed_between_two_times_are_found_by_project(stores: Stores) -> None:
    def add(name: str, begun: float, ended: float | None, project: str = "vision") -> None:
        spec = make_spec(project=project)
        job = stores.add_with_attempt(name, spec=spec, created_at=at(begun), updated_at=at(begun))
        if ended is not None:
            over = job.to(JobState.CANCELLED, reason="was cancelled", now=at(ended))
            stores.apply(over)

    add("before", 0, 10)
    add("into", 0, 20)
    add("within", 12, 18, project="ranking")
    add("lives", 19, None, project="speech")
    add("later", 30, None)

    def existed(since: float, until: float, projects: list[str] | None = None, limit: int = 9) -> list[str]:
        found = stores.chronicles.lifespans(since=at(since), until=at(until), projects=projects, limit=limit)
        return sorted(span.job_id for span in found)

    assert existed(10, 30) == ["into", "lives", "within"]
    assert existed(10, 30, ["vision", "ranking"]) == ["into", "within"]
    assert existed(10, 30, []) == []
    assert len(existed(10, 30, limit=2)) == 2
    (span,) = stores.chronicles.lifespans(since=at(10), until=at(19), projects=["ranking"], limit=9)
    assert (span.job_id, span.updated_at, span.finished_at) == ("within", at(18), at(18))


def test_a_job_that_never_had_an_attempt_is_not_among_those_that_lived(stores: Stores) -> None:
    stores.add("waits")
    over = stores.add("withdrawn").to(JobState.CANCELLED, reason="was cancelled", now=at(20))
    stores.apply(over)
    stores.add_with_attempt("ran")
    (found,) = stores.chronicles.lifespans(since=at(0), until=at(30), projects=None, limit=9)
    assert found.job_id == "ran"
