"""The page of the fleet: goodput and its losses over time, recoveries, and where most is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response

from orchestrator.dashboard.answers import Asking, answer_page
from orchestrator.dashboard.fleet import Fleet, build_fleet
from orchestrator.dashboard.page_cache import Recent
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import Refused
from orchestrator.ports.clock import Clock
from orchestrator.queries.usage import Usage, visible

PERIODS = {1: ("day", 24), 7: ("week", 14), 30: ("month", 30)}  # days: what it is called, and its bars
KEEP_S = 30.0  # it reads many jobs, and says what went on for days


@dataclass(frozen=True, slots=True)
class FleetPage:
    usage: Usage
    clock: Clock
    recent: Recent[Fleet] = field(default_factory=lambda: Recent(keep_s=KEEP_S))

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/fleet", self.show, methods=["GET"])

    def show(self, asked: Asking, days: int = 7, project: Annotated[str, Query(max_length=63)] = "") -> Response:
        days = days if days in PERIODS else 7
        fleet, trouble = None, ""
        try:
            key = f"{asked.caller} {days} {project}"
            fleet = self.recent.get(key, lambda: self._look(asked.caller, days, project.strip()))
        except Refused as error:
            trouble = str(error)
        return answer_page(
            asked, "fleet.html", fleet=fleet, trouble=trouble, days=days, project=project, periods=PERIODS
        )

    def _look(self, caller: Principal, days: int, project: str) -> Fleet:
        """Of the jobs that he may see. Raises Refused where those are too many."""
        until = self.clock.now()
        since = until - timedelta(days=days)
        projects = visible(caller.projects(Role.VIEWER), project or None)
        holdings = self.usage.holdings(since, until, projects)
        return build_fleet(holdings, since, until, windows=PERIODS[days][1])
