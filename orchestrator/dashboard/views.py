"""The routes of all pages: jobs, one job, arrays, comparisons, submit, clusters, fleet, settings.

No script is inline and nothing is loaded from other sites, as the Content-Security-Policy requires. Every change is a
POST, and the edge of the API refuses those from pages of other sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import RedirectResponse
from starlette.routing import BaseRoute

from orchestrator.api.authorization import authorize
from orchestrator.api.deps import Services
from orchestrator.api.errors import SIGN_IN
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
from orchestrator.dashboard.sign_in import show_form, sign_in, sign_out
from orchestrator.dashboard.sparks import Sparks
from orchestrator.dashboard.submit_page import SubmitPage
from orchestrator.domain.errors import NotFound
from orchestrator.ports.clock import Clock


def build_pages(services: Services, clock: Clock) -> Mapping[type, object]:
    """Return the pages of one application, by kind."""
    queries, inventory, identity = services.queries, services.inventory, services.identity
    recent: Recent[CachedPage] = Recent()
    pages = (
        ListPage(queries, Sparks(queries), services.usage, recent, clock),
        SubmitPage(queries, inventory, services.commands, services.plans, identity.places),
        ClustersPage(inventory, services.nodes, recent, clock),
        JobPage(queries, services.accounts, services.plans, services.logs, clock),
        ComparePages(services, clock),
        FleetPage(services.usage, clock),
        SettingsPages(inventory, identity.tokens, identity.vault, services.list_webhooks, clock),
    )
    return {type(page): page for page in pages}


@cache
def build_page_routes() -> Sequence[BaseRoute]:
    """Build the routes of the pages. With the header `X-Fragment: main` the answer is only the content of <main>."""
    router = APIRouter(dependencies=[Depends(authorize)], include_in_schema=False)
    for method, path, answer in _ROUTES:
        router.add_api_route(path, answer, methods=[method])
    add_actions(router)
    for path, page in {"/jobs": "/", "/goodput": "/fleet", "/favicon.ico": address_of("icon.svg")}.items():
        router.add_api_route(path, _redirect_to(page), methods=["GET"])
    return router.routes


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


_ROUTES: Sequence[tuple[str, str, Callable[..., object]]] = (
    ("GET", "/", ListPage.show),
    ("GET", "/submit", SubmitPage.show),
    ("POST", "/submit", SubmitPage.submit),
    ("POST", "/submit/draft", SubmitPage.draft),
    ("GET", "/clusters", ClustersPage.show),
    ("POST", "/nodes/{cluster}/{node}/clear", ClustersPage.clear_node),
    ("GET", "/jobs/{job_id}", JobPage.show),
    ("GET", "/jobs/{job_id}/charts", JobPage.charts),
    ("GET", "/jobs/{job_id}/launch", JobPage.launch),
    ("GET", "/arrays/{array_id}", ComparePages.show_array),
    ("POST", "/arrays/{array_id}/cancel", ComparePages.cancel),
    ("POST", "/arrays/{array_id}/retry", ComparePages.retry),
    ("GET", "/compare", ComparePages.compare),
    ("GET", "/compare/curves", ComparePages.curves),
    ("GET", "/fleet", FleetPage.show),
    ("GET", "/projects", SettingsPages.show_projects),
    ("GET", "/tokens", SettingsPages.show_tokens),
    ("POST", "/tokens", SettingsPages.create_token),
    ("POST", "/tokens/{token_id}/revoke", SettingsPages.revoke_token),
    ("GET", "/secrets", SettingsPages.show_secrets),
    ("POST", "/secrets", SettingsPages.store_secret),
    ("POST", "/secrets/{project}/{name}/remove", SettingsPages.remove_secret),
    ("GET", "/webhooks", SettingsPages.show_webhooks),
    ("GET", SIGN_IN, show_form),
    ("POST", SIGN_IN, sign_in),
    ("POST", "/sign-out", sign_out),
    ("GET", "/static/{name}", _asset),
)
