from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.domain.errors import NotFound
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from tests.builders import (
    NOW,
    at,
    make_attempt,
    make_batch,
    make_exit_record,
    make_journal_event,
    make_progress,
)
from tests.store.harness import Stores
from trainer.contract.clock import render_time
from trainer.contract.exit_record import JournalEvent, Outcome
from trainer.contract.progress import Phase, Progress


def _steps(stores: Stores, job_id: str = "job-1") -> list[int]:
    return [point.step for point in stores.history.metrics(job_id, since_step=-1, points=10_000)]


TOGETHER = pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one transaction"])


def _ingest(stores: Stores, batches: Sequence[JournalBatch], *, together: bool) -> None:
    for some in [batches] if together else [(batch,) for batch in batches]:
        stores.ingest(*some)


def test_a_batch_of_an_unknown_attempt_stores_nothing_of_its_neighbours(stores: Stores) -> None:
    stores.add_with_attempt()
    known = make_batch(progress=[(10, make_progress(1))])
    with pytest.raises(NotFound, match="job-1-a2"):
        stores.ingest(known, make_batch(attempt=2, progress=[(10, make_progress(1))]))
    assert stores.offsets() == {}
    assert _steps(stores) == []


def test_lines_tell_what_training_does(stores: Stores) -> None:
    stores.add_with_attempt()
    started = make_journal_event("generation.started", at=render_time(at(3)), evidence={"world_size": 4})
    stores.journals.ingest(
        [
            make_batch(
                events=[(50, started)],
                progress=[
                    (10, make_progress()),
                    (20, make_progress(1, seconds=10, total_steps=100, world_size=4)),
                    (30, make_progress(3, seconds=14, world_size=4, metrics={"loss": 0.5, "tokens_per_s": 7.0})),
                ],
            )
        ],
        arrived_at=at(60),
    )
    standing = stores.reader.standing("job-1")
    training = standing.training
    assert (training.generation, training.step, training.total_steps, training.phase) == (1, 3, 100, "step")
    assert (training.formed_at, training.progress_at, training.step_s) == (at(3), at(60), 2.0)
    assert (standing.loss, standing.tokens_per_s, standing.world_size) == (0.5, 7.0, 4)
    assert stores.only_supervised().training == training


def test_a_new_generation_may_begin_at_an_earlier_step_and_an_old_one_tells_nothing_more(stores: Stores) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10, make_progress(20))]))
    stores.ingest(make_batch(progress=[(20, make_progress(generation=2)), (30, make_progress(15, generation=2))]))
    stores.ingest(make_batch(replica=1, progress=[(10, make_progress(21, rank=1))]))  # late, of generation 1
    training = stores.only_supervised().training
    assert (training.generation, training.step) == (2, 15)


def test_the_same_restart_told_by_every_agent_counts_once(stores: Stores) -> None:
    stores.add_with_attempt()
    for replica in range(3):
        restarts = [(10 * g, make_journal_event("restart.in_place", generation=g)) for g in (2, 3)]
        stores.ingest(make_batch(replica=replica, events=restarts))
    assert stores.only_supervised().training.restarts == 2
    assert len(stores.events()) == 1 + 6


def test_rank_0_tells_the_phase_of_the_group(stores: Stores) -> None:
    stores.add_with_attempt()
    saving = make_progress(5, phase=Phase.SNAPSHOT)
    stores.ingest(make_batch(progress=[(10, saving)]), make_batch(replica=1, progress=[(10, make_progress(5, rank=1))]))
    assert stores.only_supervised().training.phase == "snapshot"


@TOGETHER
def test_a_worker_is_known_by_its_newest_word(stores: Stores, together: bool) -> None:
    stores.add_with_attempt()
    one, other = make_progress(1), make_progress(1, rank=1, local_rank=1)
    batches = (
        make_batch(progress=[(10, one), (20, other), (30, make_progress(2, memory_bytes=2**40))]),
        make_batch(incarnation=2, progress=[(10, make_progress(9, pid=5000))]),
        make_batch(incarnation=1, progress=[(40, make_progress(3))]),  # read late
    )
    _ingest(stores, batches, together=together)
    workers, _ = stores.history.workers("job-1", limit=10, cursor=None)
    assert [(worker.local_rank, worker.step, worker.pid) for worker in workers] == [(0, 9, 5000), (1, 1, 4711)]


@TOGETHER
def test_a_step_done_again_replaces_its_point_and_a_late_old_one_does_not(stores: Stores, together: bool) -> None:
    job = stores.add_with_attempt()
    stores.apply(job, make_attempt(number=2))
    batches = (
        make_batch(progress=[(10, make_progress(1)), (20, make_progress(2))]),
        make_batch(attempt=2, progress=[(10, make_progress(2, metrics={"loss": 9.0}))]),
        make_batch(progress=[(30, make_progress(2, metrics={"loss": 7.0}))]),
    )
    _ingest(stores, batches, together=together)
    points = stores.history.metrics("job-1", since_step=0, points=10)
    assert [(point.step, point.attempt, point.values["loss"]) for point in points] == [(1, 1, 0.5), (2, 2, 9.0)]


