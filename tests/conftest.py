"""A real service on a free port, for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client

# How fast a machine draws examples is no property of ours: a busy one must not turn a test red.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ThrowawayService]:
    settings = {"ORCHESTRATOR_LOCAL_SLOTS": "4", "ORCHESTRATOR_POLL_S": "0.1", "ORCHESTRATOR_STOP_TIMEOUT_S": "2"}
    with ThrowawayService(tmp_path / "runs", settings) as running:
        yield running


@pytest.fixture
def client(service: ThrowawayService) -> Iterator[Client]:
    with Client(service.url) as connected:
        yield connected
