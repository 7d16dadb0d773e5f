"""The limits of row_limits on what a job can store in the database."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from orchestrator.domain.explanation import row_limits as bounds
from orchestrator.domain.explanation.row_limits import Room
from orchestrator.store import history_reader, journal_rows
from orchestrator.store.tables import Base, EventRow, JournalRow, MetricRow, SnapshotRow, TrainingRow, WorkerRow
from tests.builders import NOW, make_attempt, make_batch, make_exit_record, make_journal_event, make_progress
from tests.store.harness import Stores
from trainer.contract.exit_record import JournalEvent
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.progress import Progress

LIMIT = "limit.reached"


def count(stores: Stores, table: type[Base]) -> int:
    with stores.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def kinds(stores: Stores) -> Counter[str]:
    return Counter(event.kind for event in stores.events())


def limits(stores: Stores) -> list[str]:
    return [event.sentence for event in stores.events() if event.kind == LIMIT]


def report(
    stores: Stores, events: Sequence[JournalEvent], *, start: int = 0, attempt: int = 1, replica: int = 0
) -> int:
    """Report events. Returns the offset after the last line."""
    lines = [(start + place, event) for place, event in enumerate(events, 1)]
    stores.ingest(make_batch(attempt=attempt, replica=replica, events=lines))
    return start + len(lines)


def steps(stores: Stores, lines: Sequence[Progress], *, replica: int = 0) -> None:
    stores.ingest(make_batch(replica=replica, progress=list(enumerate(lines, 1))))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits."""
    monkeypatch.setattr(bounds, "_ROWS", {Room.ACCOUNT: 20, Room.FIRSTS: 6, Room.SNAPSHOTS: 10, Room.NOTES: 10})
    monkeypatch.setattr(bounds, "_ROWS_PER_NODE", {})


@pytest.mark.parametrize("replica", [4, 10**9])
def test_a_replica_that_was_never_launched_adds_one_event_and_no_rows(stores: Stores, replica: int) -> None:
    stores.add_with_attempt(nodes="2:4")
    event = make_journal_event("worker.failed")
    batch = make_batch(
        replica=replica, events=[(9, event)], progress=[(9, make_progress(1))], exit_record=make_exit_record()
    )
    for _ in range(3):
        stores.ingest(batch)
    assert [count(stores, table) for table in (JournalRow, WorkerRow, MetricRow)] == [0, 0, 0]
    assert limits(stores) == [
        f"Attempt 1 was launched on 4 nodes and has no replica {replica}. Its journals are not stored."
    ]
    assert stores.only_supervised().exits == {}


def test_a_replica_has_at_most_a_thousand_incarnations(stores: Stores) -> None:
    stores.add_with_attempt()
    stores.ingest(*(make_batch(incarnation=life) for life in (1, bounds.MOST_LIVES, bounds.MOST_LIVES + 1, 10**9)))
    assert set(stores.offsets()) == {(0, 1), (0, bounds.MOST_LIVES)}
    assert len(limits(stores)) == 1


def test_a_refused_replica_does_not_affect_others(stores: Stores) -> None:
    stores.add_with_attempt(nodes="1")
    batches = [make_batch(replica=n, progress=[(9, make_progress(1))], reported=True) for n in (7, 0, 8)]
    refused = stores.journals.ingest(batches, arrived_at=batches and stores.jobs.get("job-1").created_at)
    assert sorted(refused) == [0, 2]
    assert refused[0] == "Attempt 1 was launched on 1 node and has no replica 7."
    assert set(stores.offsets()) == {(0, 1)}
    assert limits(stores) == [], "an HTTP report gets an error instead"


def test_events_are_limited_and_an_event_says_so(stores: Stores) -> None:
    stores.add_with_attempt(nodes="1")
    noise = [make_journal_event("metadata.noted")] * 6000
    end = report(stores, noise)
    assert report(stores, noise, start=end) == 12_000
    found = kinds(stores)
    assert found["metadata.noted"] == 10_100
    assert limits(stores) == [
        "Attempt 1 reported more than 10,100 events, or 19 MiB of them. Later ones are not stored."
    ]
    assert stores.events()[-1].kind == LIMIT
    assert stores.offsets()[0, 1].events == 12_000, "the journal is read on"


@pytest.mark.usefixtures("small")
def test_noise_displaces_no_event_that_decisions_or_accounts_need(stores: Stores) -> None:
    stores.add_with_attempt()
    noise = [make_journal_event(kind) for kind in ("a", "metadata.noted", "agent.exited", "snapshot.failed")] * 50
    end = report(stores, noise)
    name = {"name": "step-00000005-a1-g1"}
    story = ("agent.started", "generation.started", "worker.failed", "restart.in_place", "restored")
    needed = [make_journal_event(kind, generation=2, evidence=name) for kind in (*story, "snapshot.committed")]
    end = report(stores, [*needed, *noise], start=end)
    stores.ingest(make_batch(exit_record=make_exit_record()))
    found = stores.only_supervised()
    assert set(story) <= set(kinds(stores))
    assert (found.training.restarts, found.training.snapshots, found.training.restored) == (1, 1, name["name"])
    assert found.exits.keys() == {0}
    assert stores.history.has_snapshot("job-1", name["name"])
    assert len(limits(stores)) == 2, "one for events, one for events about snapshots"


