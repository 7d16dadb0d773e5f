from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from orchestrator.domain.errors import NotFound, Refused
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.job import Desired, JobState
from tests.builders import (
    at,
    make_attempt,
    make_batch,
    make_event,
    make_exit_record,
    make_job,
    make_progress,
    make_spec,
)
from tests.examples import examples
from tests.store.harness import Stores
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

PORTS = range(20000, 20004)


def test_only_jobs_that_are_not_at_rest_are_supervised(stores: Stores) -> None:
    for state in JobState:
        stores.add(state.value.lower(), state=state)
    stores.add("elsewhere", spec=make_spec(cluster="other"))
    stores.add("retry", state=JobState.FAILED, desired=Desired(retry_number=2), retries_done=1)
    stores.add("retried", state=JobState.FAILED, desired=Desired(retry_number=2), retries_done=2)
    found = {one.job.id for one in stores.supervisor.supervised("local")}
    assert found == {"queued", "starting", "running", "recovering", "suspended", "retry"}


def test_the_supervised_are_read_with_as_many_queries_for_many_as_for_one(stores: Stores) -> None:
    def queries() -> int:
        statements: list[str] = []

        def note(_1: object, _2: object, statement: str, *_: object) -> None:
            statements.append(statement)

        event.listen(stores.database.engine, "before_cursor_execute", note)
        stores.supervisor.supervised("local")
        event.remove(stores.database.engine, "before_cursor_execute", note)
        return len([statement for statement in statements if statement.startswith("SELECT")])

    stores.add_with_attempt("job-0")
    assert queries() == 5, "new specs are read once,"
    for number in range(1, 20):
        stores.add_with_attempt(f"job-{number}")
    assert queries() == 5
    assert queries() == 4, "and not again"


def test_an_attempt_comes_back_as_it_was_applied(stores: Stores) -> None:
    job = stores.add()
    failure = Failure(kind=FailureKind.HANG, message="no step", rank=3, step=7, traceback="Traceback\n")
    attempt = make_attempt(
        handle="4711", restore_from="s", started_at=at(1), stopping_since=at(2), ended_at=at(3), failure=failure
    )
    stores.apply(job, attempt)
    assert stores.only_supervised().attempt == attempt
    later = attempt.to(AttemptState.RUNNING, reason="runs", now=at(9))
    stores.apply(job, later)
    ((found,), behind) = stores.history.attempts("job-1", limit=9, cursor=None)
    assert (found.attempt, behind) == (later, None)


def test_a_change_of_an_unknown_job_is_not_found_and_writes_nothing(stores: Stores) -> None:
    stores.add("job-1")
    with pytest.raises(NotFound, match="job-2"):
        stores.apply(make_job("job-2"), None, make_event())
    assert len(stores.events("job-1")) == 1


def test_a_change_is_written_as_a_whole_or_not_at_all(stores: Stores) -> None:
    job = stores.add("job-1")
    foreign = make_attempt("job-without-row")
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        stores.apply(job.to(JobState.STARTING, reason="x", now=at(1)), foreign, make_event())
    assert stores.jobs.get("job-1").state is JobState.QUEUED
    assert len(stores.events("job-1")) == 1


def test_exit_records_are_of_the_newest_life_of_each_replica(stores: Stores) -> None:
    stores.add_with_attempt()
    died, refused = make_exit_record(Outcome.FAILED), make_exit_record(Outcome.REFUSED)
    stores.ingest(
        make_batch(replica=0, incarnation=1, exit_record=make_exit_record(Outcome.SUCCEEDED)),
        make_batch(replica=1, incarnation=1, exit_record=died),
        make_batch(replica=1, incarnation=2, progress=[(10, make_progress(1))]),  # lives again
        make_batch(replica=2, incarnation=1, exit_record=died),
        make_batch(replica=2, incarnation=2, exit_record=refused),  # a second start that lost the claim
        make_batch(replica=3, incarnation=1, exit_record=refused),
    )
    exits = stores.only_supervised().exits
    assert {replica: record.outcome for replica, record in exits.items()} == {
        0: Outcome.SUCCEEDED,
        2: Outcome.FAILED,
        3: Outcome.REFUSED,
    }


