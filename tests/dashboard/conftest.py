"""The pages on the same service that the API is tested on."""

from __future__ import annotations

from tests.api.conftest import closed, empty_database, world

__all__ = ["closed", "empty_database", "world"]
