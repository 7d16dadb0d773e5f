"""A job's life, read from its events. Each fact counts once, even if it is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.accounting.chronicle import KINDS, Chronicle, read_life
from orchestrator.domain.accounting.gains import list_gains
from orchestrator.domain.accounting.goodput import Bin, add_up
from orchestrator.domain.accounting.life import AttemptLife, GenerationLife, Kept, lay_out
from orchestrator.domain.explanation.why import explain
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.wire.job_views import FailureView
from tests.builders import NOW, at, make_attempt, make_event, make_job, make_spec
from trainer.contract.failure import Failure, FailureKind, parse_failure


def life_of(*events: Event, **attempt: object) -> AttemptLife:
    chronicle = Chronicle(job=make_job(), attempts=[make_attempt(**attempt)], events=list(events), kept={}, heard_at={})
    (life,) = read_life(chronicle).attempts
    return life


def event(kind: str, when: float, generation: int | None = 1, /, **evidence: object) -> Event:
    return make_event(kind, at=at(when), attempt=1, generation=generation, evidence=evidence)


def test_of_equal_events_of_several_agents_the_first_counts() -> None:
    life = life_of(
        event("agent.started", 1, 0),
        event("agent.started", 2, 0),
        event("generation.started", 5, world_size=4, imported_in_s=2.5),
        event("generation.started", 6, world_size=4, imported_in_s=9.0),
        event("restored", 7, step=20),
        event("restored", 8, step=99),
        event("worker.failed", 9, step=33, silent_s=1.5),
        event("worker.failed", 10, step=44),
    )
    assert (life.agent_at, life.ready_at) == (at(1), at(3.5))
    assert life.generations == (
        GenerationLife(
            number=1,
            started_at=at(5),
            world_size=4,
            restored_at=at(7),
            restored_step=20,
            failed_at=at(9),
            failed_step=33,
            silent_s=1.5,
            cause=FailureKind.UNKNOWN,
        ),
    )


def test_a_change_has_the_time_at_which_its_reason_was_noticed() -> None:
    life = life_of(
        event("group.shrunk", 8, 2, seconds=2.0), event("generation.started", 8, 2), event("restored", 9, 2, step=True)
    )
    assert [(one.noticed_at, one.restored_at, one.restored_step) for one in life.generations] == [(at(6), at(9), 0)]


def test_events_without_a_started_generation_are_skipped() -> None:
    life = life_of(event("generation.started", 1, None, world_size=2), event("restored", 2, 3, step=5))
    assert life.generations == ()


def test_a_wait_of_an_agent_is_no_failure() -> None:
    life = life_of(event("generation.started", 1, world_size=2), event("node.waited", 2, step=3))
    assert [(one.failed_at, one.restored_at) for one in life.generations] == [(None, None)]


def test_an_attempt_has_as_many_devices_as_it_requested() -> None:
    assert life_of(nodes="1:3", workers_per_node=4).devices == 12
    assert life_of(nodes="2").devices == 2


def test_with_a_worker_for_each_gpu_the_largest_group_shows_their_number() -> None:
    job = make_job(spec=make_spec(topology={"nodes": "2", "workers_per_node": "gpu"}))
    started = event("generation.started", 1, world_size=16)
    chronicle = Chronicle(job=job, attempts=[make_attempt(nodes="2")], events=[started], kept={}, heard_at={})
    assert [read_life(chronicle).devices, *(each.devices for each in read_life(chronicle).attempts)] == [16, 16]


@pytest.mark.parametrize(
    ("run", "reported", "expected"),
    [
        ({"script": "train.py"}, (), Bin.NOT_REPORTED),
        ({"script": "train.py"}, (1,), Bin.FAILED),  # with Supervised
        ({"trainer": {}}, (), Bin.FAILED),
    ],
)
def test_the_work_of_a_failed_script_that_reports_nothing_is_not_called_lost(
    run: dict[str, object], reported: Sequence[int], expected: Bin
) -> None:
    failed = make_attempt(
        state=AttemptState.FAILED, failure=Failure(kind=FailureKind.APPLICATION, message="x"), ended_at=at(50)
    )
    life = read_life(
        Chronicle(
            job=make_job(spec=make_spec(run=run), state=JobState.FAILED, finished_at=at(50)),
            attempts=[failed],
            events=[event("generation.started", 0, world_size=1)],
            kept={},
            heard_at={},
            reported=reported,
        )
    )
    assert add_up(lay_out(life, at(50))).bins[expected] == 50_000_000


def test_a_suspended_job_rests_until_it_is_resumed() -> None:
    def rests(state: JobState, *names: str) -> list[tuple[object, object]]:
        job: Job = make_job(state=state, finished_at=at(20) if state.terminal else None)
        events = [make_event("job.state", at=at(10 * n), evidence={"state": name}) for n, name in enumerate(names)]
        life = read_life(Chronicle(job=job, attempts=[], events=events, kept={}, heard_at={}))
        return [(rest.since, rest.until) for rest in life.rests]

    assert rests(JobState.SUSPENDED, "STARTING", "SUSPENDED") == [(at(10), None)]
    assert rests(JobState.QUEUED, "STARTING", "SUSPENDED", "SUSPENDED", "QUEUED") == [(at(10), at(30))]
    assert rests(JobState.FAILED, "STARTING", "RUNNING", "FAILED") == []


def test_each_agent_reports_the_workers_of_its_node() -> None:
    life = life_of(
        event("agent.started", 1, 0, host="n2"),
        event("agent.started", 1, 0, host="n1"),
        event("generation.started", 5, world_size=3, host="n1", pids={"0": 11, "1": 12}),
        event("generation.started", 6, world_size=3, host="n2", pids={"2": 13}),
        event("generation.started", 9, 2, world_size=3, pids={"2": 13}),
        event("node.waited", 9, 2, host="n9"),
    )
    assert life.nodes == ("n1", "n2")
    assert [dict(one.nodes) for one in life.generations] == [{"n1": 2, "n2": 1}, {}]


def test_an_end_has_its_reported_cause_and_a_group_that_shrank_lost_a_node() -> None:
    life = life_of(
        event("generation.started", 5, 1, world_size=4),
        event("worker.failed", 6, 1, kind="hang", message="silent"),
        event("generation.started", 7, 2, world_size=4),
        event("group.shrunk", 9, 3, seconds=1.0),
        event("generation.started", 9, 3, world_size=2),
        event("group.grew", 12, 4, seconds=1.0),
        event("generation.started", 12, 4, world_size=4),
        failure=Failure(kind=FailureKind.STORAGE, message="no space left"),
    )
    assert [one.cause for one in life.generations] == [FailureKind.HANG, FailureKind.NODE, None, None]
    assert life.cause == "storage"


def test_a_lost_node_is_the_cause_behind_lost_peers_but_not_behind_another_failure() -> None:
    life = life_of(
        event("generation.started", 5, 1, world_size=4),
        event("worker.failed", 6, 1, kind="application", message="closed by peer", lost_a_peer=True),
        event("group.shrunk", 9, 2, seconds=1.0),
        event("generation.started", 9, 2, world_size=2),
        event("worker.failed", 10, 2, kind="application", message="closed by peer", lost_a_peer=True),
        event("worker.failed", 10, 2, kind="device-oom", message="out of memory", lost_a_peer=False),
        event("group.shrunk", 12, 3, seconds=1.0),
        event("generation.started", 12, 3, world_size=1),
        event("worker.failed", 13, 3, kind="application", message="closed by peer", lost_a_peer=True),
        event("restart.in_place", 14, 4, seconds=1.0),
        event("generation.started", 14, 4, world_size=1),
    )
    assert [one.cause for one in life.generations] == [
        FailureKind.NODE,
        FailureKind.DEVICE_OOM,
        FailureKind.APPLICATION,
        None,
    ]


def test_a_node_whose_agent_has_not_yet_reported_is_not_called_lost() -> None:
    before = [event("generation.started", 5, 1, world_size=3, host=host, pids={rank: 1}) for rank, host in HOSTS]
    shrunk = event("group.shrunk", 9, 2, seconds=1.0)
    first, second = (event("generation.started", 9, 2, world_size=2, host=host, pids={"0": 1}) for host in ("n1", "n2"))
    assert names_of_lost(*before, shrunk, first) == ["an agent"]
    assert names_of_lost(*before, shrunk, first, second) == ["the agent on n3"]


def test_a_loss_in_a_generation_whose_start_is_unknown_has_no_name() -> None:
    failed = event("worker.failed", 6, 1, kind="application", message="closed by peer", lost_a_peer=True)
    after = event("generation.started", 9, 2, world_size=1, host="n1", pids={"0": 1})
    assert names_of_lost(failed, event("group.shrunk", 9, 2, seconds=1.0), after) == ["an agent"]


HOSTS = (("0", "n1"), ("1", "n2"), ("2", "n3"))


def names_of_lost(*events: Event) -> list[str]:
    return [trouble.lost.names for trouble in life_of(*events).troubles if trouble.lost is not None]


def test_a_killed_worker_is_the_same_cause_for_goodput_and_why() -> None:
    killed: dict[str, object] = {"kind": "unknown", "message": "the worker was killed by SIGKILL", "signal": "SIGKILL"}
    events = [
        event("generation.started", 5, 1, world_size=2),
        event("worker.failed", 6, 1, rank=0, step=3, **killed),
        event("restart.in_place", 8, 2, seconds=2.0),
        event("generation.started", 8, 2, world_size=2),
    ]
    failed = make_attempt(failure=parse_failure(killed), ended_at=at(9))
    for attempt in (make_attempt(), failed):
        chronicle = Chronicle(job=make_job(), attempts=[attempt], events=events, kept={}, heard_at={})
        life = read_life(chronicle)
        stretches = lay_out(life, at(20))
        cause = explain(chronicle, life, add_up(stretches), NOW).cause
        assert cause is not None
        name = FailureView.model_validate({**vars(cause.failure), "kind": cause.failure.kind.value}).kind_name
        assert {each.cause for each in stretches if each.cause} == {name} == {"killed"}
        assert "no-killed" in {gain.name for gain in list_gains(life, stretches)}


def test_only_a_jobs_own_state_ends_its_rest() -> None:
    events = [
        make_event("job.state", at=at(10), evidence={"state": "SUSPENDED"}),
        make_event("snapshot.deleted", at=at(20), evidence={}),
        make_event("job.state", at=at(30), evidence={"state": "QUEUED"}),
    ]
    life = read_life(Chronicle(job=make_job(state=JobState.QUEUED), attempts=[], events=events, kept={}, heard_at={}))
    assert [(rest.since, rest.until) for rest in life.rests] == [(at(10), at(30))]


def test_an_unknown_state_is_no_rest() -> None:
    events = [make_event("job.state", at=at(7), evidence={"state": "DREAMING"})]
    job = make_job(state=JobState.RUNNING)
    assert read_life(Chronicle(job=job, attempts=[], events=events, kept={}, heard_at={})).rests == ()


WILD = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just({}) | st.just([])
ANY_TIME = st.datetimes(timezones=st.just(UTC))
KNOWN = ("world_size", "imported_in_s", "step", "silent_s", "seconds", "host", "pids", "kind", "rank", "state")
ANY_EVENT = st.builds(
    make_event,
    st.sampled_from(sorted(KINDS)),
    at=ANY_TIME,
    attempt=st.sampled_from((None, 1, 2)),
    generation=st.none() | st.integers(-2, 4),
    evidence=st.dictionaries(st.sampled_from((*KNOWN, "collateral_ranks", "rule", "failure")), WILD),
)
WILD_KEPT = st.builds(
    lambda ends, steps, stall_s: Kept(steps=steps, first_at=min(ends), last_at=max(ends), stall_s=stall_s),
    st.tuples(ANY_TIME, ANY_TIME),
    st.integers(1, 9),
    st.floats(min_value=0),
)


@given(st.lists(ANY_EVENT, max_size=8), WILD_KEPT, ANY_TIME)
def test_every_life_is_readable_whatever_agents_report(events: list[Event], kept: Kept, heard: datetime) -> None:
    """One unreadable life would break the accounts of all jobs."""
    chronicle = Chronicle(
        job=make_job(state=JobState.RUNNING),
        attempts=[make_attempt()],
        events=events,
        kept={(1, 1): kept},
        heard_at={1: heard},
    )
    life = read_life(chronicle)
    stretches = lay_out(life, at(500))
    ledger = add_up(stretches)
    assert sum(ledger.bins.values()) == ledger.whole_us
    assert min(ledger.bins.values(), default=0) >= 0
    list_gains(life, stretches)
    explain(chronicle, life, ledger, NOW)


def test_a_node_without_a_name_and_malformed_workers_are_skipped() -> None:
    life = life_of(
        event("agent.started", 1, 0, host=""),
        event("agent.started", 1, 0, host="n" * 256),
        event("agent.started", 1, 0, host="n" * 255),
        event("generation.started", 5, world_size=2, host="n1", pids="0: 11"),
        event("generation.started", 6, world_size=2, host="n1"),
    )
    assert life.nodes == ("n1", "n" * 255)
    assert [dict(one.nodes) for one in life.generations] == [{}]
