"""The routes of all pages: jobs, one job, arrays, comparisons, submit, clusters, fleet, settings.

No script is inline and nothing is loaded from other sites, as the Content-Security-Policy requires. Every change is a
POST, and the edge of the API refuses those from pages of other sites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import RedirectResponse

from orchestrator.api.deps import Services
from orchestrator.dashboard.actions import add_actions
from orchestrator.dashboard.answers import CachedPage
from orchestrator.dashboard.clusters_page import ClustersPage
from orchestrator.dashboard.compare_page import ComparePages
from orchestrator.dashboard.fleet_page import FleetPage
from orchestrator.dashboard.job_page import JobPage
from orchestrator.dashboard.list_page import ListPage
from orchestrator.dashboard.page_cache import Recent
from orchestrator.dashboard.pages import ASSETS, address_of
from orchestrator.dashboard.settings_pages import SettingsPages
from orchestrator.dashboard.sign_in import add_sign_in
from orchestrator.dashboard.sparks import Sparks
from orchestrator.dashboard.submit_page import SubmitPage
from orchestrator.domain.errors import NotFound
from orchestrator.ports.clock import Clock


def add_pages(services: Services, clock: Clock, router: APIRouter) -> None:
    """Add the routes of the pages. With the header `X-Fragment: main` the answer is only the content of <main>."""
    queries, commands, plans, places = services.queries, services.commands, services.plans, services.identity.places
    recent: Recent[CachedPage] = Recent()
    ListPage(queries, Sparks(queries), services.usage, recent, clock).add_to(router)
    SubmitPage(queries, services.inventory, commands, plans, places).add_to(router)
    ClustersPage(services.inventory, services.nodes, recent, clock).add_to(router)
    JobPage(queries, services.accounts, plans, services.logs, clock).add_to(router)
    ComparePages(services, clock).add_to(router)
    FleetPage(services.usage, clock).add_to(router)
    identity = services.identity
    SettingsPages(services.inventory, identity.tokens, identity.vault, services.list_webhooks, clock).add_to(router)
    add_actions(router, commands, places)
    add_sign_in(router, identity.tokens)
    router.add_api_route("/static/{name}", _asset, methods=["GET"])
    for path, page in {"/jobs": "/", "/goodput": "/fleet", "/favicon.ico": address_of("icon.svg")}.items():
        router.add_api_route(path, _redirect_to(page), methods=["GET"])


def _redirect_to(page: str) -> Callable[[Request], Response]:
    def redirect(request: Request) -> Response:
        query = request.url.query
        target = f"{page}?{query}" if query and "?" not in page else page
        return RedirectResponse(target, status_code=303)

    return redirect


def _asset(name: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
    if name not in ASSETS:
        raise NotFound(f"there is no file {name}")
    asset = ASSETS[name]
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",  # the URL changes with the content
        "Vary": "Accept-Encoding",
    }
    if "gzip" not in accept_encoding:
        return Response(asset.content, media_type=asset.media_type, headers=headers)
    headers["Content-Encoding"] = "gzip"
    return Response(asset.packed, media_type=asset.media_type, headers=headers)
