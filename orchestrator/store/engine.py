"""Connections to the database, transactions, and the translation of driver errors to StoreUnavailable."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.errors import ConfigurationError, StoreUnavailable
from orchestrator.domain.job.event import Event
from orchestrator.fast_json import parse_json
from orchestrator.store import sqlite
from orchestrator.store.failures import translated
from orchestrator.store.sanitize import render_json
from orchestrator.store.shared_specs import SharedSpecs

_CONNECTIONS = 24  # kept open, because opening one costs more than most transactions; SQLite may open as many more
_STATEMENTS = 32  # that a connection to SQLite keeps prepared; with 128, the default, they take 10 MB more in all
_WAIT_S = 10.0  # for a connection, or for the turn to write
_POSTGRES = frozenset({"postgres", "postgresql", "postgresql+psycopg"})
# Without keepalives, a vanished server blocks a thread for the kernel's two hours.
_POSTGRES_ARGUMENTS = {
    "connect_timeout": "5",
    "application_name": "orchestrator",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# The server ends the session of a process that is stopped within a transaction, which releases its locks. Within its
# transactions, a migration also computes.
_MOST_IDLE_MS, _MOST_IDLE_MIGRATING_MS = 5_000, 120_000
# Keys of Session.info.
_SUBSCRIPTIONS = "subscriptions"  # the webhooks that get the events of the transaction
_NEWS = "news"  # the events that listeners get after the commit

News = Sequence[tuple[str, Event]]  # job ids and events


def subscriptions_of(session: Session) -> Sequence[Webhook]:
    """Return the webhooks that get the events of this transaction."""
    found: Sequence[Webhook] = session.info.get(_SUBSCRIPTIONS, ())
    return found


def add_news(session: Session, news: News) -> None:
    """Give events to the listeners once this transaction is committed."""
    session.info.setdefault(_NEWS, []).extend(news)


def parse_url(text: str) -> URL:
    """Return the URL with the driver that the service uses. Raises ConfigurationError for other databases."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "ORCHESTRATOR_DATABASE_URL is not a URL like sqlite:////path or postgresql://..."
        ) from error
    if url.drivername in _POSTGRES:
        return _move_password(url.set(drivername="postgresql+psycopg"))
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:":
            raise ConfigurationError("ORCHESTRATOR_DATABASE_URL names no file: SQLite in memory is not supported")
        return url.set(drivername="sqlite+pysqlite")
    raise ConfigurationError(f"ORCHESTRATOR_DATABASE_URL: {url.drivername} is not supported; use sqlite or postgresql")


def _move_password(url: URL) -> URL:
    """Move a password out of the query. libpq accepts it there, but rendering the URL would not hide it."""
    password = url.query.get("password")
    if not isinstance(password, str):
        return url
    return url.difference_update_query(["password"]).set(password=url.password or password)