def test_points_come_from_rank_0_or_with_a_loss(stores: Stores) -> None:
    stores.add_with_attempt()
    lines = [
        make_progress(1, rank=1, metrics={"grad_norm": 1.0}),
        make_progress(2, rank=1, metrics={"loss": 1.0}),
        make_progress(3, rank=0, metrics={"grad_norm": 1.0}),
        make_progress(4, metrics={}),
    ]
    stores.ingest(make_batch(progress=[(10 * n, line) for n, line in enumerate(lines, 1)]))
    assert _steps(stores) == [2, 3]


def test_a_loss_that_is_no_number_is_kept_in_the_series(stores: Stores) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10, make_progress(1, metrics={"loss": float("nan"), "lr": float("inf")}))]))
    (point,) = stores.history.metrics("job-1", since_step=0, points=5)
    assert point.values["loss"] != point.values["loss"]
    assert point.values["lr"] == float("inf")
    assert stores.reader.standing("job-1").loss is None


@pytest.mark.parametrize(("points", "expected"), [(1, [10]), (3, [3, 6, 10]), (10, list(range(1, 11))), (0, [10])])
def test_series_are_thinned_evenly_and_end_with_the_newest(stores: Stores, points: int, expected: list[int]) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10 * step, make_progress(step)) for step in range(1, 11)]))
    assert [point.step for point in stores.history.metrics("job-1", since_step=0, points=points)] == expected
    assert [point.step for point in stores.history.metrics("job-1", since_step=8, points=50)] == [9, 10]


def test_a_snapshot_moves_on_and_never_back(stores: Stores) -> None:
    stores.add_with_attempt()

    def told(kind: str, step: int, **evidence: object) -> JournalEvent:
        return make_journal_event(f"snapshot.{kind}", evidence={"name": f"step-{step:08d}-a1-g1", **evidence})

    lines = [
        told("committed", 10, size_bytes=100),
        told("committed", 20, size_bytes=200),
        told("committed", 30, size_bytes=300),
        told("quarantined", 30),
        told("deleted", 10),
        told("quarantined", 10),
        told("committed", 10, size_bytes=100),
        told("failed", 40),
        make_journal_event("snapshot.committed", evidence={"name": "../../etc"}),
    ]
    stores.ingest(make_batch(events=list(enumerate(lines, 1))))
    found, _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert [(one.step, one.state, one.size_bytes) for one in found] == [
        (30, "quarantined", 300),
        (20, "committed", 200),
        (10, "deleted", 100),
    ]
    assert stores.reader.standing("job-1").newest_snapshot == "step-00000020-a1-g1"


@pytest.mark.parametrize("name", [f"step-{2**63}-a1-g1", f"step-00000001-a{2**31}-g1", f"step-00000001-a1-g{2**63}"])
def test_a_snapshot_of_a_wild_name_costs_no_more_than_itself(stores: Stores, name: str) -> None:
    stores.add_with_attempt()
    names = [name, "step-00000002-a1-g1"]
    lines = [make_journal_event("snapshot.committed", evidence={"name": one}) for one in names]
    stores.ingest(make_batch(events=list(enumerate(lines, 1))))
    found, _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert [one.step for one in found] == [2]
    assert len(stores.events()) == 1 + 2


def test_a_size_that_is_no_number_costs_no_more_than_itself(stores: Stores) -> None:
    stores.add_with_attempt()
    evidence: dict[str, object] = {"name": "step-00000001-a1-g1", "step": 1, "size_bytes": True}
    stores.ingest(make_batch(events=[(10, make_journal_event("snapshot.committed", evidence=evidence))]))
    (found,), _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert found.size_bytes is None


def test_events_keep_their_own_time_and_the_order_of_arrival(stores: Stores) -> None:
    stores.add_with_attempt()
    told = make_journal_event("worker.failed", at=render_time(at(-100)), generation=4, evidence={"rank": 3})
    stores.ingest(make_batch(events=[(10, told), (20, make_journal_event(at="yesterday, I think"))]))
    _, failed, vague = stores.events()
    assert (failed.at, failed.attempt, failed.generation, failed.evidence) == (
        at(-100),
        1,
        4,
        {"replica": 0, "rank": 3},
    )
    assert vague.at == NOW


def test_an_event_keeps_whose_word_it_is_whatever_it_says_itself(stores: Stores) -> None:
    stores.add_with_attempt()
    evidence: dict[str, object] = {"log": "y" * 10**6, "replica": 7}
    stores.ingest(make_batch(replica=1, events=[(10, make_journal_event(evidence=evidence))]))
    assert [event.replica for event in stores.events()] == [None, 1]


