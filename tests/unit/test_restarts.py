"""Restarts are summed up by the source of their state, and their costs add up to the bins."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given

from orchestrator.domain.accounting.goodput import Bin, add_up
from orchestrator.domain.accounting.life import GenerationLife, Life, Rest, lay_out
from orchestrator.domain.accounting.restarts import RestartSum, Source, show_repeated, show_source, sum_restarts
from tests.builders import at
from tests.unit.lives import attempt, lives, trained

Row = tuple[int, int, int, float, float]  # restarts, repeated, unknown, and device-seconds of recovering and re-done


def rows_of(life: Life, until: float) -> dict[Source, Row]:
    return {row.source: show(row) for row in sum_restarts(life, lay_out(life, at(until)))}


def show(row: RestartSum) -> Row:
    return row.restarts, row.repeated, row.unknown, row.recovering_us / 1e6, row.re_done_us / 1e6


def restored(number: int, since: float, step: int, source: str, **fields: object) -> GenerationLife:
    """Its workers start a second before it restores, and two seconds before it trains."""
    return trained(
        number,
        since=since,
        steps=4,
        started_at=at(since - 2),
        restored_at=at(since - 1),
        restored_step=step,
        restored_from=source,
        **fields,
    )


def test_each_source_has_its_restarts_with_their_steps_and_times() -> None:
    """Two devices. Each generation ends 4 s after its first step and 3 s before the first step of the next one."""
    ends = {"failed_at": at(10), "failed_step": 10}
    first = trained(1, since=0, steps=10, **ends)
    second = restored(2, 13, 10, "survivor", noticed_at=at(10), failed_at=at(17), failed_step=14)
    third = restored(3, 20, 13, "memory", noticed_at=at(17), failed_at=at(25), failed_step=18)
    fourth = restored(4, 28, 10, "disk", noticed_at=at(25))
    life = Life(
        created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, second, third, fourth),)
    )
    assert rows_of(life, 32) == {
        Source.SURVIVOR: (1, 0, 0, 6, 0),
        Source.MEMORY: (1, 1, 0, 6, 0),
        Source.DISK: (1, 8, 0, 6, 2),
    }
    assert [row.mean_to_next_step_s for row in sum_restarts(life, lay_out(life, at(32)))] == [4, 4, 4]


def test_without_a_restore_the_source_and_the_repeated_steps_are_unknown() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(12), failed_step=11)
    again = trained(2, since=14, steps=4, noticed_at=at(12))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, again),))
    assert rows_of(life, 18) == {Source.OTHER: (1, 0, 1, 4, 4)}


def test_a_node_that_took_its_agent_with_it_has_the_newest_reported_step() -> None:
    first = trained(1, since=0, steps=10, heard_step=12)
    second = restored(1, 20, 10, "disk")
    life = Life(
        created_at=at(0),
        ended_at=None,
        devices=2,
        attempts=(attempt(1, 0, 12, first, heard_at=at(12)), attempt(2, 12, None, second)),
    )
    assert rows_of(life, 24) == {Source.DISK: (1, 2, 0, 16, 4)}


def test_a_restart_that_fails_before_a_step_keeps_its_own_time() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(10), failed_step=10)
    second = GenerationLife(
        number=2,
        started_at=at(11),
        world_size=2,
        noticed_at=at(10),
        restored_at=at(12),
        restored_step=9,
        restored_from="memory",
        failed_at=at(14),
    )
    third = restored(3, 17, 9, "disk", noticed_at=at(14))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, second, third),))
    assert rows_of(life, 21) == {Source.MEMORY: (1, 1, 0, 8, 0), Source.DISK: (1, 0, 0, 6, 0)}


def test_a_start_after_a_rest_is_no_restart_and_what_was_lost_before_it_belongs_to_none() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(14), failed_step=13)
    second = restored(1, 30, 10, "disk")
    life = Life(
        created_at=at(0),
        ended_at=None,
        devices=2,
        attempts=(attempt(1, 0, 14, first, cause="hang"), attempt(2, 25, None, second)),
        rests=(Rest(at(14), at(20)),),
    )
    assert rows_of(life, 34) == {Source.NONE: (0, 0, 0, 0, 8)}


def test_a_failure_without_a_restart_yet_is_a_row_of_its_own() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(12), failed_step=11)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first),))
    assert rows_of(life, 15) == {Source.NONE: (0, 0, 0, 6, 4)}


def test_an_unknown_source_is_not_taken_from_a_job() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(10), failed_step=10)
    for source in ("none", "cloud", ""):
        life = Life(
            created_at=at(0),
            ended_at=None,
            devices=2,
            attempts=(attempt(1, 0, None, first, restored(2, 13, 10, source)),),
        )
        assert set(rows_of(life, 17)) == {Source.OTHER}


@pytest.mark.parametrize(("name", "words"), [("buddy", "another node"), ("cloud", "cloud")])
def test_a_source_that_only_a_newer_service_knows_is_shown_as_it_is(name: str, words: str) -> None:
    assert show_source(name) == words


@pytest.mark.parametrize(
    ("repeated", "unknown", "words"), [(0, 0, "0"), (7, 0, "7"), (7, 2, "7 or more"), (0, 2, "unknown")]
)
def test_repeated_steps_are_shown_with_what_is_unknown_about_them(repeated: int, unknown: int, words: str) -> None:
    assert show_repeated(repeated, unknown) == words


@given(lives())
def test_the_rows_add_up_to_the_bins_whatever_the_clocks_say(life: Life) -> None:
    until: datetime = at(3000)
    stretches = lay_out(life, until)
    rows, bins = sum_restarts(life, stretches), add_up(stretches).bins
    assert sum(row.recovering_us for row in rows) == bins[Bin.RECOVERING]
    assert sum(row.re_done_us for row in rows) == bins[Bin.RE_DONE]
