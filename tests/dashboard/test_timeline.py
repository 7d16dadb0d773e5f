"""The timeline of a job: stretches without gaps, attempts, pins."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.dashboard.timeline import Shape, Timeline, build_timeline
from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.queries.job_queries import view_of_new_job
from orchestrator.wire.insight import StretchView
from orchestrator.wire.job_views import AttemptView, EventView, JobView
from tests.builders import at, make_job


def job(state: JobState = JobState.RUNNING, **fields: Any) -> JobView:
    return view_of_new_job(make_job(state=state, **fields))


def attempt(number: int, begin: float, end: float | None = None, **fields: Any) -> AttemptView:
    defaults: dict[str, Any] = {
        "state": AttemptState.RUNNING if end is None else AttemptState.LOST,
        "reason": "",
        "rendezvous_id": "r",
        "port": 1,
        "handle": None,
        "restore_from": None,
        "started_at": at(begin),
        "failure": None,
    }
    values = {**defaults, **fields}
    return AttemptView(number=number, created_at=at(begin), ended_at=None if end is None else at(end), **values)


def event(seconds: float, kind: str, attempt: int | None = None, **evidence: Any) -> EventView:
    return EventView(
        id=int(seconds * 10),
        job_id="job-1",
        at=at(seconds),
        kind=kind,
        sentence=f"{kind} happened",
        attempt=attempt,
        generation=None,
        evidence=evidence,
    )


def life(*parts: tuple[float, Bin, int | None, int | None], until: float) -> list[StretchView]:
    """Consecutive stretches of (since, bin, attempt, generation)."""
    ends = [*(since for since, *_ in parts[1:]), until]
    return [
        StretchView(
            bin=what,
            since=at(since),
            until=at(end),
            devices=2,
            used=2,
            attempt=number,
            generation=generation,
            stall_s=0.0,
        )
        for (since, what, number, generation), end in zip(parts, ends, strict=True)
    ]


RESTARTED = life(
    (0, Bin.QUEUE, None, None),
    (5, Bin.START_UP, 1, None),
    (8, Bin.PRODUCTIVE, 1, 1),
    (30, Bin.RE_DONE, 1, 1),
    (40, Bin.RECOVERING, 1, None),
    (42, Bin.RECOVERING, 1, 2),
    (50, Bin.PRODUCTIVE, 1, 2),
    until=60,
)


def check_whole(timeline: Timeline) -> None:
    """The parts follow each other without a gap from end to end."""
    seconds = (timeline.end - timeline.begin).total_seconds()
    assert sum(part.seconds for part in timeline.parts) == pytest.approx(seconds)
    x = 0.0
    for part in timeline.parts:
        assert part.x == pytest.approx(x, abs=0.01)
        x += part.width
    assert x == pytest.approx(100, abs=0.05)


def test_the_timeline_has_the_stretches_of_the_ledger() -> None:
    timeline = build_timeline(job(), RESTARTED, [attempt(1, 5)], [], at(60))
    assert [(part.bin, part.seconds) for part in timeline.parts] == [
        (Bin.QUEUE, 5),
        (Bin.START_UP, 3),
        (Bin.PRODUCTIVE, 22),
        (Bin.RE_DONE, 10),
        (Bin.RECOVERING, 10),  # the end of a generation and the start of the next are one recovery
        (Bin.PRODUCTIVE, 10),
    ]
    check_whole(timeline)


def test_a_later_generation_is_a_line_in_its_attempts_lane() -> None:
    lane = build_timeline(job(), RESTARTED, [attempt(1, 5)], [], at(60)).lanes[0]
    assert lane.words == "attempt 1: running, 1 restart in place"
    assert lane.ticks == [pytest.approx(70)]
    assert (lane.x, lane.width) == (pytest.approx(8.333), pytest.approx(91.667))


def test_the_lanes_are_the_attempts_in_their_order() -> None:
    attempts = [attempt(2, 40), attempt(1, 5, 30)]
    timeline = build_timeline(job(), RESTARTED, attempts, [], at(60))
    assert [lane.words for lane in timeline.lanes] == ["attempt 1: lost, 1 restart in place", "attempt 2: running"]


def test_an_old_ledger_of_a_running_job_is_extended_to_now() -> None:
    timeline = build_timeline(job(), RESTARTED, [], [], at(70))
    assert timeline.parts[-1].seconds == 20
    check_whole(timeline)


def test_a_ledger_newer_than_now_is_not_cut() -> None:
    assert build_timeline(job(), RESTARTED, [], [], at(55)).end == at(60)


def test_the_timeline_of_an_ended_job_ends() -> None:
    ended = job(JobState.SUCCEEDED, finished_at=at(60))
    timeline = build_timeline(ended, RESTARTED, [], [event(60, "job.state", state="SUCCEEDED")], at(9999))
    assert timeline.end == at(60)
    check_whole(timeline)


def test_a_new_job_has_an_empty_timeline() -> None:
    timeline = build_timeline(job(JobState.QUEUED), [], [], [], at(0))
    assert timeline.parts == []
    assert timeline.end > timeline.begin


def test_many_stretches_are_merged_by_the_longest_bin_of_each_cell() -> None:
    restarts = [
        part
        for second in range(0, 9000, 3)
        for part in ((second, Bin.PRODUCTIVE, 1, second + 1), (second + 2.9, Bin.RECOVERING, 1, second + 2))
    ]
    stretches = life((0, Bin.QUEUE, None, None), *((1000.0 + since, *rest) for since, *rest in restarts), until=10000)
    timeline = build_timeline(job(), stretches, [attempt(1, 1000)], [], at(10000))
    assert [part.bin for part in timeline.parts] == [Bin.QUEUE, Bin.PRODUCTIVE]
    check_whole(timeline)
    assert len(timeline.lanes[0].ticks) == 120


def test_pins_stay_on_the_band_despite_clock_differences() -> None:
    events = [event(-40, "worker.failed"), event(900, "worker.failed"), event(5, "worker.failed")]
    pins = build_timeline(job(), RESTARTED, [attempt(1, -5)], events, at(60)).pins
    assert [pin.x for pin in pins] == [0, pytest.approx(8.333), 100]


def test_only_a_failed_attempt_gets_a_pin() -> None:
    events = [event(1, "attempt.state", 1, state="LOST"), event(2, "attempt.state", 2, state="SUCCEEDED")]
    pins = build_timeline(job(), RESTARTED, [], events, at(60)).pins
    assert [(pin.shape, pin.event) for pin in pins] == [(Shape.FAILURE, 10)]


def test_a_thousand_snapshots_do_not_hide_a_failure() -> None:
    events = [event(second, "snapshot.committed", 1) for second in range(1000)]
    events.append(event(500, "worker.failed", 1))
    stretches = life((0, Bin.PRODUCTIVE, 1, 1), until=1000)
    timeline = build_timeline(job(), stretches, [attempt(1, 0)], events, at(1000))
    assert len(timeline.pins) < 200
    assert [pin.shape for pin in timeline.pins].count(Shape.FAILURE) == 1
    assert any("and" in pin.words and pin.count > 1 for pin in timeline.pins)
