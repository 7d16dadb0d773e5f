from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.attempt import AttemptKey
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


def test_a_batch_of_an_unknown_attempt_stores_nothing(stores: Stores) -> None:
    stores.add_with_attempt()
    known = make_batch(progress=[(10, make_progress(1))])
    with pytest.raises(NotFound, match="job-1-a2"):
        stores.ingest(known, make_batch(attempt=2, progress=[(10, make_progress(1))]))
    assert stores.offsets() == {}
    assert _steps(stores) == []


@pytest.mark.parametrize("name", ["job-1\0", "\0", "job-\ud800"])
def test_a_job_id_that_no_database_can_store_is_unknown(stores: Stores, name: str) -> None:
    stores.add_with_attempt("job-1")
    assert stores.journals.offsets([AttemptKey(name, 1)]) == {}
    with pytest.raises(NotFound):
        stores.ingest(make_batch(name))


def test_lines_update_the_training_summary(stores: Stores) -> None:
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


def test_a_new_generation_may_start_at_an_earlier_step_and_late_lines_are_ignored(stores: Stores) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10, make_progress(20))]))
    stores.ingest(make_batch(progress=[(20, make_progress(generation=2)), (30, make_progress(15, generation=2))]))
    stores.ingest(make_batch(replica=1, progress=[(10, make_progress(21, rank=1))]))  # late, of generation 1
    training = stores.only_supervised().training
    assert (training.generation, training.step) == (2, 15)


def test_rank_0_reports_the_phase_of_the_group(stores: Stores) -> None:
    stores.add_with_attempt()
    saving = make_progress(5, phase=Phase.SNAPSHOT)
    stores.ingest(make_batch(progress=[(10, saving)]), make_batch(replica=1, progress=[(10, make_progress(5, rank=1))]))
    assert stores.only_supervised().training.phase == "snapshot"


@TOGETHER
def test_a_worker_has_its_newest_report(stores: Stores, together: bool) -> None:
    stores.add_with_attempt()
    one, other = make_progress(1), make_progress(1, rank=1, local_rank=1)
    batches = (
        make_batch(progress=[(10, one), (20, other), (30, make_progress(2, memory_bytes=2**40))]),
        make_batch(incarnation=2, progress=[(10, make_progress(9, pid=5000))]),
        make_batch(incarnation=1, progress=[(40, make_progress(3))]),  # late
    )
    _ingest(stores, batches, together=together)
    workers, _ = stores.history.workers("job-1", limit=10, cursor=None)
    assert [(worker.local_rank, worker.step, worker.pid) for worker in workers] == [(0, 9, 5000), (1, 1, 4711)]


@TOGETHER
def test_a_repeated_step_replaces_its_point_but_a_late_report_does_not(stores: Stores, together: bool) -> None:
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


def test_points_are_stored_from_rank_0_or_with_a_loss(stores: Stores) -> None:
    stores.add_with_attempt()
    lines = [
        make_progress(1, rank=1, metrics={"grad_norm": 1.0}),
        make_progress(2, rank=1, metrics={"loss": 1.0}),
        make_progress(3, rank=0, metrics={"grad_norm": 1.0}),
        make_progress(4, metrics={}),
    ]
    stores.ingest(make_batch(progress=[(10 * n, line) for n, line in enumerate(lines, 1)]))
    assert _steps(stores) == [2, 3]


def test_a_loss_that_is_not_finite_is_stored(stores: Stores) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10, make_progress(1, metrics={"loss": float("nan"), "lr": float("inf")}))]))
    (point,) = stores.history.metrics("job-1", since_step=0, points=5)
    assert point.values["loss"] != point.values["loss"]
    assert point.values["lr"] == float("inf")
    assert stores.reader.standing("job-1").loss is None


@pytest.mark.parametrize(("points", "expected"), [(1, [10]), (3, [3, 6, 10]), (10, list(range(1, 11))), (0, [10])])
def test_points_are_thinned_evenly_and_end_with_the_newest(stores: Stores, points: int, expected: list[int]) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10 * step, make_progress(step)) for step in range(1, 11)]))
    assert [point.step for point in stores.history.metrics("job-1", since_step=0, points=points)] == expected
    assert [point.step for point in stores.history.metrics("job-1", since_step=8, points=50)] == [9, 10]


