"""Sweeps: how a document becomes the specs of its members."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.specs.spec import MAX_NAME, JobSpec
from orchestrator.domain.specs.sweep import expand, is_sweep, parse_array


def members(sweep: object, *, name: str = "tune", **run: object) -> list[JobSpec]:
    document = {"name": name, "run": run or {"script": "a.py", "args": ["--fast"]}, "sweep": sweep}
    return expand(parse_array(document), "tune-aaaaaaaa")


def test_a_product_has_every_combination_in_order() -> None:
    found = members({"product": {"--lr": ["1e-3", 0.1], "run.env.SEED": [1, 2]}, "at_once": 3})
    assert [(spec.run.args, spec.run.env) for spec in found] == [
        (("--fast", "--lr", lr), {"SEED": seed}) for lr, seed in itertools.product(("1e-3", "0.1"), ("1", "2"))
    ]
    assert [spec.name for spec in found] == ["tune-1", "tune-2", "tune-3", "tune-4"]
    last = found[-1]
    assert last.labels == {"array": "tune-aaaaaaaa"}
    assert last.array is not None
    assert (last.array.index, last.array.size, last.array.at_once) == (4, 4, 3)
    assert last.array.values == {"--lr": "0.1", "run.env.SEED": "2"}


def test_a_zip_takes_values_together() -> None:
    found = members({"zip": {"--lr": [1, 2], "topology.nodes": ["1", "1:2"]}})
    assert [(spec.run.args[-1], spec.topology.nodes) for spec in found] == [("1", "1"), ("2", "1:2")]
    with pytest.raises(InvalidSpec, match="zip needs lists of one length; found 1, 2"):
        members({"zip": {"--lr": [1], "--wd": [1, 2]}})


def test_a_list_names_the_values_of_each_member() -> None:
    found = members({"list": [{"--amp": True, "--lr": 1}, {"--amp": False, "--lr": None}, {"--betas": [0.9, 0.95]}]})
    assert [spec.run.args for spec in found] == [
        ("--fast", "--amp", "--lr", "1"),
        ("--fast",),
        ("--fast", "--betas", "0.9", "0.95"),
    ]


def test_a_command_and_the_trainer_take_values_too() -> None:
    assert members({"product": {"-n": [1]}}, command=["echo"])[0].run.command == ("echo", "-n", "1")
    found = members({"product": {"run.trainer.steps": [5, 6]}}, trainer={"steps": 1})
    assert [spec.run.trainer for spec in found] == [{"steps": 5}, {"steps": 6}]
    with pytest.raises(InvalidSpec, match="--lr is an argument"):
        members({"product": {"--lr": [1]}}, trainer={})


@pytest.mark.parametrize(
    ("sweep", "problem"),
    [
        ({}, "needs exactly one of product, zip and list; found none of them"),
        ({"product": {"--a": [1]}, "zip": {"--b": [1]}}, "found product and zip"),
        ({"product": {"name": ["a"]}}, "/sweep/name: is the same in all members"),
        ({"product": {"labels.array": ["a"]}}, "/sweep/labels.array: is the same in all members"),
        ({"product": {"run.nothing": [1]}}, r"is not a known field.*\(member 1: run.nothing=1\)"),
        ({"list": [{"--a": 1}, {"topology.nodes": 0}]}, r"/topology/nodes.*\(member 2: topology.nodes=0\)"),
        ({"product": {"--a": list(range(23)), "--b": list(range(23))}}, "makes more than 500 jobs"),
        ({"list": [{"run": "a.py", "--a": 1}]}, r"/run.*\(member 1: run=a.py, --a=1\)"),
        ({"list": [{"run": None, "--a": 1}]}, r"/run.*\(member 1: run=null, --a=1\)"),
        ({"product": {"a b": [1]}}, "/sweep/product"),
        ({"product": {"lr": [1]}}, "/sweep/lr: is not a field of a job; for an argument write --lr"),
        ({"product": {"--a": []}}, "/sweep/product/--a"),
        ({"product": {"--a": [1]}, "at_once": 0}, "/sweep/at_once"),
        ({"cartesian": {}}, "/sweep/cartesian: is not a known field"),
        (7, "/sweep"),
        (None, "/sweep"),
    ],
)
def test_a_wrong_sweep_is_refused_by_field(sweep: object, problem: str) -> None:
    with pytest.raises(InvalidSpec, match=problem):
        members(sweep)


@pytest.mark.parametrize("own", [{"array": {"id": "x", "index": 1, "size": 1}}, {"labels": {"array": "x"}}])
def test_the_place_in_an_array_is_the_services(own: dict[str, object]) -> None:
    document = {"name": "a", "run": {"script": "a.py"}, "sweep": {"product": {"--a": [1]}}, **own}
    with pytest.raises(InvalidSpec, match="are set by the service"):
        parse_array(document)


def test_a_sweep_that_would_fill_the_database_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"makes 500 jobs of \d+ bytes each, more than 16777216 bytes in all"):
        members({"product": {"--n": list(range(500))}}, script="a.py", args=["x" * 20_000] * 2)


def test_the_label_of_the_array_counts_as_one_of_the_labels() -> None:
    document = {"name": "a", "run": {"script": "a.py"}, "sweep": {"product": {"--n": [1]}}}
    labels = {f"l{number}": "" for number in range(64)}
    with pytest.raises(InvalidSpec, match="/labels"):
        expand(parse_array({**document, "labels": labels}), "a-aaaaaaaa")
    labels.popitem()
    assert len(expand(parse_array({**document, "labels": labels}), "a-aaaaaaaa")[0].labels) == 64


@given(st.integers(1, 60), st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True))
def test_names_of_members_are_valid_and_different(count: int, name: str) -> None:
    found = members({"product": {"--n": list(range(count))}}, name=name)
    assert len({spec.name for spec in found}) == count
    for spec in found:
        assert len(spec.name) <= MAX_NAME
        assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("document", "sweeps"), [({"sweep": {}}, True), ({"name": "a"}, False), ("sweep", False), (["sweep"], False)]
)
def test_a_document_with_the_field_is_a_sweep(document: object, sweeps: bool) -> None:
    assert is_sweep(document) is sweeps
