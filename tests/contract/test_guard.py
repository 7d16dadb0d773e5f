"""A supervisor without a valid lease cannot write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.supervision import Change, SupervisorReader, SupervisorWriter
from tests.builders import NOW, at, make_attempt, make_event, make_job
from tests.contract.worlds import SupervisorStore, World, acquire, add_job
from trainer.contract.failure import FailureKind

KEY = AttemptKey("job-1", 1)
MARK = NodeFailure(cluster="local", node="n1", at=NOW, key=KEY, kind=FailureKind.NODE, sentence="the node died")
READS = {"at_work", "changed", "supervised", "states", "journaled", "members", "node_failures"}


def _apply(store: SupervisorStore) -> None:
    job = make_job("job-1").to(JobState.STARTING, reason="starts", now=at(1))
    store.apply(Change(job=job, attempt=make_attempt(), events=[make_event()], node_failures=[MARK]))


def _note(store: SupervisorStore) -> None:
    store.note({"job-1": "waits"}, at(1))


def _reserve(store: SupervisorStore) -> None:
    store.reserve_port(KEY, "local", range(7, 8), after=None)


WRITES: dict[str, Callable[[SupervisorStore], None]] = {"apply": _apply, "note": _note, "reserve_port": _reserve}


def _take_over(world: World, lease: Lease) -> None:
    world.pass_time(1000)
    acquire(world, holder="two")


def _expire(world: World, lease: Lease) -> None:
    world.pass_time(1000)


def _release(world: World, lease: Lease) -> None:
    world.leases.release(lease)


def _acquire_again(world: World, lease: Lease) -> None:
    acquire(world, holder=lease.holder)


LOSSES = [_take_over, _expire, _release, _acquire_again]


def test_this_suite_covers_all_writes_of_the_port() -> None:
    port = {name for port in (SupervisorReader, SupervisorWriter) for name in vars(port) if not name.startswith("_")}
    assert port == READS | set(WRITES)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lose", LOSSES)
def test_a_write_with_a_lost_lease_is_refused_and_changes_nothing(
    world: World, write: str, lose: Callable[[World, Lease], None]
) -> None:
    add_job(world)
    lease = acquire(world)
    lose(world, lease)
    with pytest.raises(LeaseLost, match="local"):
        WRITES[write](world.supervisor(lease))
    world.pass_time(1000)
    add_job(world, "job-2")
    fresh = world.supervisor(acquire(world, holder="three"))
    first = next(one for one in fresh.supervised("local", fresh.at_work("local")) if one.job.id == "job-1")
    assert (first.job, first.attempt) == (make_job("job-1"), None)
    assert list(fresh.node_failures("local", since=at(-1000))) == []
    assert len(world.events("job-1")) == 1
    assert fresh.reserve_port(AttemptKey("job-2", 1), "local", range(7, 8), after=None) == 7


@pytest.mark.parametrize("write", WRITES)
def test_the_holder_of_the_lease_can_write(world: World, write: str) -> None:
    add_job(world)
    lease = acquire(world)
    assert world.leases.renew(lease, ttl_s=100)
    WRITES[write](world.supervisor(lease))


def test_reading_needs_no_lease(world: World) -> None:
    add_job(world)
    lost = acquire(world)
    _take_over(world, lost)
    store = world.supervisor(lost)
    assert [one.job.id for one in store.supervised("local", store.at_work("local"))] == ["job-1"]
    assert store.states(["job-1"]) == {"job-1": JobState.QUEUED}
    assert store.changed(0)[0] == {"job-1"}
    assert list(store.journaled(KEY).ranks) == []
    assert store.members(KEY, []).reported == {}
