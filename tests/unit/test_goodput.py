"""The ledger assigns each moment of a job to one bin, without gaps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.accounting.goodput import Bin, Stretch, add_up
from orchestrator.domain.accounting.life import GenerationLife, Life, Rest, lay_out
from tests.builders import at
from tests.unit.lives import attempt, lives, trained
from trainer.contract.failure import FailureKind


def seconds_by_bin(life: Life, until: float) -> dict[Bin, float]:
    ledger = add_up(lay_out(life, at(until)))
    return {each: round(us / 1e6, 3) for each, us in ledger.bins.items() if us}


def test_a_first_start_is_no_recovery() -> None:
    one = trained(1, since=10, steps=20, started_at=at(5), restored_at=at(8))
    life = Life(
        created_at=at(0),
        ended_at=at(32),
        devices=2,
        attempts=(attempt(1, 1, 32, one, agent_at=at(2), ready_at=at(3), went_well=True),),
    )
    assert seconds_by_bin(life, 40) == {
        Bin.QUEUE: 2,
        Bin.START_UP: 4,
        Bin.RENDEZVOUS: 4,
        Bin.LOAD: 6,
        Bin.COMPILE: 4,
        Bin.PRODUCTIVE: 40,
        Bin.IDLE: 4,
    }


def test_the_clusters_own_queue_counts_as_queue() -> None:
    waits = attempt(1, 1, None, queued=True)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(waits,))
    assert seconds_by_bin(life, 10) == {Bin.QUEUE: 20}


def test_the_step_in_progress_is_productive() -> None:
    life = Life(
        created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, trained(1, since=0, steps=10)),)
    )
    assert seconds_by_bin(life, 13) == {Bin.PRODUCTIVE: 26}


def test_steps_that_a_restore_discards_are_re_done_at_their_first_time() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(14))
    second = trained(2, since=16, steps=5, noticed_at=at(14))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, second),))
    assert seconds_by_bin(life, 21) == {Bin.PRODUCTIVE: 30, Bin.RE_DONE: 8, Bin.RECOVERING: 4}


def test_a_generation_whose_every_step_was_lost_is_all_done_again() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(10))
    lost = GenerationLife(
        number=2,
        started_at=at(11),
        world_size=2,
        noticed_at=at(10),
        restored_at=at(12),
        restored_step=10,
        failed_at=at(17),
        failed_step=15,
    )
    third = trained(3, since=18, steps=2)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, lost, third),))
    assert seconds_by_bin(life, 20) == {Bin.PRODUCTIVE: 24, Bin.RECOVERING: 6, Bin.RE_DONE: 10}


def test_a_generation_that_never_trained_lost_no_work() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(10))
    second = GenerationLife(
        number=2, started_at=at(11), world_size=2, noticed_at=at(10), failed_at=at(14), failed_step=0
    )
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, second),))
    assert seconds_by_bin(life, 15) == {Bin.PRODUCTIVE: 20, Bin.RECOVERING: 10}


def test_an_attempt_that_succeeded_still_has_the_losses_of_its_failed_generations() -> None:
    first, second = trained(1, since=0, steps=10, failed_at=at(13)), trained(2, since=14, steps=6, noticed_at=at(13))
    life = Life(
        created_at=at(0), ended_at=at(21), devices=2, attempts=(attempt(1, 0, 21, first, second, went_well=True),)
    )
    assert seconds_by_bin(life, 30) == {Bin.PRODUCTIVE: 32, Bin.RE_DONE: 6, Bin.RECOVERING: 2, Bin.IDLE: 2}


def test_workers_that_reported_steps_are_not_unreported_even_if_no_step_counts() -> None:
    one = GenerationLife(number=1, started_at=at(2), world_size=2)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, one, heard_at=at(5)),))
    assert seconds_by_bin(life, 10) == {Bin.START_UP: 4, Bin.LOAD: 16}


def test_a_hang_is_stalled_from_its_last_report() -> None:
    hung = trained(1, since=0, steps=10, failed_at=at(25), silent_s=12.0)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, hung),))
    assert seconds_by_bin(life, 30) == {Bin.PRODUCTIVE: 20, Bin.RE_DONE: 6, Bin.STALLED: 24, Bin.RECOVERING: 10}


def test_vanished_agents_are_stalled_until_that_is_noticed() -> None:
    lost = attempt(1, 0, 60, trained(1, since=0, steps=10), heard_at=at(15))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(lost,))
    assert seconds_by_bin(life, 61) == {Bin.PRODUCTIVE: 20, Bin.RE_DONE: 10, Bin.STALLED: 90, Bin.RECOVERING: 2}


def test_stalls_for_snapshots_are_taken_out_of_the_steps() -> None:
    one = trained(1, since=0, steps=10)
    stalled = replace(one, kept=replace(one.kept, stall_s=1.5)) if one.kept else one
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, stalled),))
    assert seconds_by_bin(life, 10) == {Bin.PRODUCTIVE: 17, Bin.SNAPSHOT_STALL: 3}


def test_devices_that_a_shrunk_group_does_not_use_are_idle() -> None:
    life = Life(
        created_at=at(0),
        ended_at=None,
        devices=2,
        attempts=(attempt(1, 0, None, trained(1, since=0, steps=10, world_size=1)),),
    )
    assert seconds_by_bin(life, 10) == {Bin.PRODUCTIVE: 10, Bin.IDLE: 10}


def test_a_suspended_job_is_idle_and_then_starts_afresh() -> None:
    before = attempt(1, 0, 10, trained(1, since=0, steps=10), went_well=True)
    after = attempt(2, 32, None, trained(1, since=35, steps=5), agent_at=at(32), ready_at=at(33))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(before, after), rests=(Rest(at(10), at(30)),))
    expected = {Bin.PRODUCTIVE: 30, Bin.IDLE: 40, Bin.QUEUE: 4, Bin.START_UP: 2, Bin.RENDEZVOUS: 4}
    assert seconds_by_bin(life, 40) == expected


def test_a_job_that_failed_for_good_recovers_from_nothing() -> None:
    one = trained(1, since=0, steps=10, failed_at=at(12))
    life = Life(created_at=at(0), ended_at=at(14), devices=2, attempts=(attempt(1, 0, 13, one),))
    assert seconds_by_bin(life, 20) == {Bin.PRODUCTIVE: 20, Bin.RE_DONE: 4, Bin.IDLE: 4}


def test_workers_that_report_no_steps_are_not_reported() -> None:
    silent = GenerationLife(number=1, started_at=at(2), world_size=2)
    life = Life(created_at=at(0), ended_at=at(10), devices=2, attempts=(attempt(1, 0, 10, silent, went_well=True),))
    assert seconds_by_bin(life, 10) == {Bin.START_UP: 4, Bin.NOT_REPORTED: 16}


def test_an_attempt_that_fails_before_it_reports_a_step_is_lost() -> None:
    """Also if it is the second one, or if a restart in place came before its end."""
    silent = GenerationLife(number=1, started_at=at(4), world_size=2, failed_at=at(6))
    again = GenerationLife(number=2, started_at=at(7), world_size=2)
    crash = FailureKind.APPLICATION
    first = attempt(1, 1, 8, silent, again, agent_at=at(2), ready_at=at(3), cause=crash)
    second = attempt(2, 10, 15, cause=FailureKind.LAUNCH)
    life = Life(created_at=at(0), ended_at=at(16), devices=2, attempts=(first, second))
    assert seconds_by_bin(life, 20) == {Bin.QUEUE: 2, Bin.FAILED: 24, Bin.RECOVERING: 4, Bin.IDLE: 2}
    stretches = lay_out(life, at(20))
    assert {(each.attempt, each.cause) for each in stretches if each.bin is Bin.FAILED} == {
        (1, crash),
        (2, FailureKind.LAUNCH),
    }
    ledger = add_up(stretches)
    assert (ledger.goodput, ledger.lost_us) == (0.0, ledger.held_us)


def test_without_reported_steps_goodput_is_unknown() -> None:
    silent = GenerationLife(number=1, started_at=at(2), world_size=2)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, silent),))
    ledger = add_up(lay_out(life, at(10)))
    assert (ledger.goodput, ledger.lost_us) == (None, 0)


def test_goodput_excludes_queue_and_idle_time() -> None:
    def stretch(into: Bin, since: float, until: float) -> Stretch:
        return Stretch(bin=into, since=at(since), until=at(until), devices=1, used=1)

    stretches = [stretch(Bin.QUEUE, 0, 70), stretch(Bin.PRODUCTIVE, 70, 90), stretch(Bin.RECOVERING, 90, 100)]
    assert add_up(stretches).goodput == 20 / 30
    assert add_up(stretches[:1]).goodput is None


@given(lives(), st.floats(0, 3000))
def test_with_any_clocks_each_moment_of_each_device_is_in_one_bin(life: Life, until: float) -> None:
    stretches = lay_out(life, at(until))
    ledger = add_up(stretches)
    assert all(one.until == two.since for one, two in pairwise(stretches))
    lived = max((life.ended_at or at(until)) - life.created_at, at(0) - at(0))
    assert sum(each.lasted_us for each in stretches) == round(lived.total_seconds() * 1e6)
    assert sum(ledger.bins.values()) == ledger.whole_us
    assert min(ledger.bins.values(), default=0) >= 0
    assert 0 <= ledger.lost_us <= ledger.held_us
    if {each.devices for each in stretches} == {2}:
        assert ledger.whole_us == round(lived.total_seconds() * 1e6) * 2


@pytest.mark.parametrize(("silent_s", "not_reported", "stalled"), [(3.0, 6, 6), (100.0, 0, 12)])
def test_a_hang_of_workers_that_report_no_steps_is_stalled(silent_s: float, not_reported: int, stalled: int) -> None:
    hung = GenerationLife(number=1, started_at=at(2), world_size=2, failed_at=at(8), silent_s=silent_s)
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, hung),))
    bins = {Bin.START_UP: 4, Bin.NOT_REPORTED: not_reported, Bin.STALLED: stalled, Bin.RECOVERING: 4}
    assert seconds_by_bin(life, 10) == {name: seconds for name, seconds in bins.items() if seconds}
