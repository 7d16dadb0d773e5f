"""The pages of projects, tokens, secrets and webhooks. The rules of the routes say who may read and change them.

A token is shown once, on the page after its creation. The value of a secret is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Response
from fastapi.responses import RedirectResponse

from orchestrator.api.authorization import Caller, require_role
from orchestrator.api.bodies import parse_secret
from orchestrator.dashboard.answers import CurrentRequest, PageRequest, Posted, answer_page, first_of, page_of
from orchestrator.domain.access.identity import Role, Token
from orchestrator.domain.errors import FieldProblem, Forbidden, InvalidSpec
from orchestrator.domain.specs.validation import parse_model
from orchestrator.identity.tokens import Tokens
from orchestrator.identity.vault import Vault
from orchestrator.ports.clock import Clock
from orchestrator.queries.inventory import Inventory
from orchestrator.wire.credential_views import TokenRequest
from orchestrator.wire.webhook_views import WebhookView

_NEW_TOKEN = {"name": "", "grants": "", "days": "90"}
_NEW_SECRET = {"project": "", "name": ""}
LIFETIMES = {"30": "30 days", "90": "90 days", "365": "a year", "": "never"}  # in days


@dataclass(frozen=True, slots=True)
class SettingsPages:
    inventory: Inventory
    tokens: Tokens
    vault: Vault
    list_webhooks: Callable[[], Sequence[WebhookView]]
    clock: Clock

    def show_projects(self: Shared, request: CurrentRequest) -> Response:
        projects = [each for each in self.inventory.projects() if request.caller.may(Role.VIEWER, each.name)]
        return answer_page(request, "projects.html", projects=projects)

    def show_tokens(self: Shared, request: CurrentRequest) -> Response:
        return self._tokens(request)

    def create_token(self: Shared, form: Posted, request: CurrentRequest) -> Response:
        """Return the page with the new token, or with the errors of a refused request."""
        given = {name: first_of(form, name) for name in _NEW_TOKEN}
        try:
            wanted = self._read_token(given)
            made = self.tokens.create(wanted.name, wanted.grants, by=request.caller, expires_at=wanted.expires_at)
        except InvalidSpec as error:
            return self._tokens(request, given=given, problems=error.problems)
        except Forbidden as error:
            return self._tokens(request, given=given, problems=[FieldProblem("/grants", str(error))])
        return self._tokens(request, made=made)

    def revoke_token(self: Shared, token_id: str, caller: Caller) -> Response:
        self.tokens.revoke(token_id, by=caller)
        return RedirectResponse("/tokens", status_code=303)

    def show_secrets(self: Shared, request: CurrentRequest) -> Response:
        return self._secrets(request)

    def store_secret(self: Shared, form: Posted, request: CurrentRequest) -> Response:
        """Store a secret. If the request is refused, show the form again with the errors but without the value."""
        given = {"project": first_of(form, "project") or "default", "name": first_of(form, "name")}
        try:
            secret = parse_secret({**given, "value": form.get("value", [""])[0]})
            require_role(request.caller, Role.ADMIN, secret.project)
            self.vault.put(secret.project, secret.name, secret.value.get_secret_value(), by=request.caller)
        except InvalidSpec as error:
            return self._secrets(request, given=given, problems=error.problems)
        except Forbidden as error:
            return self._secrets(request, given=given, problems=[FieldProblem("/project", str(error))])
        return RedirectResponse(f"/secrets#{quote(secret.project)}-{quote(secret.name)}", status_code=303)

    def remove_secret(self: Shared, project: str, name: str, caller: Caller) -> Response:
        self.vault.remove(project, name, by=caller)
        return RedirectResponse("/secrets", status_code=303)

    def show_webhooks(self: Shared, request: CurrentRequest) -> Response:
        return answer_page(request, "webhooks.html", webhooks=self.list_webhooks())

    def _read_token(self, given: Mapping[str, str]) -> TokenRequest:
        """Raises InvalidSpec."""
        days = given["days"]
        if days not in LIFETIMES:
            raise InvalidSpec([FieldProblem("/days", "choose when the token expires")])
        expires_at = (self.clock.now() + timedelta(days=int(days))).isoformat() if days else None
        document = {"name": given["name"], "grants": parse_grants(given["grants"]), "expires_at": expires_at}
        return parse_model(TokenRequest, document)

    def _tokens(
        self,
        request: PageRequest,
        *,
        given: Mapping[str, str] = _NEW_TOKEN,
        problems: Sequence[FieldProblem] = (),
        made: tuple[Token, str] | None = None,
    ) -> Response:
        return answer_page(
            request,
            "tokens.html",
            status=422 if problems else 200,
            now=self.clock.now(),
            tokens=self.tokens.listed(request.caller),
            lifetimes=LIFETIMES,
            roles=list(Role),
            given=given,
            problems=problems,
            made=made,
        )

    def _secrets(
        self, request: PageRequest, *, given: Mapping[str, str] = _NEW_SECRET, problems: Sequence[FieldProblem] = ()
    ) -> Response:
        stored = self.vault.listed(request.caller.projects(Role.SUBMITTER))
        return answer_page(
            request,
            "secrets.html",
            status=422 if problems else 200,
            now=self.clock.now(),
            secrets=stored,
            keeps={each.project: request.caller.may(Role.ADMIN, each.project) for each in stored},
            stores=request.caller.may_somewhere(Role.ADMIN),
            given=given,
            problems=problems,
        )


Shared = Annotated[SettingsPages, Depends(page_of(SettingsPages))]


def parse_grants(text: str) -> dict[str, str]:
    """Parse `project=role` pairs, separated by line breaks or commas. Raises InvalidSpec."""
    grants: dict[str, str] = {}
    for part in (piece.strip() for piece in text.replace(",", "\n").splitlines()):
        if not part:
            continue
        project, equals, role = (word.strip() for word in part.partition("="))
        if not (project and equals and role):
            raise InvalidSpec([FieldProblem("/grants", f"{part!r} must be written project=role")])
        if project in grants:
            raise InvalidSpec([FieldProblem("/grants", f"project {project} is listed twice")])
        grants[project] = role
    return grants
