"""Tokens and secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, SecretStr

from orchestrator.domain.access.identity import Role
from orchestrator.domain.field_rules import GRANTED_PROJECT, TOKEN_NAME
from orchestrator.domain.specs.spec import EnvName, Name
from orchestrator.wire.answers import Answer, Request
from orchestrator.wire.moments import Moment

GrantedProject = Annotated[str, Field(pattern=GRANTED_PROJECT)]


class TokenRequest(Request):
    """`grants` maps a project, or `*` for every project, to a role. Without `expires_at` the token is valid until it is
    revoked."""

    name: str = Field(min_length=1, max_length=100, pattern=TOKEN_NAME)
    grants: dict[GrantedProject, Role] = Field(min_length=1, max_length=100)
    expires_at: Moment | None = None


class TokenView(Answer):
    """A token without its text."""

    id: str
    name: str
    grants: dict[str, Role]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewTokenView(TokenView):
    """A new token. `token` is its text, which no other answer shows."""

    token: str


class SecretRequest(Request):
    """A secret to store. It replaces one with the same name. No answer shows its value."""

    project: Name = "default"
    name: EnvName
    value: SecretStr = Field(max_length=32768)


class SecretView(Answer):
    """A secret without its value: its name, who stored it, and when."""

    project: str
    name: str
    updated_at: datetime
    updated_by: str
