"""Hostile bodies of an allowed size: they take time and memory in proportion to their size.

What they once cost, before each was fixed, would run into the timeout of a test or hold gigabytes.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.api.documents import parse_json, parse_yaml
from orchestrator.api.errors import HttpProblem
from orchestrator.backends.local.render import render_processes
from orchestrator.commands.job_commands import parse_spec_patch
from orchestrator.commands.preview import MOST_REPLICAS
from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.domain.specs.spec import MAX_SPEC_BYTES
from orchestrator.domain.specs.validation import MOST_LEAVES, MOST_PROBLEMS, check_plain, leaves, parse_spec
from tests.api.conftest import World
from tests.unit.situations import a_job, a_spec, an_attempt
from tests.unit.test_launch import SITE

KEYS = 50_000
YAML_KEYS = 9_000
LONG = "k" * 100_000
MOST_BYTES = 100 * MAX_SPEC_BYTES


def peak(work: Callable[[], object]) -> int:
    """The peak memory of Python objects while `work` runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_duplicate_key_is_found_in_one_pass() -> None:
    def named_twice(count: int) -> list[str]:
        return [*(f"k{number}" for number in range(count)), f"k{count - 1}"]

    texts = {
        (parse_json, KEYS): "{" + ",".join(f'"{key}":1' for key in named_twice(KEYS)) + "}",
        (parse_yaml, YAML_KEYS): "".join(f"{key}: 1\n" for key in named_twice(YAML_KEYS)),
    }
    for (parse, count), text in texts.items():
        assert len(text) < MAX_SPEC_BYTES
        with pytest.raises(HttpProblem, match=f"'k{count - 1}' appears twice"):
            parse(text)


def test_pointers_below_a_long_key_take_little_memory() -> None:
    assert peak(lambda: check_plain({LONG: [0] * 100_000})) < MOST_BYTES
    assert peak(lambda: check_plain({LONG: {str(number): 0 for number in range(50_000)}})) < MOST_BYTES
    (problem,) = check_plain({"a/b": [0, {"~": float("inf")}]}, prefix="/patch")
    assert problem.pointer == "/patch/a~1b/1/~0"


def test_of_many_invalid_fields_the_first_are_listed_and_the_rest_counted() -> None:
    wrong = {f"field{number}": 1 for number in range(5000)}
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({"name": "demo", "run": {"command": ["true"]}, **wrong})
    problems = caught.value.problems
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[0].pointer == "/field0"
    assert problems[-1].message == f"holds {5000 - MOST_PROBLEMS} more wrong fields"

    def refuse() -> None:
        with pytest.raises(InvalidSpec):
            parse_spec({"name": "demo", "run": {"command": ["true"]}, "labels": {LONG: 1, **wrong}})

    assert peak(refuse) < MOST_BYTES


def test_a_patch_is_summarized_by_its_first_leaves() -> None:
    config = {"task": "a:b", "task_config": {LONG: {str(number): 0 for number in range(50_000)}}}
    patch = {"run": {"trainer": config}}
    assert peak(lambda: leaves(patch)) < MOST_BYTES
    found = leaves(patch)
    assert len(found) == MOST_LEAVES
    assert max(map(len, found)) < 1000
    spec = a_spec(run={"trainer": {}}).model_dump(mode="json", by_alias=True)
    assert parse_spec_patch(spec, patch).run.trainer is not None


def test_a_job_for_very_many_nodes_is_planned_without_a_copy_for_each() -> None:
    variables = {f"A{number}": "x" * 1000 for number in range(500)}
    spec = a_spec(topology={"nodes": "99999"}, run={"command": ["true"], "env": variables})
    attempt = an_attempt(AttemptState.INTENDED, nodes="99999")

    def plan() -> None:
        made = build_plan(a_job(spec=spec), attempt, SITE)
        assert made.environment(99998)["ORCHESTRATOR_REPLICA"] == "99998"
        assert len(render_processes(made).text) < MOST_BYTES

    assert peak(plan) < MOST_BYTES


def test_a_plan_of_many_replicas_shows_the_first_with_a_warning(world: World) -> None:
    world.backend.slot_count = 100_000
    few = world.post_spec("/api/v1/plan", topology={"nodes": str(MOST_REPLICAS)})
    many = world.post_spec("/api/v1/plan", topology={"nodes": str(MOST_REPLICAS + 1)})
    assert [len(answer.json()["replicas"]) for answer in (few, many)] == [MOST_REPLICAS, MOST_REPLICAS]
    told = [any("replicas" in warning for warning in answer.json()["warnings"]) for answer in (few, many)]
    assert told == [False, True]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a-" * 400_000},
        {"topology": {"nodes": "1" * 900_000}},
        {"run": {"script": "x" * 900_000}},
        {"labels": {"x" * 900_000: "y"}},
        {"x" * 900_000: 1},
        {"after": [1] * 190_000},
        {"run": {"command": [[]] * 190_000}},
        {"placement": {"overlay": {"a": [{}] * 190_000}}},
        {"snapshot": {"interval": "9" * 900_000 + "s"}},
    ],
    ids=["name", "nodes", "script", "label", "unknown", "after", "command", "overlay", "interval"],
)
def test_a_body_of_the_largest_size_is_answered(world: World, body: dict[str, Any]) -> None:
    answer = world.post_spec(**body)
    assert answer.status_code in (201, 422)
    assert len(answer.content) < 8 * MAX_SPEC_BYTES
