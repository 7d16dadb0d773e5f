"""Submitting, planning, listing, cancelling and retrying over HTTP."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.api.running import RUNNING, run
from tests.builders import at, make_batch, make_journal_event, make_progress
from trainer.contract.failure import Failure, FailureKind


def event_kinds(world: World, job_id: str) -> list[str]:
    return [event["kind"] for event in world.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]]


def test_a_submitted_job_is_queued_and_found_at_its_location(world: World) -> None:
    answer = world.post_spec(labels={"team": "a"})
    assert answer.status_code == 201
    job = world.client.get(answer.headers["location"]).json()
    assert {**job, "warnings": []} == answer.json()
    assert (job["state"], job["attempt"], job["labels"]) == ("QUEUED", None, {"team": "a"})
    assert job["id"].startswith("demo-")
    assert event_kinds(world, job["id"]) == ["job.submitted"]
    assert world.woken == [None]


def test_two_submissions_without_a_key_are_two_jobs(world: World) -> None:
    assert world.submit() != world.submit()


def test_the_same_key_and_spec_give_the_same_job(world: World) -> None:
    first = world.client.post("/api/v1/jobs", json=world.spec(), headers={"Idempotency-Key": "k1"})
    again = world.client.post("/api/v1/jobs", json=world.spec(priority=0), headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    assert len(world.client.get("/api/v1/jobs").json()["items"]) == 1


def test_a_repeat_gives_the_same_job_even_when_its_script_is_gone_by_now(world: World, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    spec = world.spec(run={"script": "train.py", "workdir": str(tmp_path)})
    first = world.client.post("/api/v1/jobs", json=spec, headers={"Idempotency-Key": "k1"})
    script.unlink()
    again = world.client.post("/api/v1/jobs", json=spec, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]


def test_the_same_key_with_another_spec_is_a_conflict(world: World) -> None:
    world.client.post("/api/v1/jobs", json=world.spec(), headers={"Idempotency-Key": "k1"})
    answer = world.client.post("/api/v1/jobs", json=world.spec(priority=7), headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/conflict"


def submit_as(caller: dict[str, str], world: World, **fields: Any) -> httpx.Response:
    """Submit with the same key for every caller."""
    return world.client.post("/api/v1/jobs", json=world.spec(**fields), headers={"Idempotency-Key": "k1", **caller})


def test_one_key_of_two_callers_makes_two_jobs(closed: World) -> None:
    alice, bob = closed.give("default=submitter"), closed.give("default=submitter", name="bob")
    answers = [submit_as(caller, closed) for caller in (alice, bob, alice, bob)]
    assert [answer.status_code for answer in answers] == [201, 201, 200, 200]
    first, second, *again = [answer.json()["id"] for answer in answers]
    assert first != second
    assert again == [first, second]
    assert [answer.json()["owner"] for answer in answers] == ["alice", "bob", "alice", "bob"]
    assert closed.client.post(f"/api/v1/jobs/{second}/cancel", headers=bob).status_code == 202


def test_a_conflict_of_keys_reveals_no_job_of_another_caller(closed: World) -> None:
    alice, bob = closed.give("default=submitter"), closed.give("default=submitter", name="bob")
    first = submit_as(alice, closed).json()["id"]
    second = submit_as(bob, closed, priority=7)
    assert second.status_code == 201
    third = submit_as(bob, closed, priority=8)
    assert third.status_code == 409
    assert second.json()["id"] in third.text
    assert first not in third.text


def test_a_renewed_token_of_the_same_name_repeats_the_same_request(closed: World) -> None:
    old, new = closed.give("default=submitter"), closed.give("default=submitter")
    assert old != new
    first, again = submit_as(old, closed), submit_as(new, closed)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


@pytest.mark.parametrize("key", ["", "x" * 256, " k", "k\x7f"])
def test_an_invalid_idempotency_key_is_refused(world: World, key: str) -> None:
    answer = world.client.post("/api/v1/jobs", json=world.spec(), headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/header/idempotency-key"


def test_numbers_in_arguments_and_variables_become_text(world: World) -> None:
    given = {"script": "train.py", "workdir": str(world.workdir), "args": ["--lr", 3e-4, 2], "env": {"SEED": 7}}
    run = world.post_spec(run=given).json()["spec"]["run"]
    assert (run["args"], run["env"]) == (["--lr", "0.0003", "2"], {"SEED": "7"})
    refused = world.post_spec(run=given | {"args": [True]})
    assert refused.json()["errors"][0]["pointer"] == "/run/args/0"


def test_a_plan_shows_the_launch_and_stores_nothing(world: World) -> None:
    topology = {"nodes": "1:2", "workers_per_node": 2}
    answer = world.post_spec("/api/v1/plan", topology=topology, resources={"memory_gb": 4, "cpus": 2})
    assert answer.status_code == 200
    plan = answer.json()
    assert plan["rendezvous_id"] == "demo-preview-a1-preview"
    assert plan["rendezvous_endpoint"] == "127.0.0.1:20000"
    assert [replica["replica"] for replica in plan["replicas"]] == [0, 1]
    assert plan["replicas"][0]["command"][-1] == "train.py"
    assert plan["native_kind"] == "processes"
    role = plan["appdef"]["roles"][0]
    assert (role["num_replicas"], role["min_replicas"], role["resource"]["memMB"]) == (2, 1, 4096)
    assert [role["entrypoint"], *role["args"]] == plan["replicas"][0]["command"]
    assert any("not enforced" in warning for warning in plan["warnings"])
    assert world.client.get("/api/v1/jobs").json()["items"] == []


def test_a_submission_warns_about_fields_without_effect(world: World) -> None:
    spec = {"supervise": {"grow_back_after_s": 60}, "snapshot": {"keep": 9}}
    first, again = (
        world.client.post("/api/v1/jobs", json=world.spec(**spec), headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (201, 200)
    fixed = "supervise.grow_back_after_s has no effect: topology.nodes is one number, so the job never has fewer nodes"
    assert first.json()["warnings"] == again.json()["warnings"] == [fixed]
    assert "warnings" not in world.client.get(f"/api/v1/jobs/{first.json()['id']}").json()
    planned = world.post_spec("/api/v1/plan", **spec).json()["warnings"]
    assert {fixed, "snapshot.keep has an effect only if the program uses `Supervised`"} <= set(planned)
    assert world.post_spec().json()["warnings"] == []


LARGE = {"trainer": {"preset": "8b", "seq_len": 2048, "global_batch": 16, "micro_batch": 1, "strategy": "ddp"}}


def test_a_plan_of_the_bundled_trainer_counts_its_memory(world: World) -> None:
    plan = world.post_spec("/api/v1/plan", run=LARGE, topology={"workers_per_node": 2}).json()
    memory = plan["memory"]
    assert memory["terms"]["optimizer"] == 8 * memory["parameters"]
    assert sum(memory["terms"].values()) == memory["total_bytes"]
    assert (memory["devices"], memory["device_bytes"], memory["fits"]) == (2, None, None)
    assert not any("memory" in warning for warning in plan["warnings"])


def test_a_plan_warns_if_the_memory_of_a_node_does_not_suffice(world: World) -> None:
    resources, topology = {"memory_gb": 100}, {"workers_per_node": 2}
    plan = world.post_spec("/api/v1/plan", run=LARGE, resources=resources, topology=topology).json()
    assert (plan["memory"]["device_bytes"], plan["memory"]["fits"]) == (50 * 10**9, False)
    [warning] = [warning for warning in plan["warnings"] if warning.startswith("not enough memory: ")]
    assert warning.endswith(plan["memory"]["advice"])


def test_only_the_bundled_trainer_has_a_memory_estimate(world: World) -> None:
    assert world.post_spec("/api/v1/plan").json()["memory"] is None


def test_a_plan_of_a_bad_spec_is_refused_as_its_submission_would_be(world: World) -> None:
    assert world.post_spec("/api/v1/plan", nodes=3).json() == world.post_spec(nodes=3).json()


def test_pages_contain_every_job_once(world: World) -> None:
    ids = []
    for second in range(7):
        world.clock.moment = at(second)
        ids.append(world.submit())
    for order, expected in (("newest", ids[::-1]), ("oldest", ids)):
        found, cursor = [], None
        while True:
            parameters = {"limit": 3, "order": order} | ({"cursor": cursor} if cursor else {})
            page = world.client.get("/api/v1/jobs", params=parameters).json()
            found += [job["id"] for job in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == expected


def test_filters_narrow_the_list(world: World) -> None:
    first = world.submit(name="alpha", labels={"team": "a"}, project="research")
    second = world.submit(name="beta", labels={"team": "b"})
    world.advance(second, *RUNNING)

    def ids(query: str) -> list[str]:
        answer = world.client.get(f"/api/v1/jobs?{query}")
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["items"]]

    assert ids("state=RUNNING") == [second]
    assert ids("project=research") == [first]
    assert ids("label=team=a") == [first]
    assert ids("q=bet") == [second]
    assert ids("q=%25") == []
    assert ids("cluster=local&order=oldest&state=QUEUED") == [first]
    assert ids("cluster=elsewhere") == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("state=running", "/query/state"),
        ("limit=0", "/query/limit"),
        ("limit=201", "/query/limit"),
        ("limit=many", "/query/limit"),
        ("order=random", "/query/order"),
        ("label=team", "/query/label"),
    ],
)
def test_a_wrong_parameter_is_refused(world: World, query: str, pointer: str) -> None:
    answer = world.client.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_a_foreign_cursor_is_refused(world: World) -> None:
    for path in ("/api/v1/jobs", f"/api/v1/jobs/{world.submit()}/events"):
        answer = world.client.get(path, params={"cursor": "bm9uc2Vuc2U"})
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("job_id", ["..%2f..%2fetc", "%01", "x" * 5000, "a'--"])
def test_a_strange_job_id_is_not_found(world: World, job_id: str) -> None:
    for below in ("", "/attempts", "/events", "/snapshots", "/workers", "/metrics", "/logs", "/logs?follow=true"):
        answer = world.client.get(f"/api/v1/jobs/{job_id}{below}")
        assert answer.status_code == 404, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_running_job_shows_its_training_progress(world: World) -> None:
    job_id = run(world)
    lines = [
        (number * 100, make_progress(number, seconds=number, total_steps=10, metrics={"loss": 4.0 - number, "lr": 0.1}))
        for number in (1, 2, 3)
    ]
    world.journals.ingest([make_batch(job_id, progress=lines)], arrived_at=world.clock.now())
    job = world.client.get(f"/api/v1/jobs/{job_id}").json()
    assert (job["state"], job["attempt"], job["step"], job["total_steps"], job["loss"]) == ("RUNNING", 1, 3, 10, 1.0)
    metrics = world.client.get(f"/api/v1/jobs/{job_id}/metrics?names=loss,absent&since_step=1").json()
    assert metrics["steps"] == [2, 3]
    assert metrics["series"] == {"loss": [2.0, 1.0], "absent": [None, None]}
    workers = world.client.get(f"/api/v1/jobs/{job_id}/workers").json()["items"]
    assert [(worker["rank"], worker["step"]) for worker in workers] == [(0, 3)]


def test_nan_and_infinity_become_null(world: World) -> None:
    job_id = run(world)
    events = [(10, make_journal_event("odd", evidence={"loss": float("nan"), "deep": [float("inf")]}))]
    lines = [(100, make_progress(1, metrics={"loss": float("nan"), "grad_norm": float("inf")}))]
    batch = make_batch(job_id, progress=lines, events=events)
    world.journals.ingest([batch], arrived_at=world.clock.now())
    for below in ("", "/events", "/metrics"):
        answer = world.client.get(f"/api/v1/jobs/{job_id}{below}")
        assert answer.status_code == 200
        answer.json(parse_constant=pytest.fail)


def test_the_step_at_which_a_series_became_nan_is_found_between_the_points(world: World) -> None:
    job_id = run(world)
    broken = {"loss": 777, "grad_norm": 1}
    lines = [
        (step, make_progress(step, metrics={name: math.nan if step >= at else 1.0 for name, at in broken.items()}))
        for step in range(1, 1001)
    ]
    world.journals.ingest([make_batch(job_id, progress=lines)], arrived_at=world.clock.now())

    def found(query: str) -> object:
        return world.client.get(f"/api/v1/jobs/{job_id}/metrics?{query}").json()["not_finite"]

    assert found("names=loss,grad_norm,step_s&points=5") == {"loss": 777, "grad_norm": 1}
    assert found("names=loss&since_step=900") == {"loss": 901}
    assert found("names=absent") == found("") == {}
    curves = world.client.get(f"/compare/curves?job={job_id}").json()
    assert curves["notes"] == [f"{job_id}: loss became NaN or infinite at step 777"]
    assert world.client.get(f"/compare/curves?job={job_id}&metric=absent").json()["notes"] == []


def test_an_attempt_shows_its_first_cause(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, *RUNNING, JobState.FAILED)
    failure = Failure(kind=FailureKind.HOST_OOM, message="killed", rank=1, exit_code=-9, signal="SIGKILL", step=7)
    world.start(job_id, state=AttemptState.FAILED, failure=failure, ended_at=at(5))
    attempt = world.client.get(f"/api/v1/jobs/{job_id}/attempts").json()["items"][0]
    assert attempt["failure"]["kind"] == "host-oom"
    assert attempt["rendezvous_id"] == f"{job_id}-a1-c0ffee"
    assert world.client.get(f"/api/v1/jobs/{job_id}").json()["failure"]["rank"] == 1


def test_cancelling_records_a_request_once(world: World) -> None:
    job_id = world.submit()
    answers = [world.client.post(f"/api/v1/jobs/{job_id}/cancel") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert [answer.json()["cancelling"] for answer in answers] == [True] * 3
    assert [answer.json()["state"] for answer in answers] == ["QUEUED"] * 3
    assert event_kinds(world, job_id) == ["job.submitted", "cancel.requested"]


def test_retrying_records_one_request_until_it_has_begun(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.FAILED)
    for _ in range(3):
        assert world.client.post(f"/api/v1/jobs/{job_id}/retry").status_code == 202
    assert world.job(job_id).desired.retry_number == 1
    world.advance(job_id, JobState.QUEUED, *RUNNING, retries_done=1)
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry", json={}).status_code == 202
    assert world.job(job_id).desired.retry_number == 2
    assert event_kinds(world, job_id).count("retry.requested") == 2


def test_a_different_retry_conflicts_with_a_pending_one(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.FAILED)
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": {"priority": 3}}).status_code == 202
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": {"priority": 3}}).status_code == 202
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": {"priority": 4}}).status_code == 409


def test_a_job_that_is_being_cancelled_is_not_retried(world: World) -> None:
    job_id = world.submit()
    world.client.post(f"/api/v1/jobs/{job_id}/cancel")
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry").status_code == 409
    world.advance(job_id, JobState.CANCELLED)
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry").status_code == 202
    assert world.job(job_id).desired.cancelled is False


def test_a_retry_may_change_the_spec(world: World) -> None:
    job_id = world.submit(run={"trainer": {"steps": 10}}, labels={"a": "1", "b": "2"})
    world.advance(job_id, JobState.FAILED)
    patch = {"run": {"trainer": {"learning_rate": 0.1}}, "labels": {"a": None}}
    spec = world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": patch}).json()["spec"]
    assert spec["run"]["trainer"] == {"steps": 10, "learning_rate": 0.1}
    assert spec["labels"] == {"b": "2"}
    event = world.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"][-1]
    assert event["evidence"]["changed"] == ["/run/trainer/learning_rate", "/labels/a"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"patch": {"run": {"trainer": {"steps": 0}}}}, "/patch/run/trainer/steps"),
        ({"patch": {"nodes": 3}}, "/patch/nodes"),
        ({"patch": {"name": "other"}}, "/patch/name"),
        ({"patch": {"topology": {"nodes": "9"}}}, "/patch/topology"),
        ({"patch": {"snapshot": {"dir": "here"}}}, "/patch/snapshot/dir"),
        ({"patch": []}, "/patch"),
        ({"restore_from": "../../etc"}, "/restore_from"),
        ({"restore_from": "step-00000010-a1-g1"}, "/restore_from"),
        ({"restore": "x"}, "/restore"),
    ],
)
def test_an_impossible_retry_is_refused_by_field(world: World, body: object, pointer: str) -> None:
    job_id = world.submit(run={"trainer": {"steps": 10}})
    world.advance(job_id, JobState.FAILED)
    answer = world.client.post(f"/api/v1/jobs/{job_id}/retry", json=body)
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert world.job(job_id).desired.retry_number == 0


@pytest.mark.parametrize("own_folder", [True, False])
def test_a_retry_may_name_a_committed_snapshot(world: World, tmp_path: Path, own_folder: bool) -> None:
    job_id = world.submit(**({"snapshot": {"dir": str(tmp_path / "elsewhere")}} if own_folder else {}))
    world.advance(job_id, JobState.FAILED)
    below = tmp_path / "elsewhere" / job_id if own_folder else world.root / job_id / "snapshots"
    (below / "step-00000010-a1-g1").mkdir(parents=True)
    (below / "step-00000010-a1-g1" / "MANIFEST.json").write_text("{}")
    answer = world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"restore_from": "step-00000010-a1-g1"})
    assert answer.status_code == 202
    assert world.job(job_id).desired.restore_from == "step-00000010-a1-g1"


@pytest.mark.parametrize("place", ["an object store", "nodes that share no files"])
def test_a_remote_snapshot_is_known_from_the_journals(world: World, place: str) -> None:
    if place == "an object store":
        job_id = world.submit(snapshot={"dir": "s3://snapshots.example/research"})
    else:
        job_id = world.submit()
        clusters = world.services.commands._checks.clusters
        assert isinstance(clusters, dict)
        clusters["local"] = replace(clusters["local"], shares_files=False)
    world.start(job_id)
    world.advance(job_id, JobState.FAILED)
    kept, lost = "step-00000010-a1-g1", "step-00000020-a1-g1"
    told = [
        make_journal_event("snapshot.committed", evidence={"name": kept}),
        make_journal_event("snapshot.committed", evidence={"name": lost}),
        make_journal_event("snapshot.quarantined", evidence={"name": lost}),
    ]
    batch = make_batch(job_id, events=[(offset, event) for offset, event in enumerate(told, 1)])
    world.journals.ingest([batch], arrived_at=world.clock.now())
    retries = {
        name: world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"restore_from": name}).status_code
        for name in (lost, "step-00000030-a1-g1", kept)
    }
    assert retries == {lost: 422, "step-00000030-a1-g1": 422, kept: 202}
