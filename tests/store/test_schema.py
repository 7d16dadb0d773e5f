from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from alembic import command
from deploy.dev.databases import scratch_database
from orchestrator.domain.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from orchestrator.store import schema, sqlite
from orchestrator.store.engine import Database
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.upgrade import build_config, upgrade


def _execute(url: str, statement: str) -> None:
    with Database(url) as database, database.write() as session:
        session.execute(text(statement))


def test_an_upgrade_creates_the_tables_and_is_idempotent(empty_url: str) -> None:
    assert schema.is_empty(empty_url)
    upgrade(empty_url)
    upgrade(empty_url)
    schema.check(empty_url)
    assert not schema.is_empty(empty_url)


@pytest.fixture
def own_url(empty_url: str) -> str:
    """A separate database with the newest tables, which the test may change."""
    upgrade(empty_url)
    return empty_url


def test_the_migrations_create_exactly_the_tables_of_the_code(url: str) -> None:
    config = build_config()
    config.stdout = io.StringIO()
    with Database(url, migrating=True) as database, database.write() as session:
        config.attributes["connection"] = session.connection()
        command.check(config)  # raises if autogenerate would change anything


def test_new_tables_are_those_that_all_migrations_create(tmp_path: Path) -> None:
    made, upgraded = (f"sqlite:///{tmp_path / name}" for name in ("made.db", "upgraded.db"))
    schema.create(made)
    upgrade(upgraded)
    schema.check(made)
    assert _statements(made) == _statements(upgraded)


def _statements(url: str) -> set[str]:
    """The words of each statement, because constraints of a table may come in any order."""
    with Database(url) as database, database.read() as session:
        rows = session.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
        return {" ".join(sorted(re.findall(r"[^\s,()]+", statement))) for (statement,) in rows}


def test_the_versions_are_those_of_alembic(monkeypatch: pytest.MonkeyPatch, next_version: Path) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", next_version)
    scripts = ScriptDirectory.from_config(build_config())
    assert schema.list_versions() == sorted(script.revision for script in scripts.walk_revisions())
    assert schema.list_versions()[-1] == scripts.get_current_head()


def test_two_services_may_upgrade_concurrently(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 120)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for done in [one.submit(upgrade, empty_url), other.submit(upgrade, empty_url)]:
            done.result()
    schema.check(empty_url)


def test_a_database_without_tables_is_refused_with_advice(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="run `orchestrator db upgrade`"):
        schema.check(empty_url)


def test_checking_a_missing_file_does_not_create_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'absent.db'}"
    assert schema.is_empty(url)
    with pytest.raises(SchemaMismatch, match="does not exist"):
        schema.check(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("work", [schema.check, upgrade])
def test_a_newer_database_is_refused_with_advice(own_url: str, work: object) -> None:
    _execute(own_url, "UPDATE alembic_version SET version_num = '9999'")
    assert callable(work)
    with pytest.raises(SchemaMismatch, match=r"9999, newer than this service.*upgrade the service"):
        work(own_url)


@pytest.mark.parametrize("version", ["0001", "0006", "0010"])
@pytest.mark.parametrize("work", [schema.check, upgrade])
def test_a_database_from_before_the_first_release_is_unchanged(own_url: str, work: object, version: str) -> None:
    _execute(own_url, f"UPDATE alembic_version SET version_num = '{version}'")
    assert callable(work)
    with pytest.raises(SchemaMismatch, match=rf"{version}, from before the first release.*move it away"):
        work(own_url)
    with pytest.raises(SchemaMismatch, match=version):
        schema.check(own_url)


def test_an_older_database_is_refused_with_advice(
    url: str, monkeypatch: pytest.MonkeyPatch, next_version: Path
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", next_version)
    with pytest.raises(SchemaMismatch, match=r"\d{4}, older than this service.*run `orchestrator db upgrade`"):
        schema.check(url)


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """The migrations with one more."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    names = [
        "env.py",
        "script.py.mako",
        *(f"versions/{path.name}" for path in schema.MIGRATIONS.glob("versions/0*.py")),
    ]
    for name in names:
        (folder / name).write_bytes((schema.MIGRATIONS / name).read_bytes())
    newest = max(path.name[:4] for path in schema.MIGRATIONS.glob("versions/0*.py"))
    following = f"{int(newest) + 1:04}"
    (folder / "versions" / f"{following}.py").write_text(f"revision = '{following}'\ndown_revision = '{newest}'\n")
    return folder


@pytest.fixture
def first_url(postgres: str) -> Iterator[str]:
    """A PostgreSQL database with the tables of the first migration."""
    with scratch_database(postgres) as url:
        upgrade(url, version=schema.list_versions()[0])
        yield url


def test_an_upgrade_that_waits_for_a_transaction_does_not_block_writers(first_url: str) -> None:
    with Database(first_url) as database, ThreadPoolExecutor(1) as pool:
        with database.write() as busy:
            busy.execute(text("LOCK TABLE jobs IN ROW EXCLUSIVE MODE"))  # as a transaction that has written to it
            upgraded = pool.submit(upgrade, first_url)
            while not _is_index_waiting(database):
                assert not upgraded.done()
            with database.write() as other:
                other.execute(text("LOCK TABLE jobs IN ROW EXCLUSIVE MODE NOWAIT"))  # refused if a writer would wait
            busy.execute(text("SELECT 1"))
        upgraded.result()
    schema.check(first_url)


def _is_index_waiting(database: Database) -> bool:
    waiting = "query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock' AND datname = current_database()"
    with database.read() as session:
        return bool(session.scalar(text(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")))


def test_an_upgrade_replaces_the_index_that_an_interrupted_one_left(first_url: str) -> None:
    _execute(first_url, "CREATE INDEX ix_jobs_finished_at_id ON jobs (name)")
    upgrade(first_url)
    with Database(first_url) as database:
        (index,) = (
            each for each in inspect(database.engine).get_indexes("jobs") if each["name"] == "ix_jobs_finished_at_id"
        )
    assert index["column_names"] == ["finished_at", "id"]


def test_a_migration_may_compute_within_a_transaction_for_a_minute(first_url: str) -> None:
    """Alembic loads the migrations in one. On a busy machine this takes longer than a service's transactions may."""
    with Database(first_url, migrating=True) as database, database.read() as session:
        idle_ms = session.scalar(text("SELECT setting FROM pg_settings WHERE name LIKE 'idle_in_transaction_%'"))
    assert int(idle_ms or 0) >= 60_000


def test_a_query_without_tables_fails_with_advice(empty_url: str) -> None:
    advice = "tables are missing; run `orchestrator db upgrade`"
    with Database(empty_url) as database, pytest.raises(StoreUnavailable, match=advice):
        SqlJobStore(database).get("job-1")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/db", "use sqlite or postgresql"),
        ("nonsense", "is not a URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////nowhere/at/all.db", "folder /nowhere/at does not exist"),
    ],
)
def test_an_unsupported_database_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Database(url)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_scheme_of_postgresql_uses_psycopg_3_and_hides_the_password(scheme: str) -> None:
    with Database(f"{scheme}://me:secret@db/jobs") as database:
        assert database.url.drivername == "postgresql+psycopg"
        assert database.name == "postgresql+psycopg://me:***@db/jobs"
