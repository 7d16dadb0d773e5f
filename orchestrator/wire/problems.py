"""Problem documents (RFC 9457)."""

from __future__ import annotations

from pydantic import Field

from orchestrator.wire.answers import Answer


class FieldError(Answer):
    pointer: str  # RFC 6901
    detail: str


class Problem(Answer):
    """An error answer. `type` is a relative reference and identifies the kind of problem."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = Field(default_factory=list)
