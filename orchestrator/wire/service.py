"""The service itself."""

from __future__ import annotations

from orchestrator.wire.answers import Answer


class Health(Answer):
    status: str
    version: str
    detail: str = ""
