"""Reports are accepted in groups. Each is stored before its answer, and an invalid one does not affect the others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.domain.errors import InvalidSpec, NotFound, StoreUnavailable, Unavailable
from orchestrator.domain.job.masking import MASK, Mask
from orchestrator.intake import reception as reception_module
from orchestrator.intake.intake import Intake
from orchestrator.intake.reception import Reception
from orchestrator.intake.report_queue import ReportQueue
from orchestrator.ports.journals import JournalBatch
from orchestrator.ports.supervision import Change
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.wire.reports import DesiredView, ReportBody
from tests.builders import make_attempt, make_event, make_job
from tests.fakes.memory_leases import MemoryLeaseStore
from trainer.contract.exit_record import Outcome


def a_report(job_id: str = "job-1", attempt: int = 1, **fields: object) -> ReportBody:
    return ReportBody.model_validate({"job_id": job_id, "attempt": attempt, "replica": 0, "incarnation": 1, **fields})


@pytest.fixture
def store() -> MemoryStore:
    """A store with three jobs. The second job has two attempts."""
    clock, store = VirtualClock(), MemoryStore()
    lease = MemoryLeaseStore(store, clock).acquire("local", "test", ttl_s=1000)
    assert lease is not None
    supervisor = MemorySupervisorStore(store, clock, lease)
    for number in (1, 2, 3):
        job = make_job(f"job-{number}")
        store.add(job, idempotency_key=None, digest="", event=make_event())
        supervisor.apply(Change(job=job, attempt=make_attempt(job.id), events=[]))
    supervisor.apply(Change(job=make_job("job-2"), attempt=make_attempt("job-2", 2), events=[]))
    return store


@pytest.fixture
def intake(store: MemoryStore) -> Intake:
    return Intake(store, store, VirtualClock(), lambda _: Path("/nowhere"))


def test_each_report_of_a_group_has_its_own_answer(intake: Intake, store: MemoryStore) -> None:
    ending = {"outcome": "succeeded", "at": "2026-01-01T00:00:00Z", "generation": 1, "restarts": 0}
    answers = intake.accept(
        [
            a_report(exit_record=ending),
            a_report("job-2"),
            a_report("nobody"),
            a_report(progress=["{}"], progress_to=99),
            a_report("job-2", 2),
        ]
    )
    assert answers[0] == DesiredView(state="run")
    assert answers[1] == DesiredView(state="stop"), "there is a newer attempt"
    assert isinstance(answers[2], NotFound)
    assert isinstance(answers[3], InvalidSpec)
    assert answers[4] == DesiredView(state="run")
    (journal,) = store.tables.journals[make_attempt().key].values()
    assert journal.exit_record is not None
    assert journal.exit_record.outcome is Outcome.SUCCEEDED


def test_a_report_without_a_line_is_heard_and_one_that_is_refused_is_not(intake: Intake, store: MemoryStore) -> None:
    intake.accept([a_report(), a_report("job-3", progress=["{}"], progress_to=99)])
    told = store.tables.summaries
    assert told[make_attempt().key].heard_at == VirtualClock().now()
    assert told[make_attempt("job-3").key].heard_at is None


def test_reports_are_stored_with_masked_secrets(store: MemoryStore) -> None:
    secret = "hunter2-hunter2"
    intake = Intake(store, store, VirtualClock(), lambda _: Path("/nowhere"), masks=lambda _: {"job-1": Mask([secret])})
    event = {"at": "2026-01-01T00:00:00Z", "kind": "worker.failed", "sentence": secret, "evidence": {"a": secret}}
    failure = {"kind": "application", "message": secret}
    ending = {"outcome": "failed", "at": "2026-01-01T00:00:00Z", "generation": 1, "restarts": 0, "failure": failure}
    line = json.dumps(event)
    for job_id in ("job-1", "job-3"):
        intake.accept([a_report(job_id, events=[line], events_to=len(line) + 1, exit_record=ending)])

    def stored(job_id: str) -> str:
        events = [event for of, event in store.tables.events if of == job_id and event.kind == "worker.failed"]
        return repr([events, store.tables.journals[make_attempt(job_id).key]])

    assert secret not in stored("job-1")
    assert MASK in stored("job-1")
    assert secret in stored("job-3"), "a job of another project"


class Gate:
    """An intake that stores a group only while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.groups: list[int] = []
        self.jobs: list[str] = []  # of the reports, in order of arrival
        self.error: Exception | None = None

    def accept(self, bodies: Sequence[ReportBody]) -> list[DesiredView | NotFound | InvalidSpec]:
        self.groups.append(len(bodies))
        self.jobs += [body.job_id for body in bodies]
        assert self.open.wait(300)
        if self.error is not None:
            raise self.error
        return [DesiredView(number=body.replica) for body in bodies]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def reception(gate: Gate) -> Iterator[Reception]:
    reception = Reception(gate, gather_s=0.05)  # type: ignore[arg-type]
    reception.start()
    yield reception
    gate.open.set()
    reception.stop()


