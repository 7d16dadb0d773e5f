"""Dry runs: memory, outlook in the queue, and differences from a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orchestrator.domain.errors import BackendUnavailable
from tests.api.conftest import FIRST_TOKEN, World
from tests.api.running import run
from tests.builders import make_batch, make_journal_event, make_progress

BOSS = {"Authorization": f"Bearer {FIRST_TOKEN}"}


def plan(world: World, *, query: str = "", **fields: Any) -> dict[str, Any]:
    answer = world.post_spec(f"/api/v1/plan{query}", **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_job_would_start_now_on_an_empty_cluster(world: World) -> None:
    outlook = plan(world, topology={"workers_per_node": 3})["outlook"]
    assert outlook == {
        "admitted": True,
        "sentence": "it takes 3 of 4 slots",
        "ahead": 0,
        "total": 4,
        "free": 4,
        "excluded_nodes": [],
    }


def test_the_outlook_says_what_a_job_would_wait_for(world: World) -> None:
    run(world, topology={"workers_per_node": 3})
    waiting = world.submit(topology={"workers_per_node": 2})
    world.clock.moment += timedelta(seconds=1)
    found = plan(world, topology={"workers_per_node": 1})["outlook"]
    assert (found["admitted"], found["ahead"], found["free"]) == (False, 1, 1)
    assert found["sentence"] == f"waits behind {waiting}, which waits for slots"
    urgent = plan(world, topology={"workers_per_node": 1}, priority=50)["outlook"]
    assert (urgent["admitted"], urgent["ahead"]) == (True, 0)


def test_the_outlook_names_the_job_that_it_waits_for(world: World) -> None:
    first = world.submit()
    found = plan(world, after=[first])["outlook"]
    assert found["sentence"] == f"waits for job {first} to succeed; it is QUEUED"


def test_nodes_with_a_record_would_be_avoided(world: World) -> None:
    world.blame("n7", run(world))
    assert plan(world)["outlook"]["excluded_nodes"] == ["n7"]
    assert plan(world, supervise={"exclude_bad_nodes": False})["outlook"]["excluded_nodes"] == []


def test_a_plan_for_a_cluster_that_does_not_answer_has_no_outlook(world: World) -> None:
    def silent() -> int:
        raise BackendUnavailable("it does not answer")

    world.backend.slots = silent  # type: ignore[method-assign]
    assert plan(world)["outlook"] is None


def test_a_plan_lists_the_ways_to_train_and_the_first_that_fits(world: World) -> None:
    trainer = {"run": {"trainer": {"model": "gpt"}, "workdir": str(world.workdir)}, "resources": {"memory_gb": 64}}
    found = plan(world, **trainer)
    assert found["fitting"] == found["rungs"][0]["name"]
    assert found["rungs"][0]["total_bytes"] > 0
    assert plan(world)["rungs"] == []


def test_a_plan_shows_the_snapshot_of_the_spec(world: World) -> None:
    assert plan(world)["restores"] is None
    named = world.workdir / "step-00000010-a1-g1"
    named.mkdir()
    (named / "MANIFEST.json").write_text("{}")
    assert plan(world, snapshot={"from": str(named)})["restores"] == str(named)


def test_the_same_spec_changes_nothing_of_its_job(world: World) -> None:
    job_id = run(world, topology={"workers_per_node": 2})
    found = plan(world, query=f"?against={job_id}", topology={"workers_per_node": 2})["against"]
    assert (found["job"], found["state"], found["attempt"]) == (job_id, "RUNNING", 1)
    assert (found["spec_changes"], found["request_changes"]) == ([], [])
    assert (found["restores"], found["redo_steps"], found["redo_s"]) == (None, None, None)


def test_a_changed_spec_is_shown_with_what_it_changes_of_the_request(world: World) -> None:
    job_id = run(world, topology={"workers_per_node": 2})
    found = plan(world, query=f"?against={job_id}", topology={"workers_per_node": 3})["against"]
    assert '-  "workers_per_node": 2' in found["spec_changes"]
    assert '+  "workers_per_node": 3' in found["spec_changes"]
    assert any(line.startswith("+") and "3" in line for line in found["request_changes"])
    assert not any("preview" in line for line in found["request_changes"])


def test_repeated_steps_are_counted_from_the_newest_snapshot(world: World) -> None:
    job_id = run(world)
    committed = make_journal_event("snapshot.committed", evidence={"name": "step-00000010-a1-g1", "size_bytes": 5})
    lines = [(number, make_progress(number, seconds=2 * number)) for number in range(1, 15)]
    world.journals.ingest([make_batch(job_id, progress=lines, events=[(1, committed)])], arrived_at=world.clock.now())
    found = plan(world, query=f"?against={job_id}")["against"]
    assert (found["restores"], found["redo_steps"]) == ("step-00000010-a1-g1", 4)
    assert found["redo_s"] is not None


def test_a_plan_against_a_hidden_job_is_not_found(closed: World) -> None:
    submitted = closed.client.post("/api/v1/jobs", json=closed.spec(project="secret"), headers=BOSS).json()
    alice = closed.give("vision=submitter")

    def status(job_id: str, headers: dict[str, str]) -> tuple[int, str]:
        spec = closed.spec(project="vision")
        answer = closed.client.post(f"/api/v1/plan?against={job_id}", json=spec, headers=headers)
        return answer.status_code, answer.json().get("detail", "").replace(job_id, "ID")

    assert status(submitted["id"], alice) == status("nobody", alice) == (404, "there is no job ID")
    assert status(submitted["id"], BOSS)[0] == 200


def test_a_plan_against_no_job_is_refused_as_the_document_says(world: World) -> None:
    documented = world.client.get("/openapi.json").json()["paths"]["/api/v1/plan"]["post"]["responses"]
    for job_id in ("", "no-such-job"):
        assert world.post_spec(f"/api/v1/plan?against={job_id}").status_code == 404
    assert "404" in documented
