"""Attacks that go on for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.hostile import guarded
from tests.attacks.test_hostile_clients import storm

pytestmark = pytest.mark.timeout(300)


def test_24_reports_at_a_time_for_a_minute(tmp_path: Path) -> None:
    with guarded(tmp_path / "root") as service:
        storm(service, 60.0)
