"""Request bodies as bytes: content types, limits, and hostile texts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from orchestrator.api.documents import parse_document, parse_json, parse_yaml
from orchestrator.api.errors import HttpProblem
from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.specs.validation import parse_spec
from tests.api.conftest import World

JSON = {"Content-Type": "application/json"}
YAML = {"Content-Type": "application/yaml"}


def refusal(
    world: World, status: int, content: bytes | str, headers: dict[str, str], path: str = "/api/v1/jobs"
) -> str:
    answer = world.client.post(path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    return str(answer.json()["detail"])


def assert_malformed(text: str, content_type: str) -> None:
    with pytest.raises(HttpProblem) as refused:
        parse_document(text.encode(), content_type)
    assert refused.value.kind == "malformed"


def test_a_yaml_spec_means_the_same_as_json(world: World) -> None:
    text = f"name: demo\nrun:\n  script: train.py\n  workdir: {world.workdir}\ntopology: {{nodes: 1:2}}\n"
    answer = world.client.post("/api/v1/jobs", content=text, headers=YAML)
    assert answer.status_code == 201
    assert answer.json()["spec"]["topology"]["nodes"] == "1:2"


def test_yaml_numbers_and_words_are_those_of_version_1_2(world: World) -> None:
    text = "name: demo\nrun: {trainer: {learning_rate: 1e-3}}\nlabels: {country: no, day: 2026-01-01}\n"
    spec = world.client.post("/api/v1/jobs", content=text, headers=YAML).json()["spec"]
    assert spec["run"]["trainer"]["learning_rate"] == 0.001
    assert spec["labels"] == {"country": "no", "day": "2026-01-01"}


def test_a_yaml_spec_with_aliases_is_refused(world: World) -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    assert "aliases" in refusal(world, 400, "l0: &l0 [x]\n" + levels, YAML)
    assert "aliases" in refusal(world, 400, "a: &a [*a]", YAML)


@pytest.mark.parametrize(
    "text",
    ["".join(f"k{number}: 1\n" for number in range(10_001)), "[" + "[],1," * 7_000 + "]", "---\n" * 20_000],
    ids=["keys", "lists", "documents"],
)
def test_yaml_of_very_many_values_is_refused_before_it_is_built(world: World, text: str) -> None:
    assert "application/json" in refusal(world, 413, text, YAML)


def test_a_long_text_in_yaml_is_one_value() -> None:
    lines = "".join(f"line {number}\n" for number in range(40_000))
    assert len(lines) > 400_000
    assert parse_yaml("text: |\n" + "".join(f"  {line}\n" for line in lines.splitlines())) == {"text": lines}


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_yaml_directives_are_refused_before_the_parser_compares_them(world: World, end: str) -> None:
    text = f"#{end}" + "".join(f"%TAG !{number}! x{end}" for number in range(20_000)) + f"---{end}name: demo{end}"
    assert "directives" in refusal(world, 400, text, YAML)


@pytest.mark.parametrize(
    "text",
    [
        "name: [",
        "name: demo\nname: other",
        "--- a\n--- b",
        "!!python/object/apply:os.system ['true']",
        "a: !!bool maybe",
        "a: !!float ''",
        "{[1]: 2}",
        "[" * 100_000,
        "- " * 50_000,
        "a: &a\n" * 3,
        "\x00",
        "name: \x07",
    ],
)
def test_invalid_yaml_is_refused(text: str) -> None:
    assert_malformed(text, "application/yaml")


@pytest.mark.parametrize("text", ["a: !!binary aGk=", "a: !!timestamp 2026-01-01", "1: 2", "a: .nan", "a: !!set {x}"])
def test_yaml_values_without_a_json_form_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_spec(parse_yaml(text))


@pytest.mark.parametrize(
    "text", ["{", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 2}', "[" * 200_000, '{"a":' * 50_000, "1" * 10_000]
)
def test_invalid_json_is_refused(text: str) -> None:
    assert_malformed(text, "application/json")


@pytest.mark.parametrize(
    "value", ["1e999", "1" * 400, "-" + "9" * 40, r'"\ud800"', r'{"\udc00": 1}', "[" * 60 + "]" * 60]
)
def test_extreme_json_values_are_refused(value: str) -> None:
    spec = {"name": "demo", "run": {"trainer": {}}}
    for fields in ({"priority": "HERE"}, {"run": {"trainer": {"learning_rate": "HERE"}}}):
        text = json.dumps({**spec, **fields}).replace('"HERE"', value)
        with pytest.raises(InvalidSpec):
            parse_spec(parse_json(text))


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b'{"name": "\xe9"}', "{}".encode("utf-16")])
def test_a_body_that_is_not_utf8_is_refused(world: World, raw: bytes) -> None:
    for headers in (JSON, YAML):
        assert "UTF-8" in refusal(world, 400, raw, headers)


@pytest.mark.parametrize("raw", [b"", b"  \n"])
def test_an_empty_body_is_refused(world: World, raw: bytes) -> None:
    assert "empty" in refusal(world, 400, raw, JSON)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"])
def test_a_body_of_another_type_is_refused(world: World, kind: str) -> None:
    assert "application/yaml" in refusal(world, 415, b"{}", {"Content-Type": kind})


def test_a_body_without_a_type_is_refused(world: World) -> None:
    assert "missing" in refusal(world, 415, b"{}", {})


def test_a_spec_of_5_megabytes_is_refused(world: World) -> None:
    raw = json.dumps(world.spec(labels={"long": "x" * 5_000_000})).encode()
    for path in ("/api/v1/jobs", "/api/v1/plan"):
        assert "1048576" in refusal(world, 413, raw, JSON, path)


def test_a_long_body_without_a_length_is_refused(world: World) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 100_000

    answer = world.client.post("/api/v1/jobs", content=chunks(), headers=JSON)
    assert answer.status_code == 413


def test_a_spec_below_the_size_limit_is_accepted(world: World) -> None:
    args = ["x" * 30_000] * 30
    answer = world.post_spec(run={"script": "train.py", "workdir": str(world.workdir), "args": args})
    assert answer.status_code == 201
    assert answer.json()["spec"]["run"]["args"] == args


def test_a_report_may_be_longer_than_a_spec_up_to_a_limit(world: World) -> None:
    body = {"job_id": "x", "attempt": 1, "replica": 0, "incarnation": 1, "progress": ["y" * 4_000_000]}
    assert world.client.post("/api/v1/reports", json=body).status_code == 200
    body["progress"] = ["y" * 9_000_000]
    assert world.client.post("/api/v1/reports", json=body).status_code == 413


def test_a_report_is_passed_on_and_answered_with_what_is_desired(world: World) -> None:
    body = {"job_id": "x", "attempt": 2, "replica": 0, "incarnation": 1, "of_a_newer_agent": {"a": 1}}
    answer = world.client.post("/api/v1/reports?of=tomorrow", json=body)
    nothing_more = {"stacks": 0, "stacks_rank": None, "chaos": None}
    assert answer.json() == {"desired": {"state": "stop", "snapshot": 2, "number": 7, **nothing_more}}
    assert world.intake.bodies[0].attempt == 2


def test_a_report_with_an_infinite_number_is_refused(world: World) -> None:
    text = '{"job_id": "x", "attempt": 1, "replica": 0, "incarnation": 1, "exit_record": {"deep": [1e999]}}'
    answer = world.client.post("/api/v1/reports", content=text, headers=JSON)
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/exit_record/deep/0"]


def test_a_report_with_a_wrong_field_is_refused(world: World) -> None:
    answer = world.client.post("/api/v1/reports", json={"job_id": "x", "attempt": 0, "replica": 0, "incarnation": 1})
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/attempt"]
