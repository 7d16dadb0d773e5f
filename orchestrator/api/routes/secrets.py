"""Store, list and remove the secrets of projects. No route returns a value."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from orchestrator.api.authorization import Caller, require_role
from orchestrator.api.bodies import SecretBody
from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute, render_answer
from orchestrator.domain.access.identity import Role
from orchestrator.wire.answers import Page
from orchestrator.wire.credential_views import SecretView

router = APIRouter(
    prefix="/api/v1", tags=["secrets"], dependencies=[Depends(refuse_unknown_query)], route_class=RenderingRoute
)


@router.get("/secrets", responses=problems())
def list_secrets(
    services: Wired, caller: Caller, project: Annotated[str | None, Query(max_length=63)] = None
) -> Page[SecretView]:
    """The names of the secrets of the caller's projects, who stored them, and when."""
    stored = services.identity.vault.listed(caller.projects(Role.SUBMITTER))
    return Page(items=[SecretView.model_validate(each) for each in stored if project in (None, each.project)])


@router.post(
    "/secrets",
    status_code=201,
    response_model=SecretView,
    responses={200: {"model": SecretView, "description": "The secret replaced one with the same name"}, **problems()},
)
def store_secret(services: Wired, caller: Caller, secret: SecretBody) -> Response:
    """Store a secret for jobs of a project. No route returns its value."""
    require_role(caller, Role.ADMIN, secret.project)
    vault = services.identity.vault
    created = vault.put(secret.project, secret.name, secret.value.get_secret_value(), by=caller)
    stored = next(each for each in vault.listed({secret.project}) if each.name == secret.name)
    return render_answer(SecretView.model_validate(stored), 201 if created else 200)


@router.delete("/secrets/{project}/{name}", status_code=204, responses=problems(404))
def remove_secret(services: Wired, caller: Caller, project: str, name: str) -> Response:
    """Remove a secret. Running jobs keep its value. A later attempt that needs the secret fails with a reason."""
    services.identity.vault.remove(project, name, by=caller)
    return Response(status_code=204)
