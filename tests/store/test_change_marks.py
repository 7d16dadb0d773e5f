"""Change marks and short curves of losses."""

from __future__ import annotations

import pytest

from orchestrator.domain.errors import NotFound
from orchestrator.store.change_marks import ChangeMarks
from tests.builders import make_batch, make_progress
from tests.store.harness import Stores


def train(stores: Stores, job_id: str, *steps: int) -> None:
    stores.add_with_attempt(job_id)
    lines = [(place, make_progress(step, metrics={"loss": float(step)})) for place, step in enumerate(steps, 1)]
    stores.ingest(make_batch(job_id, progress=lines))


def test_losses_of_several_jobs_are_read_at_once(stores: Stores) -> None:
    train(stores, "dense", *range(1, 101))
    train(stores, "sparse", 10, 20, 95)
    train(stores, "young", 3)
    stores.add("silent")
    marks = ChangeMarks(stores.database)
    found = marks.losses({"dense": 100, "sparse": 95, "young": 3, "silent": 50}, points=4)
    assert found == {"dense": [25.0, 50.0, 75.0, 100.0], "sparse": [20.0, 95.0], "young": [3.0]}
    assert marks.losses({}, points=4) == {}


@pytest.mark.parametrize("step", [2**53 - 1, -(2**53) + 1])
def test_losses_of_the_largest_steps_are_read(stores: Stores, step: int) -> None:
    train(stores, "far", step, 2**60)
    assert ChangeMarks(stores.database).losses({"far": step}, points=200) == {"far": [float(step)]}


def test_a_step_without_a_loss_is_skipped(stores: Stores) -> None:
    stores.add_with_attempt("job-1")
    lines = [(1, make_progress(1, metrics={"loss": 4.0})), (2, make_progress(2, metrics={"accuracy": 0.5}))]
    stores.ingest(make_batch("job-1", progress=lines))
    assert ChangeMarks(stores.database).losses({"job-1": 2}, points=2) == {"job-1": [4.0]}


def test_the_mark_changes_only_with_new_reports(stores: Stores) -> None:
    marks = ChangeMarks(stores.database)
    stores.add_with_attempt("job-1")
    stores.add("job-2")
    first = marks.mark("job-1")
    assert marks.mark("job-1") == first
    stores.ingest(make_batch("job-1", progress=[(10, make_progress(1))]))
    second = marks.mark("job-1")
    assert second != first
    stores.ingest(make_batch("job-1", progress=[(10, make_progress(1))]))
    assert marks.mark("job-1") == second, "a repeated line changes nothing"
    with pytest.raises(NotFound, match="job-9"):
        marks.mark("job-9")


@pytest.mark.parametrize("steps", [range(1, 1001), range(7, 7001, 7)], ids=["each step", "every seventh"])
def test_a_range_of_steps_is_thinned_evenly_with_and_without_gaps(stores: Stores, steps: range) -> None:
    train(stores, "job-1", *steps)
    found = stores.history.metrics("job-1", since_step=steps[99], until_step=steps[899], points=100)
    assert [point.step for point in found] == [steps[index] for index in range(107, 900, 8)]
