"""Wishes and the state of clusters on the command line."""

from __future__ import annotations

import json

import pytest

from orchestrator.client import Client
from orchestrator.domain.job import JobState
from orchestrator.wire import Problem
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, Answer, FakeService, make_job

RUNNING = {"state": JobState.RUNNING, "reason": "trains", "attempt": 1, "attempts": 1, "nodes": "1"}
TIME = AT.isoformat()
CLUSTER: dict[str, object] = {
    "name": "local",
    "kind": "local",
    "answers": True,
    "detail": "",
    "slots": {"used": 3, "total": 4, "free": 1},
    "max_jobs": None,
    "jobs": {"RUNNING": 1, "RECOVERING": 1, "QUEUED": 2, "SUSPENDED": 5},
    "lease": {"holder": "here:1", "since": TIME, "expires_at": TIME, "expired": False},
}
NODE: dict[str, object] = {
    "cluster": "local",
    "name": "node7",
    "excluded_until": TIME,
    "failures": 2,
    "last_at": TIME,
    "last_kind": "node",
    "last_sentence": "it fell silent",
    "last_job": "gpt-0001",
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["cancel"], "gpt-0001 RUNNING: is being cancelled"),
        (["suspend"], "gpt-0001 RUNNING: is being suspended"),
        (["resume"], "gpt-0001 RUNNING: trains"),
        (["retry"], "gpt-0001 RUNNING: another attempt is asked for"),
        (["snapshot"], "gpt-0001 RUNNING: a snapshot is asked for"),
        (["scale", "2:8"], "gpt-0001 RUNNING: 2:8 nodes are asked for; it goes on with them from a snapshot"),
    ],
)
def test_a_wish_is_told_in_one_line_and_the_same_again(
    run: Run, service: FakeService, arguments: list[str], told: str
) -> None:
    service.add(make_job(**RUNNING))
    verb, *rest = arguments
    for _ in range(2):
        done = run(verb, "gpt-0001", *rest)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(told)
    assert service.requests.count(("POST", f"/api/v1/jobs/gpt-0001/{verb}")) == 2
    assert json.loads(run(verb, "gpt-0001", *rest, "--json").stdout)["id"] == "gpt-0001"


def test_the_number_of_nodes_is_sent_as_it_was_typed(run: Run, service: FakeService) -> None:
    service.add(make_job(**RUNNING))
    run("scale", "gpt-0001", "2:8")
    run("scale", "gpt-0001", "3")
    assert service.bodies == [{"nodes": "2:8"}, {"nodes": "3"}]


def test_a_suspended_job_says_so_and_goes_back_into_the_queue(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUSPENDED, suspended=True, reason="suspended by its owner"))
    assert "SUSPENDED" in run("ls").stdout
    assert run("resume", "gpt-0001").stdout == "gpt-0001 SUSPENDED: goes back into the queue\n"
    service.add(make_job(state=JobState.SUSPENDED, suspended=True, reason="suspended by its owner"))
    shown = run("show", "gpt-0001").stdout
    assert "state      SUSPENDED\n" in shown
    assert "nodes      1 asked for\n" in shown


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "snapshot", "retry", "scale"])
def test_a_refused_wish_is_told_with_status_2(run: Run, service: FakeService, verb: str) -> None:
    service.add(make_job(**RUNNING))
    rest = ["4"] if verb == "scale" else []
    refusal = Answer(409, Problem(type="x", title="Conflict", status=409, detail="it has ended FAILED"))
    service.before_answer = lambda path: service.refusals.append(refusal) if path.endswith(verb) else None
    refused = run(verb, "gpt-0001", *rest)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "it has ended FAILED" in refused.stderr


def test_a_wish_without_a_service_ends_with_status_3(run: Run, service: FakeService) -> None:
    service.stop()
    away = run("suspend", "gpt-0001", ORCHESTRATOR_ROOT="/nowhere")
    assert away.returncode == 3
    assert "orchestrator serve" in away.stderr


