"""Stacks, faults and nodes of a job over HTTP."""

from __future__ import annotations

import httpx
import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState, RequestedChaos, RequestedStacks
from tests.api.conftest import World
from tests.api.running import RUNNING
from tests.builders import make_batch, make_exit_record, make_journal_event, make_progress
from trainer.contract.chaos import Fault
from trainer.contract.exit_record import Outcome


def run(world: World, *, nodes: int = 2, **fields: object) -> str:
    """A running job of two nodes with one worker each, whose agents have reported."""
    job_id = world.submit(topology={"nodes": nodes}, **fields)
    world.advance(job_id, *RUNNING)
    world.start(job_id, state=AttemptState.RUNNING, nodes=str(nodes))
    for replica in range(nodes):
        who = {"replica": replica, "incarnation": 1, "host": f"n{replica}", "pid": 100 + replica}
        started = make_journal_event("agent.started", generation=0, evidence=who)
        formed = make_journal_event("generation.started", evidence={"world_size": nodes})
        lines = [(100, make_progress(3, rank=replica, world_size=nodes))]
        batch = make_batch(job_id, replica=replica, progress=lines, events=[(10, started), (20, formed)])
        world.journals.ingest([batch], arrived_at=world.clock.now())
    return job_id


def post(world: World, job_id: str, verb: str, **body: object) -> httpx.Response:
    return world.client.post(f"/api/v1/jobs/{job_id}/{verb}", json=body)


def events(world: World, job_id: str, kind: str) -> list[dict[str, object]]:
    found = world.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]
    return [event for event in found if event["kind"] == kind]


def test_a_fault_is_recorded_once_with_who_requested_it(world: World) -> None:
    job_id = run(world)
    answers = [post(world, job_id, "chaos", fault="kill", rank=1) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert [answer.json()["pending"] for answer in answers] == [["chaos"]] * 2
    request = RequestedChaos(number=1, attempt=1, fault=Fault.KILL, rank=1, replica=1)
    assert world.job(job_id).desired.chaos == request
    (event,) = events(world, job_id, "chaos.requested")
    assert (event["actor"], event["sentence"]) == ("local", "chaos was requested: kill of rank 1")
    assert len(world.woken) == 2, "one for the submission and one for the request"
    other = post(world, job_id, "chaos", fault="hang")
    assert (other.status_code, "a pending fault (kill)" in other.json()["detail"]) == (409, True)
    world.start(job_id, state=AttemptState.RUNNING, nodes="2", errand_told=1)
    assert world.client.get(f"/api/v1/jobs/{job_id}").json()["pending"] == []
    assert post(world, job_id, "chaos", fault="hang").status_code == 202


@pytest.mark.parametrize(("node", "replica"), [("n1", 1), ("0", 0), (1, 1)])
def test_a_node_is_named_by_its_name_or_its_number(world: World, node: object, replica: int) -> None:
    job_id = run(world)
    assert post(world, job_id, "chaos", fault="node-loss", node=node).status_code == 202
    chaos = world.job(job_id).desired.chaos
    assert chaos is not None
    assert (chaos.fault, chaos.rank, chaos.replica) == (Fault.NODE_LOSS, None, replica)


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/fault"]),
        ({"fault": "meteor"}, ["/fault"]),
        ({"fault": None}, ["/fault"]),
        ({"fault": "kill", "rank": -1}, ["/rank"]),
        ({"fault": "kill", "rank": "1"}, ["/rank"]),
        ({"fault": "kill", "rank": True}, ["/rank"]),
        ({"fault": "kill", "rank": 2}, ["/rank"]),
        ({"fault": "kill", "rank": 2**63}, ["/rank"]),
        ({"fault": "kill", "node": "n9"}, ["/node"]),
        ({"fault": "kill", "node": ""}, ["/node"]),
        ({"fault": "kill", "rank": 0, "node": "n0"}, ["/node"]),
        ({"fault": "preempt", "rank": 0}, ["/rank"]),
        ({"fault": "kill", "force": True}, ["/force"]),
    ],
)
def test_an_invalid_fault_is_refused_by_field(world: World, body: dict[str, object], pointers: list[str]) -> None:
    job_id = run(world)
    refused = post(world, job_id, "chaos", **body)
    assert refused.status_code == 422, refused.text
    assert sorted({error["pointer"] for error in refused.json()["errors"]}) == pointers
    assert world.job(job_id).desired.chaos is None


def test_chaos_needs_a_running_job(world: World) -> None:
    job_id = world.submit()
    assert post(world, job_id, "chaos", fault="kill").status_code == 409
    assert post(world, job_id, "stacks").status_code == 409
    ended = run(world)
    world.advance(ended, JobState.FAILED)
    refused = post(world, ended, "chaos", fault="kill")
    assert (refused.status_code, "has ended FAILED" in refused.json()["detail"]) == (409, True)


