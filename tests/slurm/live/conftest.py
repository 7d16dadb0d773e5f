"""One Slurm for the session. Each test has its own service and leaves nothing on any node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from deploy.dev.slurm.conf import Shape
from tests.slurm.live.lab import Lab, open_labs


@pytest.fixture(scope="session")
def slurm() -> Iterator[ThrowawaySlurm]:
    """Skip without Slurm. In CI fail."""
    try:
        with ThrowawaySlurm(Shape(nodes=4)) as running:
            yield running
    except NoSlurm as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must test Slurm: {error}")
        pytest.skip(str(error))


@pytest.fixture
def open_lab(slurm: ThrowawaySlurm, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    with open_labs(slurm, tmp_path) as build:
        yield build


@pytest.fixture
def lab(open_lab: Callable[..., Lab]) -> Lab:
    return open_lab()
