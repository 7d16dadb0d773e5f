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


COPIES = Cadence(interval_us=12, stall_us=5, copies=3, copy_stall_us=1)  # 4 + 1, 4 + 1, 4 + 1, and 5


@pytest.mark.parametrize(
    ("elapsed", "parts"),
    [
        (4, Split(0, 4, 0, 0)),  # in the stall, the copy is not complete yet
        (5, Split(0, 4, 1, 4)),
        (15, Split(0, 12, 3, 12)),
        (19, Split(0, 12, 7, 12)),
        (20, Split(12, 0, 8, 12)),
        (26, Split(12, 5, 9, 16)),
    ],
)
def test_copies_divide_the_interval_between_snapshots(elapsed: int, parts: Split) -> None:
    assert split(elapsed, 1000, COPIES) == parts


@pytest.mark.parametrize(
    ("unkept", "elapsed", "parts"),
    [
        (4, 5, Split(0, 4, 1, 4)),
        (4, 15, Split(8, 0, 7, 8)),  # the snapshot keeps what memory had, too
        (12, 5, Split(0, 0, 5, 0)),  # only the snapshot is missing
        (12, 6, Split(0, 1, 5, 0)),
        (6, 3, Split(0, 2, 1, 2)),  # the state of a survivor lies between two copies
    ],
)
def test_a_run_from_memory_continues_its_cycle(unkept: int, elapsed: int, parts: Split) -> None:
    assert split(elapsed, 1000, COPIES, unkept) == parts


@pytest.mark.parametrize("unkept", range(13))
def test_a_run_from_memory_ends_and_reaches_its_work(unkept: int) -> None:
    for needed in range(1, 40):
        run = Run(100, 4, 400, needed, COPIES, unkept)
        assert run.split(run.ends_us).work_us == needed
        assert run.split(run.ends_us - 1).lasted_us == run.ends_us - 101
        for work in range(401, 401 + 4 * needed):
            at_us = run.reaches_us(work)
            assert at_us is not None
            assert run.done(at_us) >= work > run.done(at_us - 1)


def test_a_run_knows_when_its_last_snapshot_was_committed() -> None:
    assert [Run(100, 4, 0, 99, COPIES).kept_at_us(at) for at in (120, 139, 140)] == [120, 120, 140]
    assert Run(100, 4, 0, 99, COPIES, 4).kept_at_us(130) == 115  # 8 of work, 2 copies and the snapshot
