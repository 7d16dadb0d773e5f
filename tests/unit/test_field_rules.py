"""Errors of fields are plain sentences, not pydantic's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.field_rules import _FORMS, describe_rule
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.sweep import ArraySpec
from orchestrator.domain.specs.validation import parse_model, parse_spec
from orchestrator.settings import Settings
from orchestrator.wire.credential_views import SecretRequest, TokenRequest
from orchestrator.wire.job_requests import ChaosRequest, RetryRequest, ScaleRequest, StacksRequest
from orchestrator.wire.reports import ReportBody
from orchestrator.wire.webhook_views import WebhookRequest
from tests.builders import make_spec
from tests.examples import examples

BODIES = (JobSpec, ArraySpec, TokenRequest, SecretRequest, WebhookRequest, RetryRequest)
MORE_BODIES = (ScaleRequest, StacksRequest, ChaosRequest, ReportBody)
FOREIGN = re.compile(r"[Ii]nput should|[Ss]tring should|pattern|class '|pydantic|dictionary|instance of|\btuple\b")
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text("aA-_. $é", max_size=300)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("a_$", max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "/name",
            "My_Job",
            "must have 1 to 63 lower-case letters, digits and hyphens, and begin and end with a letter "
            "or a digit, found 'My_Job'",
        ),
        ("/name", 3, "must be text, found 3"),
        ("/priority", "high", "must be a whole number, found 'high'"),
        ("/priority", 101, "must be at most 100, found 101"),
        ("/launcher", "torch", "must be 'elasticrun' or 'torchrun', found 'torch'; did you mean torchrun?"),
        ("/resources/gpus", 1.5, "must be a whole number, found 1.5"),
        ("/resources/cpus", "two", "must be a number, found 'two'"),
        ("/resources/memory_gb", 0, "must be greater than 0, found 0"),
        ("/supervise/startup_timeout_s", 1e9, "must be at most 315360000, found 1000000000.0"),
        ("/snapshot/on_preemption", "maybe", "must be true or false, found 'maybe'"),
        ("/topology", [], "must be an object, found a list"),
        ("/after", "job", "must be a list, found 'job'"),
        ("/notify", ["x"] * 21, "must have at most 20 entries, found a list"),
        ("/run/image", "x" * 5000, f"must have at most 4096 characters, found '{'x' * 79}..."),
        ("/run/command", [], "must have 1 or more entries, found a list"),
    ],
)
def test_an_error_says_what_the_value_must_be(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(planted({"name": "gpt", "run": {"script": "a.py"}}, field.split("/")[1:], value))
    assert [each.message for each in refused.value.problems if each.pointer == field] == [message]


@pytest.mark.parametrize("model", [*BODIES, *MORE_BODIES, Settings], ids=lambda model: model.__name__)
@settings(max_examples=examples(30, 300))
@given(data=st.data())
def test_no_error_is_in_the_words_of_pydantic(model: type[BaseModel], data: st.DataObject) -> None:
    document = planted({}, data.draw(st.sampled_from(list_places(model))), data.draw(VALUES))
    try:
        if model is Settings:
            model.model_validate(document)
        else:
            parse_model(model, document)
    except InvalidSpec as error:
        messages = [each.message for each in error.problems]
    except ValidationError as error:
        messages = [describe_rule(detail) for detail in error.errors()]
    else:
        messages = []
    assert not [message for message in messages if FOREIGN.search(message)]


def test_an_error_of_our_own_rule_keeps_its_message() -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_model(ArraySpec, {"name": "gpt", "run": {"script": "a.py"}, "sweep": {}})
    assert [each.message for each in refused.value.problems] == [
        "needs exactly one of product, zip and list; found none of them"
    ]


def test_each_form_of_a_text_has_its_sentence() -> None:
    schemas = [model.model_json_schema() for model in (*BODIES, *MORE_BODIES, Settings)]
    used = {form for schema in schemas for form in patterns(schema)}
    assert used - _FORMS.keys() == set()


def patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from schema.get("patternProperties", {})
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else ():
        yield from patterns(each)


@cache
def list_places(model: type[BaseModel]) -> list[tuple[str, ...]]:
    schema = model.model_json_schema()
    return sorted(set(places(schema, schema.get("$defs", {}))))


def places(schema: Any, known: Any, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Ways into a document, by the names of its fields. `0` is a list's first value, `x` and `$` are keys."""
    schema = known[schema["$ref"].rsplit("/")[-1]] if "$ref" in schema else schema
    yield ()
    if depth > 4:
        return
    below = dict(schema.get("properties", {}))
    for name in ("additionalProperties", *schema.get("patternProperties", ())):
        if isinstance(found := schema.get(name, schema.get("patternProperties", {}).get(name)), dict):
            below |= {"x": found, "$": found}
    if isinstance(schema.get("items"), dict):
        below["0"] = schema["items"]
    for name, each in below.items():
        for way in places(each, known, depth + 1):
            yield (name, *way)
    for each in schema.get("anyOf", schema.get("oneOf", ())):
        yield from places(each, known, depth + 1)


def planted(document: dict[str, Any], place: Any, value: object) -> Any:
    """A copy of the document with the value at this place."""
    if not place:
        return value
    if place[0] == "0":
        return [planted({}, place[1:], value)]
    inner = document.get(place[0], {})
    return {**document, place[0]: planted(inner if isinstance(inner, dict) else {}, place[1:], value)}


def test_a_label_may_not_contain_what_the_database_would_drop() -> None:
    with pytest.raises(ValidationError, match="NUL"):
        make_spec(labels={"team": "vision\0"})
