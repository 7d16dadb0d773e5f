"""Compare the variables in deployment files with the settings."""

from __future__ import annotations

import re

from orchestrator.settings import Settings

_FILE = {"ORCHESTRATOR_CONFIG"}  # the file of the settings
_COMPOSE = {"ORCHESTRATOR_DOMAIN"}  # used only by compose.yaml


def unknown_variables(text: str) -> set[str]:
    """Return the ORCHESTRATOR_* variables in a text that are not settings."""
    known = {f"ORCHESTRATOR_{name.upper()}" for name in Settings.model_fields}
    return set(re.findall(r"\bORCHESTRATOR_[A-Z_]+\b", text)) - known - _FILE - _COMPOSE