def test_a_snapshot_that_another_job_needs_is_not_corrupted(world: World) -> None:
    job_id = run(world)
    name = "step-00000010-a1-g1"
    committed = make_journal_event("snapshot.committed", evidence={"name": name, "step": 10, "size_bytes": 7})
    world.journals.ingest(
        [make_batch(job_id, replica=0, incarnation=2, events=[(5, committed)])], arrived_at=world.clock.now()
    )
    folder = world.root / job_id / "snapshots" / name
    folder.mkdir(parents=True)
    (folder / "MANIFEST.json").write_text("{}")
    source = {"from": str(folder)}
    other = world.submit(snapshot=source)
    refused = post(world, job_id, "chaos", fault="corrupt-snapshot")
    assert refused.status_code == 409
    assert f"job {other} continues from a snapshot of job {job_id}" in refused.json()["detail"]
    world.advance(other, *RUNNING, JobState.SUCCEEDED)
    assert post(world, job_id, "chaos", fault="corrupt-snapshot").status_code == 202


def test_stacks_are_requested_and_read(world: World) -> None:
    job_id = run(world)
    assert world.client.get(f"/api/v1/jobs/{job_id}/stacks").json() == {"items": [], "next_cursor": None}
    assert world.client.post(f"/api/v1/jobs/{job_id}/stacks").json()["pending"] == ["stacks"]
    assert post(world, job_id, "stacks", rank=0).status_code == 202
    assert world.job(job_id).desired.stacks == RequestedStacks(number=1, attempt=1)
    for replica, evidence in enumerate(({"stacks": {"0": "at line 7"}}, {"silent": [1]})):
        saved = make_journal_event("stacks.saved", evidence={"wish": 1, **evidence})
        batch = make_batch(job_id, replica=replica, events=[(30, saved)])._replace(events_from=20, progress_to=0)
        world.journals.ingest([batch], arrived_at=world.clock.now())
    found = world.client.get(f"/api/v1/jobs/{job_id}/stacks").json()["items"]
    assert [(each["rank"], each["wish"], each["text"]) for each in found] == [(0, 1, "at line 7"), (1, 1, None)]
    one = world.client.get(f"/api/v1/jobs/{job_id}/stacks?rank=1").json()["items"]
    assert [each["rank"] for each in one] == [1]
    assert post(world, job_id, "stacks", rank=2).status_code == 422


def test_the_nodes_of_the_newest_attempt_are_listed_in_pages(world: World) -> None:
    job_id = run(world)
    ended = make_batch(job_id, replica=1, incarnation=2, exit_record=make_exit_record(Outcome.PREEMPTED))
    world.journals.ingest([ended], arrived_at=world.clock.now())
    path = f"/api/v1/jobs/{job_id}/nodes"
    whole = world.client.get(path).json()
    assert whole["next_cursor"] is None
    assert whole["items"] == [
        {"attempt": 1, "replica": 0, "incarnation": 1, "name": "n0", "pid": 100, "ranks": [0], "ended": None},
        {"attempt": 1, "replica": 1, "incarnation": 1, "name": "n1", "pid": 101, "ranks": [1], "ended": None},
        {"attempt": 1, "replica": 1, "incarnation": 2, "name": None, "pid": None, "ranks": [], "ended": "preempted"},
    ]
    first = world.client.get(f"{path}?limit=2").json()
    rest = world.client.get(f"{path}?limit=2&cursor={first['next_cursor']}").json()
    assert [*first["items"], *rest["items"]] == whole["items"]
    assert world.client.get(f"/api/v1/jobs/{world.submit()}/nodes").json()["items"] == []


def test_why_shows_that_a_failure_was_injected(world: World) -> None:
    job_id = run(world)
    post(world, job_id, "chaos", fault="kill", rank=1)
    injected = make_journal_event(
        "chaos.injected", sentence="on purpose: rank 1 was killed", evidence={"number": 1, "fault": "kill"}
    )
    failed = make_journal_event("worker.failed", evidence={"kind": "unknown", "message": "killed", "rank": 1})
    batch = make_batch(job_id, replica=1, events=[(30, injected), (40, failed)])
    world.journals.ingest([batch._replace(events_from=20, progress_to=0)], arrived_at=world.clock.now())
    why = world.client.get(f"/api/v1/jobs/{job_id}/why").json()
    assert why["cause"]["chaos"]["actor"] == "local"
    assert (why["cause"]["chaos"]["fault"], why["cause"]["chaos"]["number"]) == ("kill", 1)
    assert "Rank 1 was killed on purpose by local at" in why["verdict"]
    assert "on purpose: rank 1 was killed" in [action["sentence"] for action in why["deeds"]]
    assert "chaos_s" in world.client.get(f"/api/v1/jobs/{job_id}/goodput").json()
