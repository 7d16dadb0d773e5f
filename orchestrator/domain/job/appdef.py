"""Torchx AppDefs: escape text for them, fill in macros, and render them as plain values. Pure."""

from __future__ import annotations

import dataclasses
from enum import Enum
from string import Template
from typing import Any

from torchx.specs import AppDef


def escape(text: str) -> str:
    return text.replace("$", "$$")


def fill_in(text: str, **values: str) -> str:
    """Replace macros as torchx does (torchx.specs.macros.Values.substitute)."""
    return Template(text).safe_substitute(values)


def render_appdef(app: AppDef) -> dict[str, Any]:
    document: dict[str, Any] = _plain(dataclasses.asdict(app))
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
