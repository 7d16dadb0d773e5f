"""Tokens and secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, SecretStr

from orchestrator.domain.access.identity import Role
from orchestrator.domain.specs.spec import EnvName, Name
from orchestrator.wire.answers import Answer, Request
from orchestrator.wire.moments import Moment

GrantedProject = Annotated[str, Field(pattern=r"^(?:\*|[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)$")]


class TokenRequest(Request):
    """`grants`: a role by project, `*` for every project. Without `expires_at` it holds until it is revoked."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@+-]*$")
    grants: dict[GrantedProject, Role] = Field(min_length=1, max_length=100)
    expires_at: Moment | None = None


class TokenView(Answer):
    """A token without what it takes to use it."""

    id: str
    name: str
    grants: dict[str, Role]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewTokenView(TokenView):
    """`token` is shown this once."""

    token: str


class SecretRequest(Request):
    """A secret to store; one of that name is replaced. Its value is never told."""

    project: Name = "default"
    name: EnvName
    value: SecretStr = Field(max_length=32768)


class SecretView(Answer):
    """That there is a secret, and who stored it when."""

    project: str
    name: str
    updated_at: datetime
    updated_by: str