def test_ports_are_given_in_turn_and_around_the_end(stores: Stores) -> None:
    for number in range(1, 5):
        stores.add(f"job-{number}")
    given_ports = [
        stores.supervisor.reserve_port(AttemptKey(f"job-{number}", 1), "local", PORTS, after=after)
        for number, after in ((1, 20001), (2, 20002), (3, 20003), (4, 25000))
    ]
    assert given_ports == [20002, 20003, 20000, 20001]


def test_a_reservation_is_repeated_for_the_same_attempt(stores: Stores) -> None:
    stores.add()
    key = AttemptKey("job-1", 1)
    first = stores.supervisor.reserve_port(key, "local", PORTS, after=None)
    assert stores.supervisor.reserve_port(key, "local", PORTS, after=first) == first


def test_when_all_ports_are_taken_the_text_says_what_to_do(stores: Stores) -> None:
    stores.add()
    stores.supervisor.reserve_port(AttemptKey("job-1", 1), "local", range(1, 2), after=None)
    with pytest.raises(Refused, match=r"all 1 rendezvous ports are taken.*ORCHESTRATOR_RENDEZVOUS_PORTS"):
        stores.supervisor.reserve_port(AttemptKey("job-1", 2), "local", range(1, 2), after=None)


def test_two_clusters_do_not_share_ports(stores: Stores) -> None:
    stores.add()
    for number, cluster in ((1, "a"), (2, "b")):
        assert stores.supervisor.reserve_port(AttemptKey("job-1", number), cluster, PORTS, after=None) == 20000


def test_no_port_is_reserved_for_an_unknown_job(stores: Stores) -> None:
    with pytest.raises(NotFound, match="job-9"):
        stores.supervisor.reserve_port(AttemptKey("job-9", 1), "local", PORTS, after=None)


def test_services_that_reserve_at_one_time_get_different_ports(open_stores: Callable[[], Stores]) -> None:
    services = [open_stores() for _ in range(4)]
    services[0].add()
    supervisors = [each.supervisor for each in services]  # before the threads: the first one takes the lease

    def reserve(number: int) -> int:
        key = AttemptKey("job-1", number)
        return supervisors[number % 4].reserve_port(key, "local", range(20000, 20024), after=None)

    with ThreadPoolExecutor(8) as threads:
        given_ports = list(threads.map(reserve, range(1, 25)))
    assert sorted(given_ports) == list(range(20000, 20024))


@settings(max_examples=examples(10, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["reserve", "end"]), st.none() | st.integers(19999, 20004)),
        max_size=12,
    )
)
def test_no_two_live_attempts_ever_hold_one_port(
    stores: Stores, moves: list[tuple[int, str, int | None]], new_job: Callable[[], str]
) -> None:
    job = stores.add(new_job())
    cluster, held, ended = job.id, dict[int, int](), set[int]()
    for number, move, after in moves:
        key = AttemptKey(job.id, number)
        if number in ended:
            continue
        if move == "end":
            ended.add(number)
            stores.apply(job, make_attempt(job.id, number, state=AttemptState.LOST))
            held.pop(number, None)
        elif number in held or len(held) < len(PORTS):
            port = stores.supervisor.reserve_port(key, cluster, PORTS, after=after)
            assert held.setdefault(number, port) == port
        else:
            with pytest.raises(Refused):
                stores.supervisor.reserve_port(key, cluster, PORTS, after=after)
    assert len(set(held.values())) == len(held)
    assert set(held.values()) <= set(PORTS)


def test_a_job_that_ends_frees_a_port_whose_attempt_was_never_written_down(stores: Stores) -> None:
    job = stores.add()
    assert stores.supervisor.reserve_port(AttemptKey("job-1", 1), "local", range(7, 8), after=None) == 7
    stores.apply(job.to(JobState.CANCELLED, reason="cancelled", now=at(1)))
    stores.add("job-2")
    assert stores.supervisor.reserve_port(AttemptKey("job-2", 1), "local", range(7, 8), after=None) == 7
