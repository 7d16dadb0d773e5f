from __future__ import annotations

from tests.cli.conftest import service  # noqa: F401 - a fixture