def sqlite_file(url: URL) -> Path | None:
    """Return the file of an SQLite database. None for PostgreSQL."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:"))


class Database:
    """One database. Thread-safe. It connects at the first transaction. Leaving its `with` block disposes it.

    Every transaction raises StoreUnavailable if the database cannot be used.
    """

    def __init__(self, url: str, *, migrating: bool = False, subscriptions: Sequence[Webhook] = ()) -> None:
        """Raises ConfigurationError for a database that this machine cannot use.

        `subscriptions` are the webhooks that get the events written here. `migrating` turns SQLite's foreign keys off,
        because a migration rebuilds tables and must not cascade. On PostgreSQL its transactions may idle for longer.
        """
        self.url = parse_url(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.file = sqlite_file(self.url)
        if self.file is not None:
            sqlite.check_file(self.file)
        self.engine = _build_engine(self.url, migrating=migrating)
        if self.file is None:
            self._reading: Engine = self.engine.execution_options(
                isolation_level="REPEATABLE READ"
            )  # one snapshot of all tables
            self._asking: Engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            self._writing: Engine = self.engine
        else:
            self._reading = self._asking = self.engine
            self._writing = self.engine.execution_options(**{sqlite.BEGIN: "BEGIN IMMEDIATE"})
        # SQLite has one writer at a time; others poll with pauses of up to 100 ms (sqlite3_busy_timeout). The writers
        # of this process take turns by this lock instead. The timeout is for writers of other processes.
        self._turn = threading.Lock()
        self._info = {_SUBSCRIPTIONS: tuple(subscriptions)}
        self._listeners: list[Callable[[News], None]] = []
        self.specs = SharedSpecs()
        self.write_failure: str | None = None  # why the last write failed; None if it succeeded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def subscribe(self, subscriptions: Sequence[Webhook]) -> None:
        """Replace the webhooks that get events, from the next transaction on."""
        self._info = {_SUBSCRIPTIONS: tuple(subscriptions)}

    def listen(self, listener: Callable[[News], None]) -> None:
        """Call `listener` with the events of each committed transaction. It must not block or raise.

        Call this before the first transaction.
        """
        self._listeners.append(listener)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Begin a transaction that sees one state of the database."""
        with translated(self.name), Session(self._reading) as session:
            yield session

    @contextmanager
    def ask(self) -> Iterator[Connection]:
        """Connect without a transaction, which saves PostgreSQL a round trip. Each statement sees the newest state."""
        with translated(self.name), self._asking.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Begin a transaction. The end of the block commits it; an exception rolls it back."""
        try:
            with self._turn_to_write(), translated(self.name), self._session() as session, session.begin():
                yield session
        except StoreUnavailable as error:
            self.write_failure = str(error)
            raise
        self.write_failure = None
        news: News = session.info.get(_NEWS, ())
        for listener in self._listeners if news else ():
            listener(news)

    @contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        if self.file is None:
            yield
            return
        if not self._turn.acquire(timeout=_WAIT_S):
            raise StoreUnavailable(
                f"database {self.name}: other writes took more than {_WAIT_S:.0f} s; its disk is slow"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _session(self) -> Session:
        return Session(self._writing, info=self._info)

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _build_engine(url: URL, *, migrating: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        sqlite.create_private(url.database)
        engine = create_engine(
            url,
            pool_size=_CONNECTIONS,
            max_overflow=_CONNECTIONS,
            pool_timeout=_WAIT_S,
            json_serializer=render_json,
            json_deserializer=parse_json,
            connect_args={"timeout": 5, "cached_statements": _STATEMENTS},
        )
        sqlite.listen(engine, foreign_keys=not migrating)
        return engine
    most_idle_ms = _MOST_IDLE_MIGRATING_MS if migrating else _MOST_IDLE_MS
    arguments = {**_POSTGRES_ARGUMENTS, "options": f"-c idle_in_transaction_session_timeout={most_idle_ms}"}
    try:
        engine = create_engine(
            url,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=_WAIT_S,
            pool_pre_ping=True,
            json_serializer=render_json,
            json_deserializer=parse_json,
            connect_args={name: value for name, value in arguments.items() if name not in url.query},
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError("PostgreSQL needs a driver: pip install 'elastic-orchestrator[postgres]'") from error
    event.listen(engine, "do_executemany", _execute_one_by_one)
    engine.dialect.supports_sane_multi_rowcount = False
    engine.dialect.do_ping = partial(_ping_if_readable, engine.dialect.do_ping)  # type: ignore[method-assign]
    return engine


def _ping_if_readable(ping: Callable[[DBAPIConnection], bool], connection: Any) -> bool:
    """Return whether an idle connection can be used, without a round trip to the server for each transaction.

    A server that ends a connection sends a message or closes the socket. Then there is something to read.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0) or ping(connection)


def _execute_one_by_one(
    cursor: DBAPICursor, statement: str, rows: Sequence[Sequence[object]], context: object
) -> Literal[True]:
    """Send rows one by one instead of in psycopg's pipeline.

    The pipeline ends with a Flush, which disables PostgreSQL 15's timeout for idle transactions. A service that is
    stopped then would keep its locks, and with them the lease.
    """
    for row in rows:
        cursor.execute(statement, row)
    return True
