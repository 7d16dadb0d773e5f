"""Errors for a database that is missing, not writable, in use, or on the wrong file system."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from sqlalchemy import text

from deploy.dev.postgres import NoPostgres, find_binaries, postgres_server
from orchestrator.domain.errors import AlreadyRunning, ConfigurationError, StoreUnavailable
from orchestrator.store import schema, sqlite
from orchestrator.store.engine import Database
from orchestrator.store.mounts import file_system_of, parse_mountinfo
from orchestrator.store.upgrade import upgrade
from tests.store.harness import Stores

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home rw,nosuid shared:20 master:3 - nfs4 server:/home rw,vers=4.2
41 40 254:1 / /home/local\\040disk rw - xfs /dev/vdb rw
42 22 0:36 / /mnt/a rw - nfs server:/a rw
43 22 254:2 / /mnt/a rw - ext4 /dev/vdc rw
44 22 0:37 / /lustre rw - lustre mgs:/scratch rw
a line of another form
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x.db", "ext4"),
        ("/home/me/x.db", "nfs4"),
        ("/home/local disk/x.db", "xfs"),
        ("/homework/x.db", "ext4"),
        ("/mnt/a/x.db", "ext4"),
        ("/lustre", "lustre"),
    ],
)
def test_the_innermost_and_newest_mount_has_the_file_system(path: str, kind: str) -> None:
    assert file_system_of(PurePosixPath(path), parse_mountinfo(MOUNTINFO)) == kind


def test_without_a_mount_table_the_file_system_is_unknown() -> None:
    assert file_system_of(PurePosixPath("/x"), parse_mountinfo("")) is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p"])
def test_sqlite_on_a_network_file_system_is_refused_with_advice(tmp_path: Path, kind: str) -> None:
    mounts = f"22 1 0:1 / / rw - ext4 /dev/vda rw\n23 22 0:2 / {tmp_path} rw - {kind} server:/x rw\n"
    with pytest.raises(ConfigurationError, match=rf"network file system \({kind}\).*local disk.*or use PostgreSQL"):
        sqlite.refuse_network_file_system(tmp_path / "x.db", mounts)


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/home/me")
    with pytest.raises(ConfigurationError, match="nfs4"):
        sqlite.refuse_network_file_system(tmp_path / "link" / "x.db", MOUNTINFO)


@pytest.fixture
def database_file(sqlite_template: Path) -> Iterator[Path]:
    """A database with tables, in a folder that every user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-store-"))
    folder.chmod(0o777)
    shutil.copy(sqlite_template, folder / "orchestrator.db")
    (folder / "orchestrator.db").chmod(0o666)
    yield folder / "orchestrator.db"
    folder.chmod(0o777)
    shutil.rmtree(folder)


@pytest.fixture
def database(database_file: Path) -> Iterator[Database]:
    with Database(f"sqlite:///{database_file}") as database:
        yield database


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Run as nobody if the tests run as root, because root may write to read-only files."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_file_is_refused_at_the_start(database_file: Path) -> None:
    database_file.chmod(0o444)
    with ordinary_user(), pytest.raises(ConfigurationError, match=rf"{database_file}.*the file is read-only"):
        Database(f"sqlite:///{database_file}")


def test_a_read_only_folder_is_refused_at_the_start(database_file: Path) -> None:
    database_file.parent.chmod(0o555)
    with ordinary_user(), pytest.raises(ConfigurationError, match=rf"folder {database_file.parent} is read-only"):
        Database(f"sqlite:///{database_file}")


def test_an_error_names_a_file_that_became_read_only(database_file: Path, database: Database) -> None:
    database_file.chmod(0o444)
    with ordinary_user(), pytest.raises(StoreUnavailable, match=rf"{database_file}.*file or its folder is read-only"):
        Stores(database).add()


def test_a_locked_database_is_reported(
    database_file: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    other = sqlite3.connect(database_file)
    other.execute("BEGIN IMMEDIATE")
    stores = Stores(database)
    with pytest.raises(StoreUnavailable, match=r"another process holds a lock.*database is locked"):
        stores.add()
    other.rollback()
    other.close()
    assert stores.add().id == "job-1"  # no restart is needed


def test_a_full_disk_is_reported_and_leaves_no_partial_write(database_file: Path, database: Database) -> None:
    with database.write() as session:
        pages = session.scalar(text("PRAGMA page_count"))
        session.execute(text(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(StoreUnavailable, match=r"the disk is full; free some space"):
        _add_many(Stores(database))
    with Database(f"sqlite:///{database_file}") as again, again.read() as session:
        jobs, events = (session.scalar(text(f"SELECT count(*) FROM {table}")) for table in ("jobs", "events"))
    assert jobs == events


def _add_many(stores: Stores) -> None:
    for number in range(100):
        stores.add(f"job-{number}", reason="x" * 10_000)


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("not a database at all, but long enough to be looked at " * 100)
    with pytest.raises(StoreUnavailable, match=r"the file is no SQLite database"):
        schema.check(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_second_service_on_the_same_file_is_refused_with_the_holders_pid(database_file: Path) -> None:
    first, second = sqlite.ServiceLock(database_file), sqlite.ServiceLock(database_file)
    first.acquire()
    with pytest.raises(AlreadyRunning, match=rf"process {os.getpid()}\) uses {database_file}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_lock_ends_with_its_process(database_file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.store.sqlite import ServiceLock\n"
        "ServiceLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, database_file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = sqlite.ServiceLock(database_file)
        with pytest.raises(AlreadyRunning, match=f"process {holder.pid}"):
            lock.acquire()
        holder.kill()
        holder.wait()
    lock.acquire()
    lock.release()


def test_a_write_transaction_has_the_write_lock_from_its_start(database_file: Path, database: Database) -> None:
    """Otherwise a transaction that reads first fails if another one writes before it does, whatever the timeout."""
    other = sqlite3.connect(database_file, timeout=0)
    with database.write() as session:
        session.execute(text("SELECT * FROM alembic_version")).all()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    other.close()


def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    stores = Stores(database)
    stores.add()
    with database.write() as session:
        session.execute(text("UPDATE jobs SET reason = 'not yet'"))
        assert stores.jobs.get("job-1").reason == "waits for a free slot"
    assert stores.jobs.get("job-1").reason == "not yet"


def test_a_missing_server_is_reported_without_the_password() -> None:
    with (
        Database("postgresql://me:secret@127.0.0.1:1/jobs") as database,
        pytest.raises(StoreUnavailable, match=r"me:\*\*\*@127.0.0.1:1/jobs: it does not answer") as caught,
    ):
        Stores(database).jobs.get("job-1")
    assert "secret" not in str(caught.value)


def test_a_stopped_server_is_reported() -> None:
    try:
        find_binaries()
    except NoPostgres as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    with postgres_server() as url:
        folder = Path(url.partition("host=")[2])
        upgrade(url)
        database = Database(url)
        stores = Stores(database)
        stores.add()
        server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    with pytest.raises(StoreUnavailable, match="it does not answer"):
        stores.jobs.get("job-1")
    database.dispose()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
