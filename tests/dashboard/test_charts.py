"""The data of the charts, and the small curves of the list."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dashboard.charts import MAX_MARKS, draw_spark, find_takeovers, render_charts
from orchestrator.store.records import MetricPoint
from tests.api.conftest import World
from tests.builders import NOW, make_batch, make_journal_event, make_progress


def series(
    values: list[float | None], generations: list[int] | None = None, attempts: list[int] | None = None
) -> list[MetricPoint]:
    count = len(values)
    terms = zip(values, attempts or [1] * count, generations or [1] * count, strict=True)
    return [
        MetricPoint(
            step=step,
            attempt=attempt,
            generation=generation,
            at=NOW,
            values={} if value is None else {"loss": value},
        )
        for step, (value, attempt, generation) in enumerate(terms)
    ]


def charts_of(points: list[MetricPoint], *snapshots: int) -> dict[str, Any]:
    return dict(json.loads(render_charts(points, snapshots), parse_constant=pytest.fail))


def test_new_generations_and_attempts_are_marked_in_charts() -> None:
    found = find_takeovers(series([3.0, 2.0, 2.5, 1.0], generations=[1, 1, 2, 1], attempts=[1, 1, 1, 2]))
    assert [(one.step, one.text, one.new_attempt) for one in found] == [(2, "g2", False), (3, "a2", True)]


def test_charts_have_steps_series_and_the_steps_of_snapshots() -> None:
    charts = charts_of(series([1.0, None, 1.23456789]), 1, 2)
    assert charts["steps"] == [0, 1, 2]
    assert charts["series"] == {"loss": [1.0, None, 1.23457]}
    assert charts["snapshots"] == [1, 2]
    assert charts_of([]) == {"steps": [], "series": {}, "takeovers": [], "snapshots": []}


@given(st.integers(0, 5 * MAX_MARKS))
def test_many_snapshots_are_thinned_evenly_and_the_newest_stays(number: int) -> None:
    marked = charts_of([], *range(number))["snapshots"]
    assert len(marked) == number if number <= MAX_MARKS else MAX_MARKS // 2 < len(marked) <= MAX_MARKS
    assert marked[-1:] == list(range(number))[-1:]
    assert len({after - before for before, after in pairwise(marked)}) <= 1


def test_nan_and_infinity_are_null_in_charts() -> None:
    values = [math.inf, -math.inf, math.nan, 1e300, 1e-300, -0.0, 123456789.0]
    assert charts_of(series([*values]))["series"]["loss"] == [None, None, None, 1e300, 1e-300, 0.0, 123457000.0]


def test_a_hostile_metric_name_does_not_break_the_json() -> None:
    name = '"],"steps":[9]//<script>'
    point = MetricPoint(step=1, attempt=1, generation=1, at=NOW, values={name: 2.0})
    assert charts_of([point])["series"] == {name: [2.0]}


def test_a_loss_curve_stays_inside_its_box() -> None:
    points = draw_spark([1e9, -3.0, 0.0, 2.0])
    assert points is not None
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert len(places) == 4
    assert all(0 <= x <= 80 and 0 <= y <= 22 for x, y in places)
    assert draw_spark([1.0]) is None


@pytest.mark.parametrize("value", [0.0, -2.5, 1e-300, 1e300])
def test_a_curve_of_equal_values_is_flat(value: float) -> None:
    points = draw_spark([value] * 5)
    assert points is not None
    assert len({point.split(",")[1] for point in points.split()}) == 1


def test_the_charts_of_a_job_are_thinned_and_zoomed(world: World) -> None:
    job_id = world.submit()
    world.start(job_id)
    lines = [(step, make_progress(step, metrics={"loss": 1.0, "grad_norm": 2.0})) for step in range(1, 101)]
    events = [
        (
            10 + step,
            make_journal_event(f"snapshot.{state}", evidence={"name": f"step-000000{step}-a1-g1", "step": step}),
        )
        for step in (20, 50, 50, 90)
        for state in ("committed", "quarantined", "deleted")[: 1 + (step < 90) + (step < 50)]
    ]
    world.journals.ingest([make_batch(job_id, progress=lines, events=events)], arrived_at=NOW)

    def charts(query: str) -> dict[str, object]:
        answer = world.client.get(f"/jobs/{job_id}/charts?{query}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    whole = charts("points=10")
    assert whole["steps"] == list(range(10, 101, 10))
    assert whole["snapshots"] == [20, 50, 90], "also deleted and quarantined ones"
    assert set(dict(whole["series"])) == {"grad_norm", "loss"}  # type: ignore[call-overload]
    assert charts("since_step=40&until_step=45")["steps"] == [41, 42, 43, 44, 45]
    assert charts("since_step=40&until_step=60")["snapshots"] == [50]
    newer = charts("since_step=95&marks_since=30")
    assert (newer["steps"], newer["snapshots"]) == ([96, 97, 98, 99, 100], [50, 90]), "reported after their step"
    assert charts("since_step=100")["steps"] == []
    assert world.client.get(f"/jobs/{job_id}/charts?points=2001").status_code == 422
