"""an idempotency key is of its caller

Revision ID: 0008
Revises: 0007
Create Date: 2026-11-23 22:00:00.000000
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | None = None
depends_on: str | None = None

_OF_PROJECT = ("project", "idempotency_key")
_OF_CALLER = ("project", "owner", "idempotency_key")


def upgrade() -> None:
    # Stored before there were callers, by the machine's user: his key goes on to give the same job.
    op.execute("UPDATE jobs SET owner = 'local' WHERE owner IS NULL")
    _change_constraint(_OF_PROJECT, _OF_CALLER)


def downgrade() -> None:
    # One job of a project can have the key: the first. The jobs stay.
    op.execute(
        "UPDATE jobs SET idempotency_key = NULL WHERE EXISTS (SELECT 1 FROM jobs AS earlier"
        " WHERE earlier.project = jobs.project AND earlier.idempotency_key = jobs.idempotency_key"
        " AND (earlier.created_at, earlier.id) < (jobs.created_at, jobs.id))"
    )
    _change_constraint(_OF_CALLER, _OF_PROJECT)


def _change_constraint(old: Sequence[str], new: Sequence[str]) -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f(f"uq_jobs_{'_'.join(old)}"), type_="unique")
        batch_op.create_unique_constraint(batch_op.f(f"uq_jobs_{'_'.join(new)}"), list(new))
