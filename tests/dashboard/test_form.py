"""The form and the YAML of a submission stay in sync."""

from __future__ import annotations

import pytest
import yaml

from orchestrator.dashboard.form import FIRST, merge_fields, render_yaml, show_fields
from orchestrator.domain.specs.validation import parse_spec

RICH = yaml.safe_load("""
name: rich
cluster: gpu
run:
  script: train.py
  args: [--name, "two words"]
  env: {A: "1"}
topology: {nodes: "2:8", workers_per_node: gpu}
resources: {cpus: 2.5, memory_gb: 64}
supervise: {max_runtime_s: 100}
labels: {team: speech, run: "7"}
""")


def test_an_unchanged_form_changes_nothing() -> None:
    assert merge_fields(RICH, show_fields(RICH)) == RICH


def test_a_document_is_shown_as_texts() -> None:
    fields = show_fields(RICH)
    assert fields["kind"] == "script"
    assert fields["args"] == "--name 'two words'"
    assert fields["labels"] == "team=speech, run=7"
    assert (fields["nodes"], fields["workers"], fields["cpus"]) == ("2:8", "gpu", "2.5")
    assert fields["steps"] == ""


def test_texts_are_merged_into_the_document() -> None:
    changed = {**show_fields(RICH), "nodes": "4", "cpus": "8", "args": "-v", "labels": "a=b=c,\nd = e"}
    merged = merge_fields(RICH, changed)
    assert merged["topology"] == {"nodes": "4", "workers_per_node": "gpu"}
    assert merged["resources"] == {"cpus": 8, "memory_gb": 64}
    assert merged["labels"] == {"a": "b=c", "d": "e"}
    assert merged["supervise"] == {"max_runtime_s": 100}
    assert RICH["resources"] == {"cpus": 2.5, "memory_gb": 64}, "the given document is not changed"
    run = merged["run"]
    assert isinstance(run, dict)
    assert (run["args"], run["env"]) == (["-v"], {"A": "1"})


def test_another_kind_replaces_the_first() -> None:
    merged = merge_fields(RICH, {**show_fields(RICH), "kind": "command", "command": "python -c 'print(1)'"})
    assert merged["run"] == {"command": ["python", "-c", "print(1)"], "env": {"A": "1"}}
    bare = merge_fields(RICH, {**show_fields(RICH), "kind": "trainer"})
    assert bare["run"] == {"env": {"A": "1"}, "trainer": {}}


def test_an_empty_field_means_its_default() -> None:
    merged = merge_fields(RICH, {**show_fields(RICH), "cpus": "", "memory_gb": "", "labels": ""})
    assert "resources" not in merged
    assert "labels" not in merged


@pytest.mark.parametrize("document", [None, [], "text", 7, {"run": "odd", "topology": [], "labels": "x"}])
def test_a_document_of_any_shape_can_be_shown_and_merged(document: object) -> None:
    fields = show_fields(document)
    merged = merge_fields(document, {**fields, "name": "fixed", "nodes": "2"})
    assert merged["name"] == "fixed"
    assert merged["topology"] == {"nodes": "2"}


def test_the_first_yaml_of_the_page_is_a_valid_spec() -> None:
    spec = parse_spec(yaml.safe_load(FIRST))
    assert parse_spec(yaml.safe_load(render_yaml(merge_fields(yaml.safe_load(FIRST), {"kind": "trainer"})))) is not None
    assert spec.run.trainer is not None


def test_an_invalid_number_stays_for_the_validation() -> None:
    assert merge_fields(RICH, {**show_fields(RICH), "cpus": "many"})["resources"] == {"cpus": "many", "memory_gb": 64}