def test_an_exit_record_is_stored_once(stores: Stores) -> None:
    stores.add_with_attempt()
    for outcome in (Outcome.FAILED, Outcome.SUCCEEDED):
        stores.ingest(make_batch(exit_record=make_exit_record(outcome)))
    assert stores.only_supervised().exits[0].outcome is Outcome.FAILED
    assert stores.offsets() == {(0, 1): JournalOffsets(exited=True)}


@pytest.mark.parametrize(
    "line",
    [
        make_progress(10**30),
        make_progress(1, rank=-(10**30)),
        make_progress(1, memory_bytes=10**30, generation=10**20),
        make_progress(1, at="\0"),
        make_progress(1, metrics={"nul\0": 1.0}),
    ],
)
def test_a_wild_line_costs_no_more_than_itself(stores: Stores, line: Progress) -> None:
    stores.add_with_attempt()
    wild = make_journal_event("k\0\ud800", sentence="s\0", generation=10**30, evidence={"\0": "\ud800", "n": 10**30})
    stores.ingest(make_batch(progress=[(10, line), (20, make_progress(5))], events=[(9, wild)]))
    assert _steps(stores)[-1] == 5
    assert stores.events()[-1].kind == "k"


def test_huge_evidence_is_shortened_and_says_so(stores: Stores) -> None:
    stores.add_with_attempt()
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    evidence: dict[str, object] = {"rank": 3, "log": "y" * 10**6, "deep": deep, "many": list(range(50_000))}
    stores.ingest(make_batch(events=[(10, make_journal_event(evidence=evidence))]))
    kept = stores.events()[-1].evidence
    assert (kept["rank"], kept["shortened"]) == (3, True)
    assert len(str(kept)) < 64 * 1024


def test_lines_that_could_not_be_read_are_passed_over_for_good(stores: Stores) -> None:
    stores.add_with_attempt()
    batch: JournalBatch = replace(make_batch(progress=[(10, make_progress(1))]), progress_to=55)
    stores.ingest(batch)
    assert stores.offsets()[0, 1].progress == 55


def test_a_batch_beyond_what_is_stored_leaves_room_for_the_lines_between(stores: Stores) -> None:
    stores.add_with_attempt()
    beyond = replace(make_batch(progress=[(30, make_progress(3))]), progress_from=20)
    stores.ingest(beyond)
    assert stores.offsets()[0, 1].progress == 0
    between = make_batch(progress=[(10, make_progress(1)), (20, make_progress(2))])
    stores.ingest(between, beyond)
    assert [point.step for point in stores.history.metrics("job-1", since_step=0, points=10)] == [1, 2, 3]


def test_a_snapshot_knows_who_took_it_and_when_it_was_verified(stores: Stores) -> None:
    stores.add_with_attempt()
    names = [f"step-{step:08d}-a1-g1" for step in (10, 20, 30)]
    committed = [
        make_journal_event("snapshot.committed", evidence={"name": name, "world_size": 4, "size_bytes": 9})
        for name in names
    ]
    restored = make_journal_event("restored", at=render_time(at(7)), evidence={"name": names[1], "step": 20})
    deleted = make_journal_event(
        "snapshot.deleted",
        at=render_time(at(8)),
        evidence={"name": names[0], "verified": [names[2], 7, "../etc", f"step-{'9' * 5000}-a1-g1"]},
    )
    foreign = make_journal_event("restored", evidence={"name": "step-00000099-a7-g1"})
    stores.ingest(make_batch(events=list(enumerate([*committed, restored, deleted, foreign], 1))))
    found, _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert [(one.step, one.state, one.world_size, one.verified_at) for one in found] == [
        (30, "committed", 4, at(8)),
        (20, "committed", 4, at(7)),
        (10, "deleted", 4, None),
    ]


@pytest.mark.parametrize("world_size", [True, "4", 10**30, None])
def test_a_world_size_that_is_none_is_left_out(stores: Stores, world_size: object) -> None:
    stores.add_with_attempt()
    evidence: dict[str, object] = {"name": "step-00000001-a1-g1", "world_size": world_size}
    stores.ingest(make_batch(events=[(10, make_journal_event("snapshot.committed", evidence=evidence))]))
    (found,), _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert found.world_size is None


@pytest.mark.parametrize(
    ("told", "kept"), [(0.0, 0.0), (0.93, 0.93), (1.0, 1.0), (1.5, None), (-0.1, None), (float("nan"), None)]
)
def test_a_workers_utilisation_is_a_share(stores: Stores, told: float, kept: float | None) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10, make_progress(1, utilisation=told))]))
    (found,), _ = stores.history.workers("job-1", limit=10, cursor=None)
    assert found.utilisation == kept
