"""Fleets of simulated nodes, for tests that need network namespaces. Needs root."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.nodes.fleet import Fleet
from deploy.dev.network import Network, NoNamespaces


@contextmanager
def open_fleet(
    folder: Path, nodes: int, config: dict[str, object] | None = None, *, needs: str = "ip"
) -> Iterator[Fleet]:
    """A fleet whose agents are not started yet, and which ends with the context. Skips the test where it cannot run."""
    if shutil.which(needs) is None:
        pytest.skip(f"{needs} is not installed")
    try:
        with Network(nodes) as network:
            fleet = Fleet(network, folder, config=config or {})
            yield fleet
            fleet.end()
    except NoNamespaces as error:
        pytest.skip(str(error))
