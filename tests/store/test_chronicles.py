from __future__ import annotations

from itertools import count

import pytest

from orchestrator.domain.accounting.life import Kept
from orchestrator.domain.job.job import JobState
from orchestrator.ports.journals import JournalBatch
from tests.builders import at, make_batch, make_event, make_journal_event, make_progress, make_spec
from tests.store.harness import Stores
from trainer.contract.clock import render_time


def trained(stores: Stores, steps: range, *, generation: int, restored: int | None = None) -> None:
    """One second for each step; every third stood still for a snapshot for a quarter of it."""
    offsets, told = count(generation * 10_000), [make_journal_event("agent.started", generation=generation)]
    if restored is not None:
        told.append(make_journal_event("restored", generation=generation, evidence={"step": restored}))
    lines = [
        make_progress(
            step,
            seconds=100 * generation + step,
            generation=generation,
            metrics={"loss": 1.0, **({} if step % 3 else {"snapshot_s": 0.25})},
        )
        for step in steps
    ]
    batch = make_batch(
        progress=[(next(offsets), line) for line in lines], events=[(next(offsets), event) for event in told]
    )
    stores.ingest(beginning_at_once(batch, generation))


def beginning_at_once(batch: JournalBatch, life: int) -> JournalBatch:
    """As the journals of the replica's `life`-th agent."""
    return JournalBatch(
        key=batch.key,
        replica=batch.replica,
        incarnation=life,
        progress=batch.progress,
        progress_to=batch.progress_to,
        events=batch.events,
        events_to=batch.events_to,
        exit_record=None,
    )


def kept(stores: Stores) -> dict[tuple[int, int], Kept]:
    return dict(stores.chronicles.chronicle("job-1").kept)


def test_steps_that_were_done_again_count_where_they_were_done_last(stores: Stores) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(5, 8), generation=2, restored=4)
    assert kept(stores) == {
        (1, 1): Kept(steps=4, first_at=at(101), last_at=at(104), stall_s=0.25, snapshots=1),
        (1, 2): Kept(steps=3, first_at=at(205), last_at=at(207), stall_s=0.25, snapshots=1),
    }


def test_a_restore_takes_back_what_lies_behind_it_before_a_step_is_done_again(stores: Stores) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(0), generation=2, restored=6)
    assert kept(stores) == {(1, 1): Kept(steps=6, first_at=at(101), last_at=at(106), stall_s=0.5, snapshots=2)}


def test_a_beginning_from_nothing_takes_back_all(stores: Stores) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(1, 3), generation=2)
    assert kept(stores) == {(1, 2): Kept(steps=2, first_at=at(201), last_at=at(202))}


def test_a_chronicle_holds_the_events_that_tell_of_a_life_and_when_the_newest_step_was(stores: Stores) -> None:
    job = stores.add_with_attempt()
    stores.apply(job, None, make_event("webhook.test"), make_event("job.state", evidence={"state": "RUNNING"}))
    trained(stores, range(1, 3), generation=1)
    chronicle = stores.chronicles.chronicle("job-1")
    assert [event.kind for event in chronicle.events] == ["job.state", "agent.started"]
    assert (chronicle.job.id, len(chronicle.attempts), chronicle.heard_at) == ("job-1", 1, {1: at(102)})
    assert render_time(chronicle.heard_at[1])


def test_a_chronicle_knows_of_a_snapshot_while_it_is_there(stores: Stores) -> None:
    stores.add_with_attempt()
    assert not stores.chronicles.chronicle("job-1").has_snapshot
    known = []
    for place, what in enumerate(("committed", "quarantined", "deleted"), 1):
        event = make_journal_event(f"snapshot.{what}", evidence={"name": "step-00000010-a1-g1"})
        stores.ingest(make_batch(events=[(place, event)]))
        known.append(stores.chronicles.chronicle("job-1").has_snapshot)
    assert known == [True, True, False]


@pytest.mark.parametrize("step", [10**30, -(10**30), True, "many"])
def test_a_restore_of_a_step_that_no_database_holds_is_passed_over(stores: Stores, step: object) -> None:
    stores.add_with_attempt()
    trained(stores, range(1, 4), generation=1)
    event = make_journal_event("restored", generation=2, evidence={"step": step})
    stores.ingest(beginning_at_once(make_batch(events=[(50_000, event)]), 2))
    assert sum(each.steps for each in kept(stores).values()) == 3


def test_the_jobs_that_lived_between_two_moments_are_found_by_project(stores: Stores) -> None:
    def add(name: str, begun: float, ended: float | None, project: str = "vision") -> None:
        spec = make_spec(project=project)
        job = stores.add(name, spec=spec, created_at=at(begun), updated_at=at(begun))
        if ended is not None:
            over = job.to(JobState.CANCELLED, reason="was cancelled", now=at(ended))
            stores.apply(over)

    add("before", 0, 10)
    add("into", 0, 20)
    add("within", 12, 18)
    add("lives", 19, None, project="speech")
    add("later", 30, None)

    def lived(since: float, until: float, projects: list[str] | None = None, limit: int = 9) -> list[str]:
        found = stores.chronicles.lived(since=at(since), until=at(until), projects=projects, limit=limit)
        return [span.job_id for span in found]

    assert lived(10, 30) == ["lives", "within", "into"]
    assert lived(10, 30, ["vision"]) == ["within", "into"]
    assert lived(10, 30, []) == []
    assert lived(10, 30, limit=1) == ["lives"]
    (span,) = stores.chronicles.lived(since=at(10), until=at(19), projects=None, limit=1)
    assert (span.job_id, span.updated_at, span.finished_at) == ("within", at(18), at(18))
