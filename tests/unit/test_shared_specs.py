"""Specs that share their equal parts."""

from __future__ import annotations

import gc
import weakref

import pytest
from pydantic import ValidationError

from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.shared_specs import SharedSpecs, named
from tests.builders import make_spec


def document_of(spec: JobSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", by_alias=True)


def test_equal_parts_are_one_object_and_others_are_not() -> None:
    shared = SharedSpecs()
    narrow, same = (shared.parse(document_of(make_spec(labels={"of": name}))) for name in ("a", "b"))
    wide = shared.parse(document_of(make_spec(topology={"nodes": "3"})))
    assert narrow.supervise is same.supervise is wide.supervise
    assert narrow.topology is same.topology is not wide.topology


def test_a_spec_is_parsed_as_without_sharing() -> None:
    shared = SharedSpecs()
    for snapshot in ({}, {"from": "/snapshots/a"}, {"from": "/snapshots/b", "keep": 5}):
        spec = make_spec(snapshot=snapshot, labels={"team": "research"})
        assert shared.parse(document_of(spec)) == spec
        assert shared.parse({"name": spec.name, "run": document_of(spec)["run"]}).supervise == spec.supervise


def test_specs_that_differ_only_in_their_name_share_everything_else() -> None:
    shared = SharedSpecs()
    specs = [make_spec(name=name, labels={"team": "research"}) for name in ("a", "b")]
    of_both, same = (shared.parse(document_of(spec)) for spec in specs)
    assert of_both is same
    one, other = (named(of_both, name) for name in ("a", "b"))
    assert [one, other] == specs
    assert one is of_both
    assert one.labels is other.labels
    assert one.model_fields_set is other.model_fields_set


def test_a_part_that_no_spec_has_any_more_is_freed() -> None:
    shared = SharedSpecs()
    part = weakref.ref(shared.parse(document_of(make_spec())).run)
    gc.collect()
    assert part() is None


def test_a_wrong_part_is_refused() -> None:
    with pytest.raises(ValidationError):
        SharedSpecs().parse({**document_of(make_spec()), "topology": {"nodes": 0}})


def test_equal_specs_are_one_object() -> None:
    shared = SharedSpecs()
    one, same = (shared.parse(document_of(make_spec(labels={"team": "research"}))) for _ in range(2))
    assert one is same
