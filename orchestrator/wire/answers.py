"""Base classes of answers and requests, and pages of answers."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", from_attributes=True)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Page(Answer, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = None
