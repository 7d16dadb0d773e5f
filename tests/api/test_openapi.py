"""The OpenAPI document: operation ids, examples that work, links, schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All operations by operation id."""
    found = [each for methods in document["paths"].values() for each in methods.values()]
    named = {each["operationId"]: each for each in found}
    assert len(named) == len(found), "operation ids are not unique"
    return named


def test_the_operations_in_docs_are_those_that_exist(document: dict[str, Any]) -> None:
    page = Path(__file__).parents[2] / "docs" / "api.md"
    documented = set(re.findall(r"`(GET|POST|DELETE) (/[^`\s]+)`", page.read_text()))
    assert documented == {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def test_operation_ids_are_the_names_of_the_handlers(document: dict[str, Any]) -> None:
    names = operations(document)
    assert {"submit_job", "show_job", "list_events", "cancel_job", "create_token"} <= names.keys()
    assert all(name.isidentifier() for name in names)


def test_an_answer_with_a_job_links_to_every_operation_on_it(document: dict[str, Any]) -> None:
    of_a_job = {
        operation["operationId"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if path.startswith("/api/v1/jobs/{job_id}")
    }
    answers = operations(document)["submit_job"]["responses"]
    for status in ("200", "201"):
        assert answers[status]["links"].keys() == of_a_job
    link = answers["201"]["links"]["cancel_job"]
    assert link == {"operationId": "cancel_job", "parameters": {"job_id": "$response.body#/id"}}
    listed = operations(document)["list_jobs"]["responses"]["200"]["links"]
    assert listed["show_job"]["parameters"] == {"job_id": "$response.body#/items/0/id"}


def test_a_page_links_to_the_next_one(document: dict[str, Any]) -> None:
    names = operations(document)
    listed = names["list_jobs"]["responses"]["200"]["links"]["next_page"]
    assert listed == {"operationId": "list_jobs", "parameters": {"cursor": "$response.body#/next_cursor"}}
    events = names["list_events"]["responses"]["200"]["links"]["next_page"]
    assert events["parameters"] == {"job_id": "$request.path.job_id", "cursor": "$response.body#/next_cursor"}
    assert "next_page" not in names["list_clusters"]["responses"]["200"].get("links", {})


def test_a_link_names_an_operation_and_all_of_its_path_parameters(document: dict[str, Any]) -> None:
    names = operations(document)
    paths = {each["operationId"]: path for path, methods in document["paths"].items() for each in methods.values()}
    seen = 0
    for operation in names.values():
        for status, answer in operation["responses"].items():
            assert status.startswith("2") or "links" not in answer
            for link in answer.get("links", {}).values():
                taken = {part[1:-1] for part in paths[link["operationId"]].split("/") if part.startswith("{")}
                assert taken <= link["parameters"].keys()
                seen += 1
    assert seen > 100
    assert names["revoke_token"]["operationId"] in names["create_token"]["responses"]["201"]["links"]
    stored = names["store_secret"]["responses"]["201"]["links"]["remove_secret"]["parameters"]
    assert stored == {"project": "$response.body#/project", "name": "$response.body#/name"}


def test_the_examples_of_bodies_are_accepted(world: World, document: dict[str, Any]) -> None:
    tried = 0
    for path, methods in document["paths"].items():
        body = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        for name, example in body.get("examples", {}).items():
            job_id = world.submit(topology={"nodes": "2"})
            if path.endswith(("/stacks", "/chaos")):
                world.advance(job_id, JobState.STARTING, JobState.RUNNING)
                world.start(job_id, state=AttemptState.RUNNING)
            answer = world.client.post(path.replace("{job_id}", job_id), json=example["value"])
            refused = path.endswith("/retry") and "trainer" in str(example)  # the job does not use the bundled trainer
            assert answer.status_code == 422 if refused else answer.is_success, (name, answer.text)
            tried += 1
    assert tried >= 9


def test_only_name_and_run_are_required_in_a_spec(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    body = document["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    taken = schemas[body["$ref"].rpartition("/")[2]]
    assert taken["required"] == ["name", "run"]
    assert "required" not in schemas[taken["properties"]["run"]["$ref"].rpartition("/")[2]]


def test_schemas_have_unique_titles(document: dict[str, Any]) -> None:
    titles = [schema["title"] for schema in document["components"]["schemas"].values()]
    assert len(set(titles)) == len(titles)
    assert '"const"' not in str(document).replace("'", '"'), "client generators fail on const in unions"


def test_every_operation_has_a_summary_and_its_error_answers(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        if name == "show_health":
            continue
        assert {"401", "403", "429", "503"} <= operation["responses"].keys(), name
        assert operation.get("summary")


def test_405_lists_the_methods_of_every_path(world: World, document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for absent in ("OPTIONS", "PATCH"):
            answer = world.client.request(absent, path.replace("{", "").replace("}", ""))
            assert answer.status_code == 405
            assert set(answer.headers["allow"].split(", ")) == {method.upper() for method in methods}, path
            assert answer.headers["allow"] in answer.json()["detail"]
