"""Webhooks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from orchestrator.domain.field_rules import WEBHOOK_NAME
from orchestrator.wire.answers import Answer, Request


class WebhookView(Answer):
    """A webhook without its URL and its secret."""

    name: str
    host: str
    events: list[str]  # patterns
    all_jobs: bool


class WebhookRequest(Request):
    """A webhook to create. Without `secret` the service generates one. Only the answer shows it."""

    name: str = Field(pattern=WEBHOOK_NAME)
    url: str = Field(max_length=2000)
    secret: SecretStr | None = Field(default=None, max_length=1000)
    events: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=lambda: ["job.state"], min_length=1, max_length=100
    )
    all_jobs: bool = False


class NewWebhookView(WebhookView):
    """A new webhook. `secret` signs its messages; no other answer shows it."""

    secret: str
