from __future__ import annotations

from tests.api.conftest import empty_database, world  # noqa: F401 - fixtures
