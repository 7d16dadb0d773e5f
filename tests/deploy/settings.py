"""What deployment files call settings, beside the settings that there are."""

from __future__ import annotations

import re

from orchestrator.settings import Settings

_FILE = {"ORCHESTRATOR_CONFIG"}  # where the settings are read from
# Of compose itself.
_COMPOSE = {"ORCHESTRATOR_DOMAIN"}


def unknown_variables(text: str) -> set[str]:
    """The ORCHESTRATOR_ variables in a text that are no settings."""
    known = {f"ORCHESTRATOR_{name.upper()}" for name in Settings.model_fields}
    return set(re.findall(r"\bORCHESTRATOR_[A-Z_]+\b", text)) - known - _FILE - _COMPOSE
