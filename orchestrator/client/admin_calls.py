"""The client's calls for tokens, secrets and webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import quote

from pydantic import ValidationError

from orchestrator import wire
from orchestrator.client.calls import Calls
from orchestrator.domain.access.identity import Role
from orchestrator.domain.errors import Refused
from orchestrator.domain.field_rules import describe_rule
from orchestrator.wire.answers import Page


class AccessCalls:
    """A part of the Client. Every call raises NotFound, RequestRefused or ServiceUnreachable."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def webhooks(self) -> list[wire.webhook_views.WebhookView]:
        """Return the webhooks that a job's `notify` may name."""
        return self._calls.get("/webhooks", Page[wire.webhook_views.WebhookView]).items

    def create_webhook(
        self, name: str, url: str, *, events: Sequence[str] = ("job.state",), all_jobs: bool = False
    ) -> wire.webhook_views.NewWebhookView:
        """Create a webhook. Only this answer has the secret that signs its messages."""
        body = {"name": name, "url": url, "events": list(events), "all_jobs": all_jobs}
        return self._calls.post("/webhooks", wire.webhook_views.NewWebhookView, body=body, repeatable=False)

    def remove_webhook(self, name: str) -> None:
        """Remove a webhook that was created by request. Raises NotFound."""
        self._calls.remove(f"/webhooks/{quote(name, safe='')}")

    def tokens(self) -> list[wire.credential_views.TokenView]:
        """Return the tokens that the caller may create and revoke, newest first."""
        return self._calls.get("/tokens", Page[wire.credential_views.TokenView]).items

    def create_token(
        self, name: str, grants: Mapping[str, Role], *, expires_at: datetime | None = None
    ) -> wire.credential_views.NewTokenView:
        """Create a token. Only this answer has its text."""
        try:
            body = wire.credential_views.TokenRequest(name=name, grants=dict(grants), expires_at=expires_at)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(f"{'/'.join(map(str, first['loc']))}: {describe_rule(first)}") from None
        return self._calls.post(
            "/tokens", wire.credential_views.NewTokenView, body=body.model_dump(mode="json"), repeatable=False
        )

    def revoke_token(self, token_id: str) -> wire.credential_views.TokenView:
        """Revoke a token and its sessions. Idempotent."""
        return self._calls.delete(f"/tokens/{quote(token_id, safe='')}", wire.credential_views.TokenView)

    def secrets(self, *, project: str | None = None) -> list[wire.credential_views.SecretView]:
        """Return the secrets without their values."""
        return self._calls.get(
            "/secrets", Page[wire.credential_views.SecretView], None if project is None else {"project": project}
        ).items

    def store_secret(self, name: str, value: str, *, project: str = "default") -> wire.credential_views.SecretView:
        """Store a secret of a project, or replace it. Idempotent."""
        body = {"project": project, "name": name, "value": value}
        return self._calls.post("/secrets", wire.credential_views.SecretView, body=body, repeatable=True)

    def remove_secret(self, name: str, *, project: str = "default") -> None:
        """Remove a secret. Running jobs keep its value. Raises NotFound."""
        self._calls.remove(f"/secrets/{quote(project, safe='')}/{quote(name, safe='')}")
