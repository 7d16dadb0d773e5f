"""Invalid specs are refused by field, with a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import World


def problem_at(world: World, pointer: str, **fields: Any) -> str:
    """Submit, expect 422 with this pointer, and return its message. The default of `run.workdir` is the world's."""
    if "run" in fields:
        fields["run"] = {"workdir": str(world.workdir), **fields["run"]}
    answer = world.post_spec(**fields)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == "/problems/invalid"
    assert document["status"] == 422
    messages = {error["pointer"]: error["detail"] for error in document["errors"]}
    assert pointer in messages, document
    assert world.client.get("/api/v1/jobs").json()["items"] == []
    return str(messages[pointer])


def test_an_unknown_field_is_named(world: World) -> None:
    assert problem_at(world, "/launcher", launcher="tourchrun").endswith("; did you mean torchrun?")
    assert problem_at(world, "/nodes", nodes=2).startswith("is not a known field; there are name, project, cluster")
    known = problem_at(world, "/topology/node", topology={"node": 2})
    assert known == "is not a known field; did you mean 'nodes'?"


@pytest.mark.parametrize(
    ("pointer", "fields", "words"),
    [
        ("/priority", {"priority": "two"}, "found 'two'"),
        ("/topology/workers_per_node", {"topology": {"workers_per_node": "many"}}, "found 'many'"),
        ("/topology/workers_per_node", {"topology": {"workers_per_node": "gpu"}}, "no GPU"),
        (
            "/topology",
            {"topology": {"nodes": "4:6", "workers_per_node": 2}},
            "needs 8 workers, cluster local has 4",
        ),
        ("/resources/gpus", {"resources": {"gpus": 1}}, "has 0"),
        ("/cluster", {"cluster": "slurm"}, "known: local"),
        ("/run", {"run": {"trainer": {}, "script": "train.py"}}, "trainer and script"),
        ("/run", {"run": {}}, "none of them"),
        ("/run/script", {"run": {"script": "absent.py"}}, "absent.py is missing"),
        ("/run/script", {"run": {"script": "."}}, "a directory"),
        ("/run/script", {"run": {"script": "x" * 4000}}, ""),
        ("/run/script", {"run": {"script": "a/" * 2000 + "b"}}, ""),
        ("/run/workdir", {"run": {"command": ["true"], "workdir": "/no/such/place"}}, ""),
        ("/run/env/BAD NAME", {"run": {"command": ["true"], "env": {"BAD NAME": "1"}}}, ""),
        ("/run/env/with~1slash~0", {"run": {"command": ["true"], "env": {"with/slash~": "2"}}}, ""),
        ("/snapshot/dir", {"snapshot": {"dir": "/dev/null/snapshots"}}, "cannot be written"),
        ("/snapshot/dir", {"snapshot": {"dir": "snapshots"}}, "absolute"),
        ("/snapshot/dir", {"snapshot": {"dir": "memory://snapshots"}}, "does not outlive the process"),
        ("/snapshot/from", {"snapshot": {"from": "s3://"}}, "names no folder"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_invalid_field_is_refused_with_its_pointer(
    world: World, pointer: str, fields: dict[str, Any], words: str
) -> None:
    assert words in problem_at(world, pointer, **fields)


def test_a_range_of_nodes_needs_room_only_for_its_fewest_nodes(world: World) -> None:
    assert world.post_spec(topology={"nodes": "1:9", "workers_per_node": 2}).status_code == 201


def test_a_missing_field_is_named(world: World) -> None:
    answer = world.client.post("/api/v1/jobs", json={"name": "demo"})
    assert answer.json()["errors"] == [{"pointer": "/run", "detail": "is required"}]


@pytest.mark.parametrize("document", ["[]", '"text"', "3", "null", "true"])
def test_a_spec_that_is_not_an_object_is_refused(world: World, document: str) -> None:
    answer = world.client.post("/api/v1/jobs", content=document, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == ""


def test_impossible_numbers_of_nodes_and_workers_are_refused(world: World) -> None:
    for nodes in ("3:1", "0", "-1", "two", "1:", "", "1:2:3", 0, -4, 1.5, None, True):
        problem_at(world, "/topology/nodes", topology={"nodes": nodes})
    for workers in (0, -1, 10**9, 1.5, None):
        problem_at(world, "/topology/workers_per_node", topology={"workers_per_node": workers})


def test_a_relative_workdir_is_stored_absolute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.workdir)
    job_id = world.submit(run={"script": "train.py"})
    assert world.job(job_id).spec.run.workdir == str(world.workdir)


def test_training_data_must_be_there_and_hold_something(world: World) -> None:
    (world.workdir / "empty.txt").touch()
    (world.workdir / "hollow" / "below").mkdir(parents=True)
    (world.workdir / "hollow" / "below" / "nothing.txt").touch()
    (world.workdir / "full").mkdir()
    (world.workdir / "full" / "text.txt").write_text("some words")

    def run(data: str) -> dict[str, Any]:
        return {"trainer": {"data": data}, "workdir": str(world.workdir)}

    assert "missing" in problem_at(world, "/run/trainer/data", run=run("absent"))
    assert "is empty" in problem_at(world, "/run/trainer/data", run=run("empty.txt"))
    assert "is empty" in problem_at(world, "/run/trainer/data", run=run("hollow"))
    assert world.post_spec(run=run("full")).status_code == 201


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("steps", -3), ("steps", "many"), ("strategy", "magic"), ("stepz", 3), ("dropout", 1.0)],
)
def test_an_invalid_field_of_the_trainer_has_its_pointer(world: World, field: str, value: object) -> None:
    problem_at(world, f"/run/trainer/{field}", run={"trainer": {field: value}})


def test_a_check_of_the_snapshot_folder_leaves_nothing_behind(world: World, tmp_path: Path) -> None:
    world.submit(snapshot={"dir": str(tmp_path / "new" / "folder")})
    assert not (tmp_path / "new").exists()


def test_a_snapshot_to_start_from_must_be_committed(world: World, tmp_path: Path) -> None:
    source = tmp_path / "step-00000010-a1-g1"
    source.mkdir()
    assert "MANIFEST.json" in problem_at(world, "/snapshot/from", snapshot={"from": str(source)})
    (source / "MANIFEST.json").write_text("{}")
    assert world.post_spec(snapshot={"from": str(source)}).status_code == 201


@pytest.mark.parametrize(
    "name",
    ["../up", "a b", 'quo"te', "semi;colon", "$(reboot)", "`id`", "a\nb", "-dash", "Upper", "", "x" * 64, "x" * 10_000],
)
def test_invalid_names_are_refused(world: World, name: str) -> None:
    problem_at(world, "/name", name=name)


@pytest.mark.parametrize(
    ("pointer", "fields"),
    [
        ("/after/0", {"after": ["other-job"]}),
        ("/notify/0", {"notify": ["pager"]}),
        ("/placement/partition", {"placement": {"partition": "main"}}),
        ("/placement/exclude", {"placement": {"exclude": ["node7"]}}),
        ("/placement/tolerations", {"placement": {"tolerations": [{"key": "gpu"}]}}),
        ("/resources/gpu_type", {"resources": {"gpu_type": "h100"}}),
        ("/resources/extra", {"resources": {"extra": {"rdma/hca": "1"}}}),
        ("/run/image", {"run": {"command": ["true"], "image": "x:1"}}),
        ("/run/secrets/0", {"run": {"command": ["true"], "secrets": ["WANDB_API_KEY"]}}),
        ("/topology/nodes", {"launcher": "torchrun", "topology": {"nodes": "1:2"}}),
    ],
)
def test_unsupported_fields_are_refused(world: World, pointer: str, fields: dict[str, Any]) -> None:
    problem_at(world, pointer, **fields)


def test_all_invalid_fields_are_named_at_once(world: World) -> None:
    answer = world.post_spec(priority=1000, labels={"a b": "c"}, topology={"nodes": "0"})
    pointers = {error["pointer"] for error in answer.json()["errors"]}
    assert pointers == {"/priority", "/labels/a b", "/topology/nodes"}


def test_each_wrong_field_of_the_trainer_has_its_pointer(world: World) -> None:
    run = {"workdir": str(world.workdir), "trainer": {"stratgy": "ddp", "steps": "many"}}
    errors = world.post_spec(run=run).json()["errors"]
    assert {error["pointer"]: error["detail"] for error in errors} == {
        "/run/trainer/stratgy": "is not a field of the trainer; did you mean strategy?",
        "/run/trainer/steps": "is 'many', must be a whole number",
    }
