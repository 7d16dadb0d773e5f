"""The page of the fleet: the goodput of all jobs, the causes of lost time, and who lost most.

It shows the answers of `GET /api/v1/goodput`. The Grafana dashboard shows how they change over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Query, Response

from orchestrator.dashboard.answers import CurrentRequest, answer_page, page_of
from orchestrator.dashboard.page_cache import Recent
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.accounting.breakdown import Grouping
from orchestrator.domain.errors import Refused
from orchestrator.ports.clock import Clock
from orchestrator.queries.usage import Usage, visible
from orchestrator.wire.insight import SharesView, ShareView

PERIODS = {1: "day", 7: "week", 30: "month"}  # in days
OWNERS = tuple(by.value for by in Grouping if by is not Grouping.CAUSE)
KEEP_S = 30.0  # the page reads many jobs, and its numbers cover days
_MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Losses:
    """The shares that lost time, largest loss first. `currency` is None if no prices are set."""

    total: ShareView
    currency: str | None
    causes: Sequence[ShareView]
    owners: Sequence[ShareView]


@dataclass(frozen=True, slots=True)
class FleetPage:
    usage: Usage
    clock: Clock
    recent: Recent[Losses] = field(default_factory=lambda: Recent(keep_s=KEEP_S))

    def show(
        self: Shared,
        request: CurrentRequest,
        days: int = 7,
        project: Annotated[str, Query(max_length=63)] = "",
        by: Annotated[str, Query(max_length=20)] = Grouping.JOB.value,
    ) -> Response:
        days, by = days if days in PERIODS else 7, by if by in OWNERS else Grouping.JOB.value
        losses, trouble = None, ""
        try:
            key = f"{request.caller} {days} {by} {project}"
            losses = self.recent.get(key, lambda: self._read(request.caller, days, Grouping(by), project.strip()))
        except Refused as error:
            trouble = str(error)
        chosen = {"days": days, "by": by, "project": project}
        return answer_page(
            request, "fleet.html", losses=losses, trouble=trouble, chosen=chosen, periods=PERIODS, owners=OWNERS
        )

    def _read(self, caller: Principal, days: int, by: Grouping, project: str) -> Losses:
        """Return the losses of the jobs that the caller may see. Raises Refused if there are too many jobs."""
        until = self.clock.now()
        projects = visible(caller.projects(Role.VIEWER), project or None)
        causes, owners = (
            self.usage.shares(each, since=until - timedelta(days=days), until=until, projects=projects)
            for each in (Grouping.CAUSE, by)
        )
        return Losses(owners.total, owners.currency, _most_lost(causes), _most_lost(owners)[:_MOST_ROWS])


Shared = Annotated[FleetPage, Depends(page_of(FleetPage))]


def _most_lost(shares: SharesView) -> Sequence[ShareView]:
    lost = [share for share in shares.items if share.lost_device_seconds > 0]
    return sorted(lost, key=lambda share: -share.lost_device_seconds)