@pytest.mark.usefixtures("small")
def test_when_the_account_is_full_the_first_events_of_each_generation_are_stored(stores: Stores) -> None:
    stores.add_with_attempt()
    for generation in range(1, 12):
        report(stores, [make_journal_event("generation.started", generation=generation)] * 3, start=3 * generation - 3)
    stored = Counter(event.generation for event in stores.events() if event.kind == "generation.started")
    assert [stored[generation] for generation in range(1, 12)] == [3] * 6 + [2] + [1] * 4
    report(stores, [make_journal_event("restart.in_place", generation=g) for g in range(20, 40)], start=100)
    assert stores.only_supervised().training.restarts == 20, "events that are not stored still count"
    assert [sentence.split(", or")[0] for sentence in limits(stores)] == [
        "Attempt 1 reported more than 20 events about its generations",
        "Attempt 1 reported more than 6 first events of later generations",
    ]


@pytest.mark.usefixtures("small")
def test_a_job_has_the_limits_of_four_attempts(stores: Stores) -> None:
    job = stores.add()
    for number in range(1, 8):
        stores.apply(job, make_attempt(number=number))
        report(stores, [make_journal_event("a")] * 50, attempt=number)
    assert kinds(stores)["a"] == 4 * 10
    assert limits(stores)[-1].startswith("This job reported more than 40 events, or 0 MiB of them.")
    assert len(limits(stores)) == 7


@pytest.mark.usefixtures("small")
def test_a_chronicle_has_at_most_as_many_events_as_the_limits_allow(stores: Stores) -> None:
    job = stores.add()
    for number in range(1, 12):
        stores.apply(job, make_attempt(number=number))
        noise = [make_journal_event(kind, generation=n) for n in range(50) for kind in ("worker.failed", "restored")]
        report(stores, noise, attempt=number)
    assert len(stores.chronicles.chronicle("job-1").events) == bounds.JOB_SHARE * (20 + 6)


def test_long_evidence_counts_as_many_events(stores: Stores) -> None:
    stores.add_with_attempt(nodes="1")
    report(stores, [make_journal_event("a", evidence={"text": "x" * 60_000}, sentence="y" * 10**4)] * 500)
    assert kinds(stores)["a"] < 350
    assert max(len(event.sentence) for event in stores.events()) < 2100
    assert len(limits(stores)) == 1


@pytest.mark.usefixtures("small")
def test_long_evidence_counts_as_many_events_of_a_job(stores: Stores) -> None:
    job = stores.add()
    for number in range(1, 8):
        stores.apply(job, make_attempt(number=number))
        report(stores, [make_journal_event("a", evidence={"text": "x" * 15_000})], attempt=number)
    assert kinds(stores)["a"] < 7
    assert limits(stores)[-1].startswith("This job reported more than 40 events, or 0 MiB of them.")


def test_names_of_metrics_are_limited_except_well_known_ones(stores: Stores) -> None:
    stores.add_with_attempt()
    steps(stores, [make_progress(n, metrics={f"noise-{n}-{m}": 1.0 for m in range(10)}) for n in range(100)])
    stores.ingest(
        make_batch(progress=[(200, make_progress(100, metrics={"loss": 2.0, "new": 1.0}))]),
        make_batch(progress=[(300, make_progress(101, metrics={"noise-0-0": 2.0, "n" * 101: 1.0}))]),
        make_batch(progress=[(400, make_progress(102, metrics={"new": 1.0}))]),
    )
    points = stores.history.metrics("job-1", since_step=-1, points=1000)
    assert len({name for point in points for name in point.values}) == bounds.MOST_NAMES + 1
    assert [dict(point.values) for point in points[-2:]] == [{"loss": 2.0}, {"noise-0-0": 2.0}]
    assert count(stores, MetricRow) == 50 + 2, "a point without a known name is not stored"


