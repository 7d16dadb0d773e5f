"""Hangs: the deadline of each phase, and the ranks that stopped first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.observation.hang import AGENT_ACTS_FIRST_S, Hang, deadline_s, find_hang, stopped_first, suspect
from orchestrator.domain.observation.observation import Observation, Presence, RankReport, Training
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.specs.spec import Supervise
from tests.builders import at, make_journal_event, make_progress
from tests.unit.situations import NOW, a_job, a_replica, a_situation, ago, an_attempt, seen
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.contract.silence import UNSEEN_S, PhaseTime

AUTO = Supervise()


def in_phase(phase: Phase, **fields: Any) -> Training:
    return Training(**{"phase": phase.value, "progress_at": ago(100), "step": 7, **fields})


def limit_of(training: Training, supervise: Supervise) -> float:
    """The limit of the agent. The service adds time so that the agent acts first."""
    deadline = deadline_s(training, supervise)
    assert deadline is not None
    return deadline - AGENT_ACTS_FIRST_S


def is_hang(training: Training, *, heard_s: float = 10_000) -> bool:
    return suspect(training, AUTO, heard_since=ago(heard_s), now=NOW) is not None


def test_every_phase_has_a_deadline_before_anything_was_observed() -> None:
    assert set(UNSEEN_S) == set(Phase) - {Phase.START, Phase.DONE, Phase.NOTE}
    for phase, limit in UNSEEN_S.items():
        assert limit_of(in_phase(phase), AUTO) == limit


def test_start_up_has_the_owners_limit() -> None:
    assert limit_of(in_phase(Phase.START), Supervise(startup_timeout_s=77)) == 77


def test_a_deadline_is_a_multiple_of_what_was_observed_and_never_hasty() -> None:
    def learned(count: int, typical: float, longest: float, phase: Phase = Phase.STEP) -> float:
        phase_times = {"step": PhaseTime(count, typical, longest), "snapshot": PhaseTime(count, typical, longest)}
        return limit_of(in_phase(phase, phase_times=phase_times), AUTO)

    assert learned(5, 0.1, 0.2) == 120, "the minimum"
    assert learned(5, 30, 40) == 600, "twenty times the typical"
    assert learned(5, 1, 300) == 1200, "four times the longest, as the job has slow steps"
    assert learned(4, 0.1, 0.2) == 600, "too few to learn from"
    assert learned(5, 30, 40, Phase.WAITING) == 600, "waiting in a collective is part of the step"
    assert learned(1, 200, 200, Phase.SNAPSHOT) == 4000
    assert learned(1, 1, 1, Phase.SNAPSHOT) == 600


def test_the_owners_limit_is_for_steps_and_leaves_a_snapshot_its_time() -> None:
    wanted = Supervise(heartbeat_timeout_s=30)
    assert limit_of(in_phase(Phase.STEP), wanted) == 30
    assert limit_of(in_phase(Phase.WAITING), wanted) == 30
    assert limit_of(in_phase(Phase.SNAPSHOT), wanted) == 1800
    assert limit_of(in_phase(Phase.SNAPSHOT), Supervise(heartbeat_timeout_s=5000)) == 5000


@pytest.mark.parametrize("phase", [Phase.COMPILE, Phase.SNAPSHOT, Phase.EVALUATION, Phase.RESTORE, Phase.DATA])
def test_a_long_phase_is_no_hang_where_a_step_would_be(phase: Phase) -> None:
    assert is_hang(in_phase(Phase.STEP, progress_at=ago(611)))
    assert not is_hang(in_phase(phase, progress_at=ago(1799)))


def test_nothing_told_is_nothing_to_judge_and_a_finished_worker_may_be_silent() -> None:
    assert not is_hang(Training())
    assert not is_hang(in_phase(Phase.DONE, progress_at=ago(99_999)))
    assert is_hang(Training(phase="a newer worker's word", progress_at=ago(611)))


def test_silence_counts_from_when_we_listen() -> None:
    silent = in_phase(Phase.STEP, progress_at=ago(9_000))
    assert is_hang(silent, heard_s=611)
    assert not is_hang(silent, heard_s=600)


def test_after_the_clock_was_set_back_silence_counts_from_when_we_listen() -> None:
    reported_later = in_phase(Phase.STEP, progress_at=ago(-5 * 3600))
    assert is_hang(reported_later, heard_s=611)
    assert not is_hang(reported_later, heard_s=600)


def word(rank: int, phase: Phase = Phase.STEP, step: int | None = 5, generation: int = 1) -> RankReport:
    return RankReport(rank=rank, replica=0, generation=generation, phase=phase.value, step=step, heard_at=ago(1))


def first(*words: RankReport) -> list[int]:
    return [each.rank for each in stopped_first(words)]


def test_who_is_behind_in_steps_stopped_first() -> None:
    assert first(word(0), word(1, step=4), word(2), word(3, step=None)) == [1, 3]


def test_who_does_not_wait_for_the_others_is_waited_for() -> None:
    assert first(word(0, Phase.WAITING), word(1), word(2, Phase.WAITING)) == [1]


def test_who_is_in_another_phase_than_most_stopped_first() -> None:
    assert first(word(0, Phase.SNAPSHOT), word(1), word(2)) == [0]


def test_nobody_is_named_where_nothing_tells_the_ranks_apart() -> None:
    assert first() == []
    assert first(word(0), word(1)) == []
    assert first(word(0, Phase.WAITING), word(1, Phase.WAITING)) == []
    assert first(word(0, Phase.SNAPSHOT), word(1)) == [], "one against one"


def test_a_hang_says_who_stopped_first_as_far_as_that_is_known() -> None:
    def last_words(*ranks: int) -> str:
        words = tuple(word(rank) for rank in ranks)
        hang = Hang(silent_s=700, limit_s=600, phase=Phase.STEP, step=5, stopped_first=words)
        return hang.sentence.partition("; ")[2]

    assert last_words() == "all ranks stopped together"
    assert last_words(3) == "rank 3 stopped first"
    assert last_words(*range(9)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... stopped first"


def test_words_of_an_earlier_generation_and_of_finished_ranks_do_not_count() -> None:
    assert first(word(0), word(1, step=4, generation=0), word(2)) == []
    assert first(word(0), word(1, Phase.DONE, step=4), word(2)) == []


# How phase times are learned


def told(*lines: tuple[float, Phase, int | None], generation: int = 1) -> TrainingSummary:
    sum_up = TrainingSummary()
    for seconds, phase, step in lines:
        line = make_progress(step, seconds=seconds, phase=phase, generation=generation)
        sum_up.add_line(line, at(seconds))
    return sum_up


def test_the_first_steps_do_not_count_and_the_rest_do() -> None:
    steps = [(0.0, Phase.STEP, 0), (60.0, Phase.STEP, 1), (100.0, Phase.STEP, 2), (101.0, Phase.STEP, 3)]
    assert told(*steps).training().phase_times == {"step": PhaseTime(1, 1.0, 1.0)}


def test_a_snapshot_within_a_step_is_its_own_phase_and_waiting_is_not() -> None:
    lines = [(float(n), Phase.STEP, n) for n in range(4)]
    lines += [(3.5, Phase.SNAPSHOT, 3), (9.5, Phase.STEP, 3), (10.5, Phase.WAITING, 3), (12.5, Phase.STEP, 4)]
    phase_times = told(*lines).training().phase_times
    assert phase_times["snapshot"] == PhaseTime(1, 6.0, 6.0)
    assert phase_times["step"].longest_s == 3.0
    assert "waiting" not in phase_times


def test_a_new_generation_warms_up_again() -> None:
    sum_up = told(*[(float(n), Phase.STEP, n) for n in range(5)])
    before = sum_up.training().phase_times["step"].count
    for seconds, step in ((100.0, 2), (160.0, 3), (200.0, 4)):
        sum_up.add_line(make_progress(step, seconds=seconds, generation=2), at(seconds))
    assert sum_up.training().phase_times["step"].count == before
    sum_up.add_line(make_progress(5, seconds=201.0, generation=2), at(201))
    assert sum_up.training().phase_times["step"].count == before + 1


def test_only_rank_zero_sets_the_limit_and_a_clock_that_runs_back_teaches_nothing() -> None:
    sum_up = TrainingSummary()
    for n in range(9):
        sum_up.add_line(make_progress(n, seconds=float(n), rank=1), at(n))
    assert sum_up.training().phase_times == {}
    assert told(*[(float(-n), Phase.STEP, n) for n in range(9)]).training().phase_times == {}


def test_a_change_of_size_is_told_from_a_restart_and_each_counts_once() -> None:
    sum_up = TrainingSummary()
    for kind, generation in (
        (EventKind.RESTARTED_IN_PLACE, 2),
        (EventKind.RESTARTED_IN_PLACE, 2),
        (EventKind.GROUP_SHRUNK, 3),
        (EventKind.GROUP_SHRUNK, 3),
        (EventKind.GROUP_GREW, 4),
    ):
        sum_up.add_event(make_journal_event(kind.value, generation=generation), at(generation))
    training = sum_up.training()
    assert (training.restarts, training.shrinks, training.resized_at) == (1, 1, at(4))


def test_a_restart_without_a_failure_is_not_counted() -> None:
    sum_up = TrainingSummary()
    because = {"because": "this node was out of contact with the others for 12 s"}
    sum_up.add_event(make_journal_event(EventKind.RESTARTED_IN_PLACE.value, generation=2, evidence=because), at(2))
    sum_up.add_event(make_journal_event(EventKind.RESTARTED_IN_PLACE.value, generation=3), at(3))
    assert sum_up.training().restarts == 1


def test_a_new_generation_starts_up_anew() -> None:
    """A slow import after a restart is no stalled step."""
    sum_up = told(*[(float(n), Phase.STEP, n) for n in range(9)])
    sum_up.add_event(make_journal_event(EventKind.WORKER_FAILED.value, generation=1), at(20))
    assert sum_up.training().progress_at == at(20)
    sum_up.add_event(make_journal_event(EventKind.GENERATION_STARTED.value, generation=2), at(30))
    training = sum_up.training()
    assert (training.phase, training.progress_at) == ("start", at(30))
    assert limit_of(training, AUTO) == AUTO.startup_timeout_s
    silent = TrainingSummary()
    silent.add_event(make_journal_event(EventKind.GENERATION_STARTED.value, generation=1), at(1))
    assert silent.training().progress_at is None, "a program that reports nothing has no deadline"


def test_a_clock_that_jumps_teaches_nothing() -> None:
    sum_up = told(*[(float(n), Phase.STEP, n) for n in range(9)])
    sum_up.add_line(make_progress(9, seconds=8 * 86400.0), at(9))
    assert sum_up.training().phase_times["step"].longest_s == 1.0
    wild = in_phase(Phase.STEP, phase_times={"step": PhaseTime(9, 1e9, 1e12)})
    assert limit_of(wild, AUTO) == 7 * 86400


def test_who_waits_for_a_peers_snapshot_has_the_time_of_a_snapshot() -> None:
    phase_times = {"step": PhaseTime(20, 1.0, 1.0)}
    training = in_phase(Phase.WAITING, phase_times=phase_times, progress_at=ago(600))
    words = (word(0, Phase.WAITING), word(1, Phase.SNAPSHOT))
    assert find_hang(observed(training, words), AUTO, NOW) is None
    stepping = (word(0, Phase.WAITING), word(1))
    hang = find_hang(observed(training, stepping), AUTO, NOW)
    assert hang is not None
    assert [each.rank for each in hang.stopped_first] == [1]
    hang = find_hang(
        observed(in_phase(Phase.WAITING, phase_times=phase_times, progress_at=ago(1811)), words), AUTO, NOW
    )
    assert hang is not None
    assert hang.limit_s == 1800 + AGENT_ACTS_FIRST_S


def observed(training: Training, ranks: tuple[RankReport, ...]) -> Observation:
    return replace(seen(Presence.RUNNING), training=training, ranks=ranks)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_leads_to_a_decision(phase: Phase) -> None:
    s = a_situation(a_job(), an_attempt(), seen(Presence.RUNNING, a_replica(), phase=phase.value))
    looks_again = decide(s).look_again_at
    assert looks_again is None or looks_again > s.now
