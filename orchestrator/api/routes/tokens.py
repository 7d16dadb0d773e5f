"""Create, list and revoke tokens. A token's text is shown once, when it is created."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from orchestrator.api.authorization import Caller
from orchestrator.api.bodies import TokenBody
from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire.answers import Page
from orchestrator.wire.credential_views import NewTokenView, TokenView

router = APIRouter(
    prefix="/api/v1", tags=["tokens"], dependencies=[Depends(refuse_unknown_query)], route_class=RenderingRoute
)


@router.get("/tokens", responses=problems())
def list_tokens(services: Wired, caller: Caller) -> Page[TokenView]:
    """The tokens that the caller may create and revoke, newest first, including revoked ones."""
    return Page(items=[TokenView.model_validate(token) for token in services.identity.tokens.listed(caller)])


@router.post("/tokens", status_code=201, responses=problems())
def create_token(services: Wired, caller: Caller, request: TokenBody) -> NewTokenView:
    """Create a token. Only this answer shows its text. The caller must be admin of every granted project."""
    token, text = services.identity.tokens.create(
        request.name, request.grants, by=caller, expires_at=request.expires_at
    )
    return NewTokenView(**vars(TokenView.model_validate(token)), token=text)


@router.delete("/tokens/{token_id}", responses=problems(404))
def revoke_token(services: Wired, caller: Caller, token_id: str) -> TokenView:
    """Revoke a token and the sessions that were opened with it. Idempotent."""
    return TokenView.model_validate(services.identity.tokens.revoke(token_id, by=caller))
