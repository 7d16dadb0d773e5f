"""A stored spec is shown as the models would show it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.stored_spec import show_stored_spec
from tests.builders import make_spec
from tests.specs import specs


def show(stored: object) -> bytes:
    return to_json(show_stored_spec(json.dumps(stored, ensure_ascii=False)))


def render(spec: JobSpec) -> bytes:
    return spec.model_dump_json(by_alias=True).encode()


@given(specs())
def test_a_stored_spec_is_shown_as_the_models_render_it(document: dict[str, Any]) -> None:
    stored = JobSpec.model_validate(document).model_dump(mode="json", by_alias=True)
    assert show(stored) == render(JobSpec.model_validate(stored))


@given(specs(), st.data())
def test_fields_that_an_older_version_did_not_store_have_their_defaults(
    document: dict[str, Any], data: st.DataObject
) -> None:
    stored = JobSpec.model_validate(document).model_dump(mode="json", by_alias=True)
    for section in (stored, stored["topology"], stored["placement"], stored["supervise"], stored["snapshot"]):
        for name in data.draw(st.sets(st.sampled_from(sorted(set(section) - {"name", "run"})), max_size=3)):
            del section[name]
    assert show(stored) == render(JobSpec.model_validate(stored))


def test_fields_of_a_newer_version_are_left_out() -> None:
    spec = make_spec()
    stored = json.loads(render(spec))
    stored["invented"] = stored["run"]["invented"] = 1
    assert show(stored) == render(JobSpec.model_validate_json(render(spec)))


def test_numbers_that_an_older_version_stored_as_integers_are_shown_as_they_are_today() -> None:
    stored = json.loads(render(make_spec()))
    stored["supervise"] |= {"backoff_s": [5, 300], "refund_after_s": 3600}
    assert show(stored) == render(JobSpec.model_validate(stored))


def test_a_value_that_is_refused_today_is_shown_as_it_was_stored() -> None:
    stored = json.loads(render(make_spec()))
    stored["run"]["trainer"] = {"no_longer": "known"}
    assert json.loads(show(stored))["run"]["trainer"] == {"no_longer": "known"}


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"run": 1, "topology": [], "supervise": {"budgets": null}}'])
def test_a_damaged_spec_shows_the_defaults(text: str) -> None:
    defaults = json.loads(render(make_spec()))
    defaults["name"] = defaults["run"]["command"] = None
    assert show_stored_spec(text) == defaults


def test_a_spec_that_is_too_long_to_be_remembered_is_shown_too() -> None:
    stored = json.loads(render(make_spec()))
    stored["run"]["env"] = {f"NAME_{number}": "x" * 1000 for number in range(30)}
    assert show(stored) == show(stored) == render(JobSpec.model_validate(stored))


def test_texts_of_the_usual_size_are_remembered() -> None:
    usual, large = (
        render(make_spec(run={"command": ["true"], "env": {"A": "x" * size}})).decode() for size in (10, 20_000)
    )
    assert show_stored_spec(usual) is show_stored_spec(usual)
    assert show_stored_spec(large) is not show_stored_spec(large)
