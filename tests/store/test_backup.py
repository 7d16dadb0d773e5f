"""Back up and restore both databases."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.dev.databases import scratch_database
from orchestrator.domain.errors import AlreadyRunning, ConfigurationError, SchemaMismatch, StoreUnavailable
from orchestrator.store import schema
from orchestrator.store.backup import back_up, restore
from orchestrator.store.engine import Database
from orchestrator.store.records import JobFilter
from orchestrator.store.sqlite import ServiceLock
from tests.store.harness import Stores


def jobs_of(url: str) -> set[str]:
    schema.check(url)
    with Database(url) as database:
        jobs, _ = Stores(database).reader.summaries(JobFilter(), limit=50, cursor=None)
    return {job.id for job in jobs}


def test_a_copy_has_only_what_was_committed_before(
    url: str, backend: str, open_stores: Callable[[], Stores], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stores, copy = open_stores(), tmp_path / "copy"
    stores.add("job-1")
    with stores.database.write():  # during another transaction
        advice = back_up(url, copy)
    stores.add("job-2")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"], "no temporary file is left"
    assert advice == f"stop the services; orchestrator db restore {copy}"
    if backend == "sqlite":
        assert jobs_of(f"sqlite:///{copy}") == {"job-1"}
        return
    program = shutil.which("pg_restore")
    assert program is not None
    with scratch_database(request.getfixturevalue("postgres")) as restored:
        plain = restored.replace("postgresql+psycopg://", "postgresql://")
        subprocess.run([program, "--no-owner", f"--dbname={plain}", str(copy)], check=True, timeout=300)
        assert jobs_of(restored) == {"job-1"}


def test_an_existing_file_is_not_overwritten(url: str, tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("precious")
    with pytest.raises(ConfigurationError, match="already exists"):
        back_up(url, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "precious"


def test_a_failed_copy_leaves_no_file(url: str, backend: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written to /nowhere/copy: No such file"):
        back_up(url, Path("/nowhere/copy"))
    folder = tmp_path / "backups"
    folder.mkdir()
    if backend == "sqlite":
        with pytest.raises(ConfigurationError, match="there is no database at"):
            back_up(f"sqlite:///{tmp_path}/none.db", folder / "copy")
        (tmp_path / "broken.db").write_text("no database" * 1000)
        with pytest.raises(StoreUnavailable, match="cannot be copied"):
            back_up(f"sqlite:///{tmp_path}/broken.db", folder / "copy")
    else:
        with pytest.raises(StoreUnavailable, match="pg_dump failed"):
            back_up(f"{url}_none", folder / "copy")
    assert list(folder.iterdir()) == []


def test_jobs_are_overwritten_only_on_request(url: str, open_stores: Callable[[], Stores], tmp_path: Path) -> None:
    stores, copy = open_stores(), tmp_path / "copy"
    stores.add("job-1")
    back_up(url, copy)
    stores.add("job-2")
    stores.database.dispose()
    with pytest.raises(ConfigurationError, match="holds 2 jobs"):
        restore(url, copy, replace=False)
    assert jobs_of(url) == {"job-1", "job-2"}
    restore(url, copy, replace=True)
    assert jobs_of(url) == {"job-1"}


def test_a_database_in_use_is_not_restored(
    url: str, backend: str, open_stores: Callable[[], Stores], tmp_path: Path
) -> None:
    stores, copy = open_stores(), tmp_path / "copy"
    back_up(url, copy)
    stores.add("job-1")
    if backend == "sqlite":
        assert stores.database.file is not None
        lock = ServiceLock(stores.database.file)
        lock.acquire()
        with pytest.raises(AlreadyRunning):
            restore(url, copy, replace=True)
        lock.release()
    else:
        lease = stores.leases.acquire("local", "here:1", ttl_s=3600)
        assert lease is not None
        with pytest.raises(ConfigurationError, match="services use this database \\(here:1\\)"):
            restore(url, copy, replace=True)
    assert jobs_of(url) == {"job-1"}


def test_an_invalid_copy_changes_nothing(url: str, open_stores: Callable[[], Stores], tmp_path: Path) -> None:
    stores, nonsense = open_stores(), tmp_path / "nonsense"
    stores.add("job-1")
    stores.database.dispose()
    with pytest.raises(ConfigurationError, match="there is no copy at"):
        restore(url, nonsense, replace=True)
    nonsense.write_text("no database" * 1000)
    with pytest.raises((StoreUnavailable, SchemaMismatch)):
        restore(url, nonsense, replace=True)
    assert jobs_of(url) == {"job-1"}
