"""Fixtures of the whole suite: a real service on a free port, a small disk, a temporary PostgreSQL."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples

if TYPE_CHECKING:
    from deploy.dev.service import ThrowawayService
    from orchestrator.client import Client

# The speed of the machine must not fail a test.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(25, 300)
)
settings.load_profile("patient")

# Collect garbage rarely, also while pytest imports the tests: otherwise this takes a fifth of the CPU time.
gc.set_threshold(100_000, 20, 100)

# What the caller has set for a service or a job of their own must not reach the tests.
_FOR_TESTS = ("ORCHESTRATOR_TEST_POSTGRES_URL", "ORCHESTRATOR_SCREENSHOTS", "ORCHESTRATOR_WRITE_FAULTS")
for _name in os.environ.keys() - set(_FOR_TESTS):
    if _name.startswith("ORCHESTRATOR_"):
        del os.environ[_name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests in folders `long` the mark `long`."""
    for item in items:
        if "long" in item.path.parts:
            item.add_marker(pytest.mark.long)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m smoke`, import only files with such tests: to import all takes longer than some of these tests."""
    if config.option.markexpr != "smoke" or not collection_path.name.startswith("test_"):
        return None
    return "pytest.mark.smoke" not in collection_path.read_text() or None


@pytest.fixture(scope="session", autouse=True)
def no_signals_to_the_suite() -> Iterator[None]:
    """For kill(2) the pid 0 is the process group: the suite and the `make` that runs it."""

    def checked(send: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def send_checked(pid: int, number: int) -> None:
            assert pid > 1, f"a signal to the pid {pid}"
            send(pid, number)

        return send_checked

    with patch.object(os, "kill", checked(os.kill)), patch.object(os, "killpg", checked(os.killpg)):
        yield


@pytest.fixture(scope="session", autouse=True)
def frozen_imports() -> None:
    """The collector need not look at what was imported."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove what tests and their processes leave in TMPDIR. Its path is short, for sockets (unix(7)).

    The caller's profiles (`orchestrator login`) are not used: XDG_CONFIG_HOME is there too.
    """
    tmp_path_factory.getbasetemp()  # created before TMPDIR changes, so that it stays for inspection
    with tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        with (
            patch.dict(os.environ, TMPDIR=folder, XDG_CONFIG_HOME=f"{folder}/config"),
            patch.object(tempfile, "tempdir", folder),
        ):
            yield


@contextmanager
def quick_service(root: Path, **more: str) -> Iterator[ThrowawayService]:
    """A service that polls often and stops attempts after two seconds instead of thirty. `more` are settings."""
    # Imported here: tests of the trainer also run where the service is not installed.
    from deploy.dev.service import ThrowawayService

    settings = {"ORCHESTRATOR_LOCAL_SLOTS": "4", "ORCHESTRATOR_POLL_S": "0.1", "ORCHESTRATOR_STOP_TIMEOUT_S": "2"}
    with ThrowawayService(root, settings | more) as running:
        yield running


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ThrowawayService]:
    with quick_service(tmp_path / "runs") as running:
        yield running


@pytest.fixture
def client(service: ThrowawayService) -> Iterator[Client]:
    from orchestrator.client import Client

    with Client(service.url) as connected:
        yield connected


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of 16 MB, with room for one snapshot of 11 MB."""
    with mount_small_disk(tmp_path / "disk") as folder:
        yield folder


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[Path]:
    """Mount a new folder of 16 MB. Skips the test if that is not possible."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server for new databases: ORCHESTRATOR_TEST_POSTGRES_URL, or one that is started here.

    Without PostgreSQL, skips on a laptop and fails in CI.
    """
    from deploy.dev.postgres import NoPostgres, postgres_server

    given = os.environ.get("ORCHESTRATOR_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    try:
        with postgres_server() as url:
            yield url
    except NoPostgres as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must test PostgreSQL: {error}")
        pytest.skip(str(error))
