"""The page of clusters: their slots, queues and nodes, and who uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Response
from fastapi.responses import RedirectResponse

from orchestrator.api.authorization import Caller
from orchestrator.commands.nodes import NodeRecords
from orchestrator.dashboard.answers import CachedPage, CurrentRequest, answer_cached, page_of
from orchestrator.dashboard.page_cache import Recent
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.ports.clock import Clock
from orchestrator.queries.inventory import Inventory

QUEUED_SHOWN = 100
HOLDINGS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class ClustersPage:
    inventory: Inventory
    records: NodeRecords
    recent: Recent[CachedPage]
    clock: Clock

    async def show(self: Shared, request: CurrentRequest) -> Response:
        return await answer_cached(request, self.recent, "clusters.html", lambda: self._read(request.caller))

    def clear_node(self: Shared, cluster: str, node: str, caller: Caller) -> Response:
        self.records.clear(cluster, node, by=caller)
        return RedirectResponse("/clusters#nodes", status_code=303)

    def _read(self, caller: Principal) -> dict[str, object]:
        """Return what the caller may see. Jobs of other projects are left out of the queues."""
        survey = self.inventory.survey(queued=QUEUED_SHOWN)

        def sees(project: str) -> bool:
            return caller.may(Role.VIEWER, project)

        return {
            "now": self.clock.now(),
            "clusters": survey.clusters,
            "queues": {name: [each for each in queue if sees(each.project)] for name, queue in survey.queues.items()},
            "queued_shown": QUEUED_SHOWN,
            "nodes": self.inventory.nodes() if caller.may_everywhere(Role.VIEWER) else [],
            "clears_nodes": caller.may_everywhere(Role.OPERATOR),
            "projects": [each for each in survey.projects if sees(each.name)],
            "holdings": [each for each in survey.holdings if sees(each.project)][:HOLDINGS_SHOWN],
        }


Shared = Annotated[ClustersPage, Depends(page_of(ClustersPage))]
