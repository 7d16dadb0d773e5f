"""Summing up journals: repeated lines, lines out of order, and wrong numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.observation.observation import Training
from tests.builders import NOW, at, make_journal_event, make_progress
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.contract.silence import PhaseTime


def summary(*lines: tuple[float, Phase, int | None]) -> TrainingSummary:
    sum_up = TrainingSummary()
    for seconds, phase, step in lines:
        sum_up.add_line(make_progress(step, seconds=seconds, phase=phase), at(seconds))
    return sum_up


def test_a_repeated_line_ends_no_phase() -> None:
    steps = [(float(n), Phase.STEP, n) for n in range(4)]
    repeated = summary(*steps, (3.4, Phase.STEP, 3), (3.8, Phase.STEP, 3), (4.0, Phase.STEP, 4))
    assert repeated.training().phase_times == {"step": PhaseTime(2, 1.0, 1.0)}


def test_a_phase_other_than_step_counts_from_its_first_time() -> None:
    compiled = summary((0.0, Phase.COMPILE, None), (50.0, Phase.STEP, 0), (51.0, Phase.STEP, 1))
    assert compiled.training().phase_times == {"compile": PhaseTime(1, 50.0, 50.0)}


def test_an_event_of_an_impossible_generation_is_ignored() -> None:
    for kind in EventKind:
        sum_up = summary((0.0, Phase.STEP, 1))
        sum_up.add_event(make_journal_event(kind.value, generation=2**63, evidence={"world_size": 9}), at(9))
        assert sum_up == summary((0.0, Phase.STEP, 1))


def test_a_line_of_an_impossible_or_earlier_generation_is_only_a_sign_of_life() -> None:
    for generation in (2**63, 0):
        sum_up = summary((0.0, Phase.STEP, 7))
        late = make_progress(9, seconds=5.0, phase=Phase.SNAPSHOT, generation=generation, world_size=9)
        sum_up.add_line(late, at(5))
        assert sum_up.progress_at == at(5)
        assert replace(sum_up, progress_at=at(0)) == summary((0.0, Phase.STEP, 7))


def test_a_loss_is_known_until_it_is_not_finite() -> None:
    sum_up = summary((0.0, Phase.STEP, 1))
    sum_up.add_line(make_progress(2, metrics={"loss": 0.25}), at(1))
    assert sum_up.loss == 0.25
    sum_up.add_line(make_progress(3, metrics={}), at(2))
    assert sum_up.loss == 0.25
    sum_up.add_line(make_progress(4, metrics={"loss": float("nan")}), at(3))
    assert sum_up.loss is None


def test_a_note_measures_a_step_and_is_no_sign_of_life() -> None:
    """A script that notes a number once an hour does not count as hung."""
    noted = summary((0.0, Phase.NOTE, 7))
    assert (noted.step, noted.progress_at, noted.phase) == (7, None, None)
    assert summary((0.0, Phase.STEP, 6), (9.0, Phase.NOTE, 7)).progress_at == at(0.0)


def test_reports_count_for_half_a_minute() -> None:
    assert Training(heard_at=NOW).heard_until == at(30)
    assert Training().heard_until is None, "no report has ever arrived"


def test_restores_and_commits_are_summed_up_in_any_order() -> None:
    events = [
        (EventKind.RESTORED, 1, 100),
        (EventKind.SNAPSHOT_COMMITTED, 1, 150),
        (EventKind.SNAPSHOT_COMMITTED, 1, 200),
        (EventKind.RESTORED, 2, 200),
    ]
    for order in permutations(events):
        sum_up = TrainingSummary()
        for seconds, (kind, generation, step) in enumerate(order):
            told_of = make_journal_event(
                kind.value, generation=generation, at=render_time(at(step)), evidence={"name": "s", "step": step}
            )
            sum_up.add_event(told_of, at(seconds))
        assert (sum_up.training().began_step, sum_up.training().kept_step) == (100, 200)
        assert sum_up.training().kept_at == at(200), "when it was committed, not when that was read"


def test_a_snapshot_without_a_step_keeps_nothing() -> None:
    for step in (None, True, "12", 2**63, 1.5):
        sum_up = TrainingSummary()
        for kind in (EventKind.RESTORED, EventKind.SNAPSHOT_COMMITTED):
            sum_up.add_event(make_journal_event(kind.value, evidence={"name": "s", "step": step}), at(1))
        assert (sum_up.began_step, sum_up.kept_step, sum_up.kept_at) == (None, None, None)


def test_a_time_that_no_step_takes_is_not_its_time() -> None:
    for step_s in (1e308, -1.0, float("nan"), float("inf")):
        sum_up = TrainingSummary()
        for step in (1, 2):
            sum_up.add_line(make_progress(step, metrics={"step_s": step_s}), at(step))
        assert sum_up.step_s is None


def test_a_step_that_other_programs_would_round_is_ignored() -> None:
    for step, kept in ((2**53 - 1, 2**53 - 1), (2**53, None), (-(10**30), None)):
        sum_up = TrainingSummary()
        sum_up.add_line(make_progress(step), at(1))
        assert sum_up.step == kept


def test_a_group_whose_workers_report_has_formed_even_if_its_event_was_lost() -> None:
    summary = TrainingSummary()
    summary.add_line(make_progress(seconds=7), at(8))
    assert summary.formed_at == at(7)
    summary.add_event(make_journal_event("generation.started"), at(9))
    assert summary.formed_at == at(7)
