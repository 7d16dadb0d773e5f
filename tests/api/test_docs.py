"""docs/api.md and the OpenAPI document name the same operations."""

from __future__ import annotations

import re
from pathlib import Path

from tests.api.conftest import World

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_documented_operations_are_those_that_exist(world: World) -> None:
    documented = set(re.findall(r"`(GET|POST|DELETE) (/[^`\s]+)`", PAGE.read_text()))
    paths = world.client.get("/openapi.json").json()["paths"]
    existing = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == existing