def test_show_tells_nodes_granted_of_asked_budgets_phase_and_wishes_on_their_way(
    run: Run, service: FakeService
) -> None:
    spent = {"application": 1, "preemption": 4}
    service.add(make_job(**{**RUNNING, "nodes": "2:3"}, asked="2:8", spent=spent, phase="compile", pending=["scale"]))
    shown = run("show", "gpt-0001").stdout
    assert "state      RUNNING (scale is asked for)\n" in shown
    assert "nodes      2:3 of 2:8 asked for\n" in shown
    assert "budgets    application 1 of 3, preemption 4\n" in shown
    assert "phase      compile\n" in shown


def test_show_of_a_queued_job_says_what_it_waits_for(run: Run, service: FakeService) -> None:
    service.add(make_job(reason="waits for job a-1 to succeed; it is RUNNING"))
    assert "reason     waits for job a-1 to succeed; it is RUNNING\n" in run("show", "gpt-0001").stdout


def test_clusters_are_listed_with_their_slots_and_jobs(run: Run, service: FakeService) -> None:
    service.inventory["clusters"] = [
        CLUSTER,
        {**CLUSTER, "name": "far", "answers": False, "detail": "no route", "lease": None}
        | {"slots": {"used": 2, "total": None, "free": None}},
    ]
    done = run("clusters")
    local, far = (line.split() for line in done.stdout.splitlines()[1:])
    assert local[:7] == ["local", "local", "3/4", "1", "2", "2", "here:1"]
    assert far[:4] == ["far", "local,", "does", "not"]
    assert "nobody" in far
    assert done.stderr == "far does not answer: no route\n"
    assert [item["name"] for item in json.loads(run("clusters", "--json").stdout)["items"]] == ["local", "far"]


def test_nodes_are_listed_with_the_end_of_their_exclusion(run: Run, service: FakeService) -> None:
    assert "No node has a failure" in run("nodes").stderr
    service.inventory["nodes"] = [NODE, {**NODE, "name": "node8", "excluded_until": None}]
    lines = run("nodes", "--cluster", "local").stdout.splitlines()
    assert lines[1].split()[0] == "node7"
    assert "node: it fell silent" in lines[1]
    assert lines[1].split()[2] == "2026-01-02"
    assert lines[2].split()[2] == "2", "not avoided: no date stands before the count"
    assert json.loads(run("nodes", "--json").stdout)["items"][0]["failures"] == 2


def test_the_client_has_a_method_for_every_wish_and_list(service: FakeService) -> None:
    service.add(make_job(**RUNNING))
    service.inventory["clusters"], service.inventory["nodes"] = [CLUSTER], [NODE]
    service.inventory["projects"] = [
        {"name": "default", "max_jobs": 2, "max_devices": None}
        | {"use": [{"cluster": "local", "jobs": 1, "devices": 2, "queued": 0}]}
    ]
    with Client(f"http://127.0.0.1:{service.port}") as client:
        assert client.suspend("gpt-0001").suspending
        assert not client.resume("gpt-0001").suspended
        assert client.snapshot("gpt-0001").pending == ["snapshot"]
        assert client.scale("gpt-0001", 3).asked == "2:8"
        assert client.clusters()[0].slots.free == 1
        assert client.nodes(cluster="local")[0].name == "node7"
        assert client.projects()[0].use[0].devices == 2
    assert service.bodies == [{"nodes": 3}]


def test_a_snapshot_whose_answer_is_lost_is_not_asked_for_twice(service: FakeService) -> None:
    service.add(make_job(**RUNNING))
    busy = Problem(type="x", title="bad gateway", status=502, detail="the proxy lost it")
    service.refusals = [Answer(502, busy)]
    with Client(f"http://127.0.0.1:{service.port}") as client, pytest.raises(Exception, match="the proxy lost it"):
        client.snapshot("gpt-0001")
    assert len(service.requests) == 1
