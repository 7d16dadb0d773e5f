"""Training in closed form: cycles of 10 of work and 2 of stall."""

from __future__ import annotations

import pytest

from orchestrator.simulator.training_run import Cadence, Run, Split, lasts_us, split

CADENCE = Cadence(interval_us=10, stall_us=2)


@pytest.mark.parametrize(
    ("elapsed", "parts"),
    [
        (0, Split(0, 0, 0)),
        (7, Split(0, 7, 0)),
        (11, Split(0, 10, 1)),  # in the stall, the snapshot is not committed yet
        (12, Split(10, 0, 2)),
        (29, Split(20, 5, 4)),
    ],
)
def test_work_is_kept_once_its_stall_is_over(elapsed: int, parts: Split) -> None:
    assert split(elapsed, 1000, CADENCE) == parts


@pytest.mark.parametrize(("needed", "lasts"), [(0, 0), (1, 3), (10, 12), (25, 31), (30, 36)])
def test_a_run_ends_with_a_snapshot(needed: int, lasts: int) -> None:
    assert lasts_us(needed, CADENCE) == lasts
    run = Run(100, 4, 0, needed, CADENCE)
    assert run.ends_us == 100 + lasts
    assert run.split(run.ends_us).kept() == Split(needed, 0, lasts - needed)


def test_every_stretch_adds_up() -> None:
    for elapsed in range(40):
        assert split(elapsed, 25, CADENCE).lasted_us == elapsed


def test_a_run_knows_when_it_reaches_some_work() -> None:
    run = Run(100, 4, 40, 25, CADENCE)  # 40 device-microseconds are done; 4 devices do 25 more each
    assert run.reaches_us(40 + 4 * 10) == 110
    assert run.reaches_us(40 + 4 * 11) == 113  # the stall lies between
    assert run.reaches_us(40) is None
    assert run.reaches_us(40 + 4 * 26) is None
    for work in range(41, 141):
        at_us = run.reaches_us(work)
        assert at_us is not None
        assert run.done(at_us) >= work > run.done(at_us - 1)
