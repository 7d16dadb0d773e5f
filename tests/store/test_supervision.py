from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.errors import Refused
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from tests.builders import make_attempt, make_batch, make_exit_record, make_progress
from tests.examples import examples
from tests.store.harness import Stores
from trainer.contract.exit_record import Outcome

PORTS = range(20000, 20004)


def test_the_number_of_queries_does_not_depend_on_the_number_of_jobs(stores: Stores) -> None:
    def queries() -> int:
        with stores.recorded() as statements:
            stores.supervisor.supervised("local", stores.supervisor.at_work("local"))
        return len([statement for statement, _ in statements if statement.startswith("SELECT")])

    stores.add_with_attempt("job-0")
    assert queries() == 6
    for number in range(1, 20):
        stores.add_with_attempt(f"job-{number}")
    assert queries() == 6
    held = stores.supervisor.supervised("local", stores.supervisor.at_work("local"))
    assert queries() == 5, "specs that somebody holds are not read again"
    assert len(held) == 20


def test_jobs_share_equal_texts(stores: Stores) -> None:
    """Thousands of jobs may wait for the same reason."""
    for job_id in ("job-0", "job-1"):
        stores.add(job_id, owner="alice")
    first, second = (each.job for each in stores.supervisor.supervised("local", stores.supervisor.at_work("local")))
    assert first.reason
    assert first.reason is second.reason
    assert first.owner is second.owner


def test_the_exit_record_of_each_replicas_newest_incarnation_counts(stores: Stores) -> None:
    stores.add_with_attempt()
    died, refused = make_exit_record(Outcome.FAILED), make_exit_record(Outcome.REFUSED)
    stores.ingest(
        make_batch(replica=0, incarnation=1, exit_record=make_exit_record(Outcome.SUCCEEDED)),
        make_batch(replica=1, incarnation=1, exit_record=died),
        make_batch(replica=1, incarnation=2, progress=[(10, make_progress(1))]),  # has not ended
        make_batch(replica=2, incarnation=1, exit_record=died),
        make_batch(replica=2, incarnation=2, exit_record=refused),  # did not get the claim
        make_batch(replica=3, incarnation=1, exit_record=refused),
    )
    exits = stores.only_supervised().exits
    assert {replica: record.outcome for replica, record in exits.items()} == {
        0: Outcome.SUCCEEDED,
        2: Outcome.FAILED,
        3: Outcome.REFUSED,
    }


def test_services_that_reserve_ports_concurrently_get_different_ones(open_stores: Callable[[], Stores]) -> None:
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
def test_no_two_live_attempts_hold_the_same_port(
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
