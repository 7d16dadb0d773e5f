"""One statement for many rows writes what a statement for each row would write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Boolean, delete, insert, select

from orchestrator.store.engine import Database
from orchestrator.store.many_rows import Values, insert_rows
from orchestrator.store.tables import JobRow
from orchestrator.store.types import CleanJson, CleanText, UtcDateTime

_TEXTS = st.text(max_size=20) | st.text(st.characters(codec=None), max_size=20)  # also NUL and lone surrogates
_INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)
_DOCUMENTS = st.dictionaries(
    _TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
        lambda below: st.lists(below, max_size=3) | st.dictionaries(_TEXTS, below, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)
_TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def _values(column: Any) -> st.SearchStrategy[object]:
    kinds: dict[type, st.SearchStrategy[object]] = {
        CleanText: _TEXTS,
        CleanJson: _DOCUMENTS,
        UtcDateTime: _TIMES,
        Boolean: st.booleans(),
    }
    known = kinds.get(type(column.type), _INTEGERS if column.type.python_type is int else st.floats())
    return st.none() | known if column.nullable else known


_JOBS = st.fixed_dictionaries(
    {column.name: _values(column) for column in JobRow.__table__.columns if column.name not in ("id", "kept_s")}
    # SQLite stores NaN as NULL, which this column refuses.
    | {"kept_s": st.floats(allow_nan=False)}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=st.lists(_JOBS, min_size=1, max_size=4))
def test_many_rows_are_written_as_each_alone(database: Database, jobs: list[Values]) -> None:
    many: list[Values] = [{**job, "id": f"many-{place}", "idempotency_key": None} for place, job in enumerate(jobs)]
    with database.write() as session:
        session.execute(delete(JobRow))
        insert_rows(session, JobRow, many)
        for row in many:
            session.connection().execute(insert(JobRow), {**row, "id": f"alone-{row['id']}"})
        found = {row.id: row._asdict() | {"id": ""} for row in session.execute(select(*JobRow.__table__.columns))}
    for row in many:
        assert repr(found[str(row["id"])]) == repr(found[f"alone-{row['id']}"])