def test_reports_that_come_together_are_stored_together_and_answered_after_it(gate: Gate, reception: Reception) -> None:
    futures = [reception.receive(a_report(replica=number)) for number in range(20)]
    assert not any(future.done() for future in futures)
    gate.open.set()
    assert [future.result(10).number for future in futures] == list(range(20))
    assert sum(gate.groups) == 20
    assert len(gate.groups) <= 2


def test_a_store_that_does_not_answer_fails_the_group_and_not_the_next_one(gate: Gate, reception: Reception) -> None:
    gate.open.set()
    gate.error = StoreUnavailable("the disk is full")
    with pytest.raises(StoreUnavailable):
        reception.receive(a_report()).result(10)
    gate.error = None
    assert reception.receive(a_report(replica=3)).result(10).number == 3


def test_too_many_are_asked_to_come_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Reception(gate)  # type: ignore[arg-type]
    monkeypatch.setattr(small, "_queue", ReportQueue(most=3, most_of_a_job=2))
    assert not small.receive(a_report()).done()
    assert not small.receive(a_report()).done()
    with pytest.raises(Unavailable):
        small.receive(a_report()).result(0)
    assert not small.receive(a_report("job-2")).done(), "one job cannot take all the room"
    with pytest.raises(Unavailable):
        small.receive(a_report("job-3")).result(0)


def test_a_job_that_reports_much_makes_no_other_wait_for_more_than_one_of_its_reports(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception_module, "_MOST_LINES", 10)
    reception = Reception(gate, gather_s=0.05)  # type: ignore[arg-type]
    many = ["{}"] * 10
    flood = [reception.receive(a_report(replica=number, events=many)) for number in range(100)]
    small = [reception.receive(a_report(f"job-{number}")) for number in range(2, 5)]
    gate.open.set()
    reception.start()
    for future in (*small, *flood):
        future.result(30)
    reception.stop()
    assert gate.jobs[:5] == ["job-1", "job-2", "job-3", "job-4", "job-1"]
    assert max(gate.groups[2:]) == 1, "a group is as large as its lines allow"


def test_a_report_that_cannot_be_stored_does_not_fail_its_group(
    intake: Intake, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = store.ingest

    def refuse(batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        if any(batch.key.job_id == "job-3" for batch in batches):
            raise TypeError("a defect of ours")
        return ingest(batches, arrived_at=arrived_at)

    monkeypatch.setattr(store, "ingest", refuse)
    answers = intake.accept([a_report(), a_report("job-3"), a_report("job-2", 2), a_report("nobody")])
    assert [type(answer) for answer in answers] == [DesiredView, TypeError, DesiredView, NotFound]


def test_one_report_of_an_unknown_job_costs_its_group_few_transactions(
    intake: Intake, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    ingest = store.ingest

    def note(batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        sizes.append(len(batches))
        return ingest(batches, arrived_at=arrived_at)

    monkeypatch.setattr(store, "ingest", note)
    answers = intake.accept([*(a_report() for _ in range(255)), a_report("nobody")])
    assert [type(answer) for answer in answers] == [DesiredView] * 255 + [NotFound]
    assert len(sizes) == 1 + 2 * 8


def test_whoever_waits_is_answered_before_the_end(gate: Gate) -> None:
    reception = Reception(gate, gather_s=5)  # type: ignore[arg-type]
    gate.open.set()
    reception.start()
    futures = [reception.receive(a_report(replica=number)) for number in range(3)]
    stopping = threading.Thread(target=reception.stop, daemon=True)
    stopping.start()
    stopping.join(300)
    assert not stopping.is_alive(), "it ends after the last group"
    assert [future.result(0).number for future in futures] == [0, 1, 2]


def test_whoever_has_gone_costs_the_others_nothing(gate: Gate, reception: Reception) -> None:
    gone, there = reception.receive(a_report(replica=1)), reception.receive(a_report(replica=2))
    assert gone.cancel()
    gate.open.set()
    assert there.result(10).number == 2
    assert reception.receive(a_report(replica=3)).result(10).number == 3
    gate.error = StoreUnavailable("the disk is full")
    gate.open.clear()
    gone, there = reception.receive(a_report(replica=4)), reception.receive(a_report(replica=5))
    assert gone.cancel()
    gate.open.set()
    with pytest.raises(StoreUnavailable):
        there.result(10)


def test_whoever_waited_for_an_earlier_group_waits_for_no_later_one(store: MemoryStore, intake: Intake) -> None:
    now = [0.0]
    reception = Reception(intake, gather_s=60, monotonic=lambda: now[0])
    answer = reception.receive(a_report())
    now[0] = 61.0
    reception.start()
    assert answer.result(timeout=300) == DesiredView(state="run")
    reception.stop()


def test_a_report_waits_for_others_only_while_they_come(store: MemoryStore, intake: Intake) -> None:
    reception = Reception(intake, gather_s=3600)
    reception.start()
    assert reception.receive(a_report()).result(timeout=300) == DesiredView(state="run")
    reception.stop()
