"""Fill a store with a long history, inside the database: it copies the rows of a few jobs, as often as wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Column, Connection, Table, insert, inspect, select, text

from benchmarks.control_plane.load import fresh_database
from benchmarks.control_plane.stored import add_templates, settle
from orchestrator.store.engine import Database
from orchestrator.store.many_rows import table_of
from orchestrator.store.tables import Base, TrainingRow
from orchestrator.store.types import UtcDateTime

DAYS = 400  # from the oldest job to the newest. By default, metrics of the oldest 35 days are due for removal
LONG_JOB = "copy-long"  # has a tenth of the rows of metrics, at most a million
_LONG_ROWS = 1_000_000
_LIVE = 1_000  # running jobs, or a quarter of the stored jobs if that is fewer
_STEP_S = 10  # between two rows of metrics
_LASTED_S = 3600  # each job
_PART = 10_000  # jobs whose rows are inserted in one transaction
_ENDS = frozenset({"finished_at", "ended_at", "updated_at"})
# A bijection on 32 bits, because the multiplier is odd: ids are unique and in random order.
_SCATTERED = "(copies.number * 2654435761) % 4294967296"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """What the two databases write differently."""

    hasty: str  # makes this connection fast
    numbers: str  # selects `number` from 1 to {}
    hexadecimal: str  # 8 digits of {}
    moment: str  # {} seconds since 1970


_SQLITE = _Dialect(
    hasty="PRAGMA cache_size = -500000",
    numbers="WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n WHERE number < {}) "
    "SELECT number FROM n",
    hexadecimal="printf('%08x', {})",
    moment="strftime('%Y-%m-%d %H:%M:%S.000000', {}, 'unixepoch')",
)
_POSTGRES = _Dialect(
    hasty="SET session_replication_role = replica",  # checks of foreign keys take longer than the rows
    numbers="SELECT number FROM generate_series(1, {}::bigint) AS n(number)",
    hexadecimal="lpad(to_hex({}), 8, '0')",
    moment="to_timestamp({})",
)


def fill(url: str, jobs: int, metric_rows: int) -> None:
    """Store `jobs` jobs that began in the last DAYS, and `metric_rows` rows of metrics, in tables of any version."""
    long_rows = min(_LONG_ROWS, metric_rows // 10)
    with Database(url, migrating=True) as database, database.engine.connect() as connection:
        _default_dropped_columns(connection)
        columns = _list_columns(connection)
        ended, live = _add_templates(connection, columns)
        dialect = _POSTGRES if database.file is None else _SQLITE
        _run(connection, dialect.hasty)
        parts = _list_copies(connection, dialect, jobs - len(ended) - len(live), (ended, live))
        for table, known in columns.items():
            if table.name != "metrics":
                for part in parts:
                    _copy_rows(connection, dialect, table, known, part)
        for part in parts[:-1]:
            _add_metrics(connection, dialect, part, (metric_rows - long_rows) // jobs)
        _add_metrics(connection, dialect, parts[-1], long_rows)
        _run(connection, "DROP TABLE copies")
        settle(database)


def _default_dropped_columns(connection: Connection) -> None:
    """Recreate, with a default, the columns of `trainings` that the newest version has dropped.

    All of them are JSON. SQLite cannot add a default to a column.
    """
    table = table_of(TrainingRow)
    stored = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for name in stored - {column.name for column in table.columns}:
        _run(connection, f"ALTER TABLE {table.name} DROP COLUMN {name}")
        _run(connection, f"ALTER TABLE {table.name} ADD COLUMN {name} JSON DEFAULT '{{}}' NOT NULL")


def _list_columns(connection: Connection) -> dict[Table, list[Column[object]]]:
    """Return each table with rows of jobs, and the columns that it has in this version and that we fill."""
    found = {}
    for table in Base.metadata.sorted_tables:
        if table.name == "jobs" or ("job_id" in table.columns and table.name != "reservations"):
            names = {column["name"] for column in inspect(connection).get_columns(table.name)}
            found[table] = [
                column for column in table.columns if column.name in names and column.autoincrement is not True
            ]
    return found


def _add_templates(
    connection: Connection, columns: dict[Table, list[Column[object]]]
) -> tuple[Sequence[str], Sequence[str]]:
    """Copy the templates from a new database of the current version, the only one that the code can write to."""
    with TemporaryDirectory() as folder, fresh_database(None, Path(folder)) as url, Database(url) as present:
        ids = add_templates(present)
        with present.engine.connect() as source:
            for table, known in columns.items():
                rows = source.execute(select(*known)).mappings().all()
                if rows:
                    connection.execute(insert(table), [dict(row) for row in rows])
        connection.commit()
    return ids


def _run(connection: Connection, statement: str) -> None:
    connection.execute(text(statement))
    connection.commit()


def _list_copies(
    connection: Connection, dialect: _Dialect, count: int, templates: tuple[Sequence[str], ...]
) -> Sequence[int]:
    """Make a table of the copies: the template of each, when it began, and in which part it is stored.

    The newest ones are live. Parts are ranges of ids, so that rows are inserted in the order of their keys. The last
    part has only the long job.
    """
    parts = 1 + count // _PART
    last_s = int((datetime.now(UTC) - timedelta(seconds=2 * _LASTED_S)).timestamp())
    span_s = int(timedelta(days=DAYS).total_seconds())
    ended, live = (_choose(ids) for ids in templates)
    scattered = f"'copy-' || {dialect.hexadecimal.format(_SCATTERED)}"
    _run(
        connection, "CREATE TABLE copies (part bigint, id text, template text, began_s bigint, PRIMARY KEY (part, id))"
    )
    _run(
        connection,
        f"INSERT INTO copies SELECT CASE number WHEN {count // 2} THEN {parts} "
        f"ELSE ({_SCATTERED}) / {-(-(2**32) // parts)} END, CASE number WHEN {count // 2} THEN '{LONG_JOB}' "
        f"ELSE {scattered} END, CASE WHEN number > {count - min(_LIVE, count // 4)} THEN {live} ELSE {ended} END, "
        f"{last_s - span_s} + number * {span_s} / {count} FROM ({dialect.numbers.format(count)}) AS copies",
    )
    return range(parts + 1)


def _choose(ids: Sequence[str]) -> str:
    cases = " ".join(f"WHEN {place} THEN '{one}'" for place, one in enumerate(ids))
    return f"CASE number % {len(ids)} {cases} END"


def _copy_rows(
    connection: Connection, dialect: _Dialect, table: Table, columns: Sequence[Column[object]], part: int
) -> None:
    key = "id" if table.name == "jobs" else "job_id"
    others = [column for column in columns if column.name != key]
    names = ", ".join(column.name for column in (table.columns[key], *others))
    values = ", ".join(["copies.id", *(_value_of(column, dialect) for column in others)])
    _run(
        connection,
        f"INSERT INTO {table.name} ({names}) SELECT {values} FROM copies JOIN {table.name} AS original "
        f"ON original.{key} = copies.template WHERE part = {part} ORDER BY copies.id",
    )


def _value_of(column: Column[object], dialect: _Dialect) -> str:
    if not isinstance(column.type, UtcDateTime):
        return f"original.{column.name}"
    moment = dialect.moment.format(f"began_s + {_LASTED_S if column.name in _ENDS else 0}")
    return f"CASE WHEN original.{column.name} IS NOT NULL THEN {moment} END"


def _add_metrics(connection: Connection, dialect: _Dialect, part: int, rows: int) -> None:
    """Add `rows` rows of metrics to each copy of a part, with the values of a row of a template."""
    moment = dialect.moment.format(f"began_s + number * {_STEP_S}")
    _run(
        connection,
        f"INSERT INTO metrics (job_id, step, attempt, generation, at, measured) "
        f"SELECT id, number, 1, 1, {moment}, measured FROM copies "
        f"CROSS JOIN ({dialect.numbers.format(rows)}) AS steps "
        f"CROSS JOIN (SELECT measured FROM metrics WHERE job_id = 'template-00' AND step = 1) AS original "
        f"WHERE part = {part} ORDER BY id, number",
    )
