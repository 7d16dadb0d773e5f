"""The database: one object that opens connections, gives transactions, and speaks of trouble in our words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic_core import from_json
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.errors import ConfigurationError, StoreUnavailable
from orchestrator.domain.job.event import Event
from orchestrator.store import sqlite
from orchestrator.store.failures import translated

_CONNECTIONS = 24  # at most; kept once they were needed, for a new one costs more than most transactions
_WAIT_S = 10.0  # for a connection, or for one's turn to write
_POSTGRES = frozenset({"postgres", "postgresql", "postgresql+psycopg"})
# A server that vanished without a word must not hold a thread for the kernel's two hours.
_POSTGRES_ARGUMENTS = {
    "connect_timeout": "5",
    "application_name": "orchestrator",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    # A process that is stopped in the middle of a transaction must not keep its locks: the server ends the session.
    "options": "-c idle_in_transaction_session_timeout=5000",
}
_SUBSCRIPTIONS = "subscriptions"  # in a session's info: whoever writes events there writes what is owed of them
_NEWS = "news"  # in a session's info: what listeners hear of once it is committed

News = Sequence[tuple[str, Event]]  # of jobs, by their ids


def subscriptions_of(session: Session) -> Sequence[Webhook]:
    """The webhooks that are owed the events of this transaction."""
    found: Sequence[Webhook] = session.info.get(_SUBSCRIPTIONS, ())
    return found


def add_news(session: Session, news: News) -> None:
    """What the listeners are to hear of, should this transaction be committed."""
    session.info.setdefault(_NEWS, []).extend(news)


def parse_url(text: str) -> URL:
    """The URL with the driver that we use. Raises ConfigurationError for any other database."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "ORCHESTRATOR_DATABASE_URL is not a URL as sqlite:////path or postgresql://..."
        ) from error
    if url.drivername in _POSTGRES:
        return _move_password(url.set(drivername="postgresql+psycopg"))
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:":
            raise ConfigurationError(
                "ORCHESTRATOR_DATABASE_URL names no file: an SQLite database in memory is not served"
            )
        return url.set(drivername="sqlite+pysqlite")
    raise ConfigurationError(f"ORCHESTRATOR_DATABASE_URL: {url.drivername} is not served, only sqlite and postgresql")


def _move_password(url: URL) -> URL:
    """Move a password out of the query, where libpq also accepts it, but where rendering the URL would not hide it."""
    password = url.query.get("password")
    if not isinstance(password, str):
        return url
    return url.difference_update_query(["password"]).set(password=url.password or password)


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database, None for PostgreSQL."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:"))


class Database:
    """Connections to one database. Thread-safe; nothing connects before the first transaction.

    Every transaction raises StoreUnavailable when the database cannot be used.
    """

    def __init__(self, url: str, *, migrating: bool = False, subscriptions: Sequence[Webhook] = ()) -> None:
        """Raises ConfigurationError for a database that cannot be served from here.

        `subscriptions` are the webhooks that are owed the events which are written here.
        `migrating` is for the schema alone: SQLite rebuilds tables, during which foreign keys must not cascade.
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
            )  # one view of all tables
            self._writing: Engine = self.engine
        else:
            self._reading = self.engine
            self._writing = self.engine.execution_options(**{sqlite.BEGIN: "BEGIN IMMEDIATE"})
        # SQLite has one writer at a time and lets the others poll, with pauses of up to 100 ms (sqlite3_busy_timeout).
        # Those of this process take turns here; the time-out there is for foreign ones.
        self._turn = threading.Lock()
        self._info = {_SUBSCRIPTIONS: tuple(subscriptions)}
        self._listeners: list[Callable[[News], None]] = []

    def subscribe(self, subscriptions: Sequence[Webhook]) -> None:
        """From the next transaction on these webhooks are owed what is written here."""
        self._info = {_SUBSCRIPTIONS: tuple(subscriptions)}

    def listen(self, listener: Callable[[News], None]) -> None:
        """Have `listener` hear of the events that are written here, once they are committed; it neither blocks nor
        raises. Before the first transaction."""
        self._listeners.append(listener)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that sees one state of the database."""
        with translated(self.name), Session(self._reading) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that is committed at the end of the block, or rolled back by an exception."""
        with self._turn_to_write(), translated(self.name), self._session() as session, session.begin():
            yield session
        news: News = session.info.get(_NEWS, ())
        for listener in self._listeners if news else ():
            listener(news)

    @contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        if self.file is None:
            yield
            return
        if not self._turn.acquire(timeout=_WAIT_S):
            raise StoreUnavailable(f"database {self.name}: no turn to write within {_WAIT_S:.0f} s; its disk is slow")
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
            json_serializer=_render_json,
            json_deserializer=_parse_json,
            connect_args={"timeout": 5},
        )
        sqlite.listen(engine, foreign_keys=not migrating)
        return engine
    try:
        engine = create_engine(
            url,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=_WAIT_S,
            pool_pre_ping=True,
            json_serializer=_render_json,
            json_deserializer=_parse_json,
            connect_args={name: value for name, value in _POSTGRES_ARGUMENTS.items() if name not in url.query},
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgreSQL needs a driver: pip install 'elastic-orchestrator[service,postgres]'"
        ) from error
    event.listen(engine, "do_executemany", _execute_one_by_one)
    engine.dialect.supports_sane_multi_rowcount = False
    return engine


def _execute_one_by_one(
    cursor: DBAPICursor, statement: str, rows: Sequence[Sequence[object]], context: object
) -> Literal[True]:
    """psycopg sends many rows as a pipeline, which ends with a Flush: it turns the server's time-out for an idle
    transaction off (seen on PostgreSQL 15). A service that is stopped there would keep its locks, and the lease."""
    for row in rows:
        cursor.execute(statement, row)
    return True


def _parse_json(text: str | bytes) -> object:
    """Of thousands of small documents a page is made; this parser takes a sixth of the time that json's does."""
    try:
        return from_json(text)
    except ValueError:  # half of a surrogate pair, which it takes for an error
        return json.loads(text)


def _render_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
