"""The fleet over time: what is lost adds up, and each recovery is told by what brought training back."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.dashboard.fleet import NO_FAILURE, Rung, build_fleet, list_recoveries
from orchestrator.domain.accounting.breakdown import Holding
from orchestrator.domain.accounting.goodput import Bin, Stretch
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import at
from tests.dashboard.looks import page
from trainer.contract.failure import FailureKind


def stretches(*parts: tuple[float, Bin, dict[str, Any]], until: float) -> tuple[Stretch, ...]:
    ends = [*(since for since, *_ in parts[1:]), until]
    return tuple(
        Stretch(bin=what, since=at(since), until=at(end), **{"devices": 4, "used": 4, "attempt": 1, **more})
        for (since, what, more), end in zip(parts, ends, strict=True)
    )


def holding(*parts: tuple[float, Bin, dict[str, Any]], until: float, name: str = "job-1") -> Holding:
    return Holding(job_id=name, user="ann", project="p", cluster="c", stretches=stretches(*parts, until=until))


NODE = {"cause": FailureKind.NODE}
KILLED = {"cause": FailureKind.APPLICATION}
LIFE = (
    (0.0, Bin.QUEUE, {}),
    (600.0, Bin.START_UP, {}),
    (1200.0, Bin.PRODUCTIVE, {}),
    (1800.0, Bin.RE_DONE, KILLED),
    (1810.0, Bin.RECOVERING, KILLED),
    (1820.0, Bin.RECOVERING, {"generation": 2, **KILLED}),
    (1830.0, Bin.PRODUCTIVE, {}),
    (2400.0, Bin.STALLED, NODE),
    (2430.0, Bin.RECOVERING, NODE),
    (2460.0, Bin.PRODUCTIVE, {"used": 2}),
    (3000.0, Bin.RECOVERING, {}),
    (3005.0, Bin.PRODUCTIVE, {}),
    (3300.0, Bin.RECOVERING, NODE),
    (3400.0, Bin.PRODUCTIVE, {"attempt": 2}),
)


def test_each_recovery_has_its_rung_its_time_and_its_cause() -> None:
    found = [(each.rung, each.cause, each.seconds) for each in list_recoveries(stretches(*LIFE, until=3600))]
    assert found == [
        (Rung.IN_PLACE, "application", 20),
        (Rung.SMALLER, "node", 30),
        (Rung.LARGER, NO_FAILURE, 5),
        (Rung.ATTEMPT, "node", 100),
    ]


def test_a_rest_and_a_recovery_that_led_nowhere_are_none() -> None:
    rested = stretches(
        (0, Bin.PRODUCTIVE, {}),
        (10, Bin.RECOVERING, KILLED),
        (20, Bin.IDLE, {}),
        (30, Bin.PRODUCTIVE, {"attempt": 2}),
        (40, Bin.RECOVERING, KILLED),
        until=50,
    )
    assert list(list_recoveries(rested)) == []


def test_what_is_lost_adds_up_over_windows_causes_and_jobs() -> None:
    other = holding(
        (0, Bin.PRODUCTIVE, {}), (3000, Bin.STALLED, {"nodes": {"n1": 4}, **NODE}), until=3600, name="job-2"
    )
    fleet = build_fleet([holding(*LIFE, until=3600), other], at(0), at(3600), windows=6)
    lost_h = sum(fleet.causes.values())
    assert fleet.held_h == pytest.approx(sum(window.held_h for window in fleet.windows))
    assert lost_h == pytest.approx(sum(window.lost_h for window in fleet.windows))
    assert fleet.goodput == pytest.approx(1 - lost_h / fleet.held_h)
    assert fleet.causes["application"] == pytest.approx(4 * 30 / 3600)
    assert fleet.causes["node"] == pytest.approx((4 * 160 + 4 * 600) / 3600)
    assert list(fleet.causes) == ["node", NO_FAILURE, "application"], "the most first"
    assert [each.name for each in fleet.worst_jobs] == ["job-1", "job-2"]
    assert [(each.name, each.lost_h) for each in fleet.worst_nodes] == [("n1", pytest.approx(4 * 600 / 3600))]
    assert fleet.colours == {NO_FAILURE: "none", "node": "0", "application": "1"}
    assert fleet.restarts == {"node": 2, "application": 1, NO_FAILURE: 1}
    assert [(each.rung, each.count, each.median_s) for each in fleet.rungs] == [
        (Rung.IN_PLACE, 1, 20),
        (Rung.SMALLER, 1, 30),
        (Rung.LARGER, 1, 5),
        (Rung.ATTEMPT, 1, 100),
    ]


def test_a_fleet_without_jobs_has_empty_windows() -> None:
    fleet = build_fleet([], at(0), at(100), windows=4)
    assert (len(fleet.windows), fleet.goodput, fleet.held_h, fleet.causes) == (4, None, 0, {})


def test_the_page_shows_the_fleet_of_the_projects_that_one_sees(closed: World) -> None:
    headers = closed.give("research=submitter", name="ada")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(project="research"), headers=headers).json()["id"]
    closed.advance(job_id, JobState.STARTING, JobState.RUNNING)
    closed.start(job_id, state=AttemptState.RUNNING)
    closed.clock.moment = at(7200)
    for path in ("/fleet", "/fleet?days=1", "/fleet?days=30&project=research"):
        text = page(closed, path, **headers)
        assert "Device-hours used" in text
        assert job_id in text
    for path in ("/fleet?project=vision", "/fleet?days=3"):
        assert page(closed, path, **headers)
    assert "No jobs ran" in page(closed, "/fleet?project=vision", **headers)
    stranger = closed.give("vision=admin")
    assert "No jobs ran" in page(closed, "/fleet?project=research", **stranger)
