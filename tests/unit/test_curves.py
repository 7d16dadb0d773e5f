"""Curves of several jobs, and what differs between their specs."""

from __future__ import annotations

import json
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dashboard.charts import render_curves
from orchestrator.domain.specs.differences import list_differences
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.sweep import expand, parse_array
from orchestrator.wire.curves import read_curve
from orchestrator.wire.history_views import MetricsView
from tests.builders import NOW

Numbers = list[float | None]


def metrics(steps: list[int], **series: Numbers) -> MetricsView:
    at = [NOW + timedelta(seconds=10 * index) for index in range(len(steps))]
    ones = [1] * len(steps)
    return MetricsView(steps=steps, at=at, attempts=ones, generations=ones, series=dict(series))


def test_tokens_are_counted_over_the_steps_that_were_not_stored() -> None:
    found = read_curve(
        metrics([1, 3, 4], loss=[3.0, 2.0, None], tokens_per_s=[100.0, None, 50.0], step_s=[2.0, 2.0, 2.0]), "loss"
    )
    assert found.units == [200.0, 600.0, 700.0]  # a step without a rate counts as the one before it
    assert found.seconds == [0, 10, 20]
    assert list(found.points("tokens")) == [(200.0, 3.0), (600.0, 2.0)]
    assert list(found.points("step")) == [(1, 3.0), (3, 2.0)]
    assert list(found.points("time")) == [(0.0, 3.0), (10.0, 2.0)]


def test_samples_count_where_no_tokens_are_reported() -> None:
    found = read_curve(metrics([2], samples_per_s=[8.0], tokens_per_s=[None], step_s=[0.5]), "loss")
    assert (found.unit, found.units, found.values) == ("samples", [8.0], [None])
    assert read_curve(metrics([1, 2], loss=[1.0, 2.0]), "loss").units == [None, None]
    assert list(read_curve(metrics([]), "loss").points("time")) == []


@given(
    st.lists(st.tuples(*(st.none() | st.floats(allow_nan=True) for _ in range(3))), max_size=6),
    st.text(max_size=9),
)
def test_any_curve_is_json_that_a_browser_reads(rows: list[tuple[float | None, ...]], label: str) -> None:
    loss, rate, step_s = ([row[column] for row in rows] for column in range(3))
    view = metrics(list(range(len(rows))), loss=loss, tokens_per_s=rate, step_s=step_s)
    document = json.loads(render_curves({label: read_curve(view, "loss")}, ["loss"]), parse_constant=_refuse)
    curve = document["curves"][0]
    assert curve["label"] == label
    assert {len(curve[name]) for name in ("values", "step", "tokens", "time")} == {len(rows)}
    assert curve["step"] == list(range(len(rows)))


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "run": {"script": "a.py", "args": ["--lr", "1"]}, **fields})


def test_only_what_differs_is_listed() -> None:
    other = spec(name="b", priority=3, run={"script": "a.py", "args": ["--lr", "2"], "env": {"N": "1"}})
    assert list_differences([spec(), other]) == {
        "priority": ["0", "3"],
        "run.args": ['["--lr", "1"]', '["--lr", "2"]'],
        "run.env.N": ["–", "1"],
    }
    assert list_differences([spec(), spec(name="b")]) == {}
    assert list_differences([]) == {}


def test_members_of_an_array_differ_by_what_the_sweep_chose() -> None:
    document = {"name": "a", "run": {"script": "a.py"}, "sweep": {"product": {"--lr": [1, 2], "--wd": [0]}}}
    members = expand(parse_array(document), "a-aaaaaaaa")
    assert list_differences(members) == {"--lr": ["1", "2"]}
    assert "run.args" in list_differences([*members, spec()])