def test_metrics_of_many_steps_are_thinned_and_an_event_says_so(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LEVEL_POINTS", 100)
    stores.add_with_attempt()
    for first in range(0, 1000, 20):
        lines = [make_progress(step) for step in range(first, first + 20)]
        stores.ingest(make_batch(progress=list(enumerate(lines, first + 1)), progress_from=first))
    assert count(stores, MetricRow) == 337  # a hundred of every step, second, fourth; then every eighth
    assert [sentence.rpartition(". ")[2] for sentence in limits(stores)] == [
        f"From now on, one step in {stride} is stored." for stride in (2, 4, 8)
    ]
    assert stores.only_supervised().training.step == 999


def test_all_steps_of_thinned_metrics_count(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LEVEL_POINTS", 100)
    stores.add_with_attempt()
    lines = [make_progress(step, seconds=step, generation=1 + step // 500) for step in range(1, 1001)]
    for first in range(0, 1000, 20):
        stores.ingest(
            make_batch(progress=list(enumerate(lines[first : first + 20], first + 1)), progress_from=first),
        )
    kept = stores.chronicles.chronicle("job-1").kept
    assert [kept[1, generation].steps for generation in (1, 2)] == pytest.approx([499, 500], rel=0.03)
    assert kept[1, 1].began_at == pytest.approx(NOW, abs=timedelta(seconds=4))


@pytest.mark.parametrize("stride", [1, 7])
def test_points_of_many_metrics_are_found_by_searches(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(history_reader, "_MANY", 300)
    stores.add_with_attempt()
    lines = [make_progress(step * stride, generation=1) for step in range(1, 1001) if step % 50]
    steps(stores, lines)
    found = [point.step for point in stores.history.metrics("job-1", since_step=stride, points=20)]
    assert 18 <= len(found) <= 20
    assert found == sorted(set(found))
    assert found[-1] == 999 * stride
    gaps = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert max(gaps) <= 54 * stride
    (only,) = stores.history.metrics("job-1", since_step=-1, points=1)
    assert only.step == 999 * stride


def test_metrics_of_arbitrary_steps_are_limited(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LEVEL_POINTS", 10)
    stores.add_with_attempt()
    stall = {"snapshot_s": 1.0}
    for part in range(20):
        stores.ingest(
            make_batch(
                incarnation=part + 1,
                progress=[(n, make_progress((part * 1000 + n) << 13, metrics=stall)) for n in range(1, 50)],
            )
        )
    assert count(stores, MetricRow) == bounds.LEVELS * 10
    assert limits(stores)[-1] == "This job has reached the limit of stored metrics. Later ones are not stored."


def test_steps_with_a_pause_for_a_snapshot_are_stored_even_if_others_are_thinned(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LEVEL_POINTS", 10)
    stores.add_with_attempt()
    steps(stores, [*map(make_progress, range(11)), make_progress(13, metrics={"snapshot_s": 1.0}), make_progress(15)])
    assert [point.step for point in stores.history.metrics("job-1", since_step=8, points=100)] == [9, 10, 13]


def test_metrics_of_other_ranks_are_stored_only_if_rank_0_has_no_loss(stores: Stores) -> None:
    stores.add_with_attempt()
    lines = [make_progress(1, rank=1), make_progress(2, rank=1, metrics={"noise": 1.0})]
    steps(stores, [*lines, make_progress(3), make_progress(4, rank=1), make_progress(5, rank=1, generation=2)])
    assert [point.step for point in stores.history.metrics("job-1", since_step=-1, points=100)] == [1, 3, 5]


def test_workers_of_a_node_are_limited(stores: Stores) -> None:
    stores.add_with_attempt(nodes="1")
    steps(stores, [make_progress(1, local_rank=n, rank=n) for n in range(-5, 1000)])
    assert count(stores, WorkerRow) == bounds.MOST_WORKERS


def test_snapshots_of_a_job_are_limited_and_deleted_ones_go_first(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_rows, "MOST_SNAPSHOTS", 10)
    stores.add_with_attempt()

    def snapshot(kind: str, step: int) -> JournalEvent:
        return make_journal_event(f"snapshot.{kind}", evidence={"name": f"step-{step:08d}-a1-g1"})

    end = report(
        stores, [snapshot("committed", step) for step in range(8)] + [snapshot("deleted", 5), snapshot("deleted", 6)]
    )
    report(stores, [snapshot("committed", step) for step in range(8, 14)], start=end)
    found, _ = stores.history.snapshots("job-1", limit=100, cursor=None)
    assert [one.step for one in found] == [13, 12, 11, 10, 9, 8, 7, 4, 3, 2]
    assert count(stores, SnapshotRow) == 10


def test_an_exit_record_is_shortened_like_evidence(stores: Stores) -> None:
    stores.add_with_attempt()
    long = "x" * 300_000
    failure = Failure(kind=FailureKind.APPLICATION, message=long, traceback=long, signal=long)
    stores.ingest(make_batch(exit_record=make_exit_record(failure=failure)))
    with stores.database.read() as session:
        row = session.scalar(select(JournalRow))
    assert row is not None
    assert len(str(row.exit_record)) < 64 * 1024
    kept = stores.only_supervised().exits[0].failure
    assert kept is not None
    assert kept.kind is FailureKind.APPLICATION
    assert kept.message.startswith("xxx")


def test_all_rows_of_a_job_are_deleted_with_it(stores: Stores) -> None:
    job = stores.add_with_attempt()
    report(stores, [make_journal_event("a")])
    steps(stores, [make_progress(1)])
    with stores.database.write() as session:
        session.connection().exec_driver_sql(f"DELETE FROM jobs WHERE id = '{job.id}'")
    tables = (EventRow, JournalRow, MetricRow, SnapshotRow, TrainingRow, WorkerRow)
    assert [count(stores, table) for table in tables] == [0] * len(tables)