def test_the_state_of_a_snapshot_never_moves_back(stores: Stores) -> None:
    stores.add_with_attempt()

    def snapshot(kind: str, step: int, **evidence: object) -> JournalEvent:
        return make_journal_event(f"snapshot.{kind}", evidence={"name": f"step-{step:08d}-a1-g1", **evidence})

    lines = [
        snapshot("committed", 10, size_bytes=100),
        snapshot("committed", 20, size_bytes=200),
        snapshot("committed", 30, size_bytes=300),
        snapshot("quarantined", 30),
        snapshot("deleted", 10),
        snapshot("quarantined", 10),
        snapshot("committed", 10, size_bytes=100),
        snapshot("failed", 40),
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


@pytest.mark.parametrize("name", [f"step-{2**53}-a1-g1", f"step-00000001-a{2**31}-g1", f"step-00000001-a1-g{2**53}"])
def test_a_snapshot_with_an_invalid_name_is_skipped(stores: Stores, name: str) -> None:
    stores.add_with_attempt()
    names = [name, "step-00000002-a1-g1"]
    lines = [make_journal_event("snapshot.committed", evidence={"name": one}) for one in names]
    stores.ingest(make_batch(events=list(enumerate(lines, 1))))
    found, _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert [one.step for one in found] == [2]
    assert len(stores.events()) == 1 + 2


def test_events_keep_their_time_and_their_order(stores: Stores) -> None:
    stores.add_with_attempt()
    event = make_journal_event("worker.failed", at=render_time(at(-100)), generation=4, evidence={"rank": 3})
    stores.ingest(make_batch(events=[(10, event), (20, make_journal_event(at="yesterday, I think"))]))
    _, failed, vague = stores.events()
    assert (failed.at, failed.attempt, failed.generation, failed.evidence) == (
        at(-100),
        1,
        4,
        {"replica": 0, "rank": 3},
    )
    assert vague.at == NOW


def test_an_event_has_the_replica_that_reported_it(stores: Stores) -> None:
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
        make_progress(1, generation=-(10**30)),
        make_progress(1, memory_bytes=10**30, generation=10**20),
        make_progress(1, at="\0"),
        make_progress(1, metrics={"nul\0": 1.0}),
    ],
)
def test_an_invalid_line_does_not_affect_others(stores: Stores, line: Progress) -> None:
    stores.add_with_attempt()
    wild = make_journal_event("k\0\ud800", sentence="s\0", generation=10**30, evidence={"\0": "\ud800", "n": 10**30})
    stores.ingest(make_batch(progress=[(10, line), (20, make_progress(5))], events=[(9, wild)]))
    assert _steps(stores)[-1] == 5
    assert stores.events()[-1].kind == "k"


def test_large_evidence_is_shortened(stores: Stores) -> None:
    stores.add_with_attempt()
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    evidence: dict[str, object] = {"rank": 3, "log": "y" * 10**6, "deep": deep, "many": list(range(50_000))}
    stores.ingest(make_batch(events=[(10, make_journal_event(evidence=evidence))]))
    kept = stores.events()[-1].evidence
    assert (kept["rank"], kept["shortened"]) == (3, True)
    assert len(str(kept)) < 64 * 1024


def test_a_batch_after_a_gap_is_not_stored(stores: Stores) -> None:
    stores.add_with_attempt()
    beyond = make_batch(progress=[(30, make_progress(3))])._replace(progress_from=20)
    stores.ingest(beyond)
    assert stores.offsets()[0, 1].progress == 0
    between = make_batch(progress=[(10, make_progress(1)), (20, make_progress(2))])
    stores.ingest(between, beyond)
    assert [point.step for point in stores.history.metrics("job-1", since_step=0, points=10)] == [1, 2, 3]


def test_a_snapshot_has_its_world_size_and_the_time_of_its_verification(stores: Stores) -> None:
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


@pytest.mark.parametrize("number", [True, "4", 10**30, None])
def test_invalid_numbers_of_a_snapshot_are_left_out(stores: Stores, number: object) -> None:
    stores.add_with_attempt()
    evidence: dict[str, object] = {"name": "step-00000001-a1-g1", "world_size": number, "size_bytes": number}
    stores.ingest(make_batch(events=[(10, make_journal_event("snapshot.committed", evidence=evidence))]))
    (found,), _ = stores.history.snapshots("job-1", limit=10, cursor=None)
    assert (found.world_size, found.size_bytes) == (None, None)


@pytest.mark.parametrize(
    ("reported", "stored"), [(0.0, 0.0), (0.93, 0.93), (1.0, 1.0), (1.5, None), (-0.1, None), (float("nan"), None)]
)
def test_a_utilization_outside_0_to_1_is_left_out(stores: Stores, reported: float, stored: float | None) -> None:
    stores.add_with_attempt()
    stores.ingest(make_batch(progress=[(10, make_progress(1, utilisation=reported))]))
    (found,), _ = stores.history.workers("job-1", limit=10, cursor=None)
    assert found.utilisation == stored
