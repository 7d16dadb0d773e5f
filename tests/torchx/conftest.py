from __future__ import annotations

from tests.cli.conftest import environment, service  # noqa: F401 - fixtures
