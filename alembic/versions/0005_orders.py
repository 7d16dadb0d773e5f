"""orders of the list, and what snapshots and workers tell

Revision ID: 0005
Revises: 0004
Create Date: 2026-11-22 15:30:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

_ORDERS = {
    "ix_jobs_updated_at_id": ["updated_at", "id"],
    "ix_jobs_name_created_at_id": ["name", "created_at", "id"],
    "ix_jobs_cluster_created_at_id": ["cluster", "created_at", "id"],
    "ix_jobs_priority_created_at_id": ["priority", "created_at", "id"],
}
_PRIORITY = {
    "sqlite": "json_extract(spec, '$.priority')",
    "postgresql": "CAST(spec ->> 'priority' AS BIGINT)",
}


def upgrade() -> None:
    # Plain columns: rebuilding these tables, as SQLite's batches do, would cost time and gain nothing.
    op.add_column("jobs", sa.Column("priority", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(f"UPDATE jobs SET priority = coalesce({_PRIORITY[op.get_context().dialect.name]}, 0)")
    for name, columns in _ORDERS.items():
        op.create_index(name, "jobs", columns, unique=False)
    op.add_column("snapshots", sa.Column("world_size", sa.BigInteger(), nullable=True))
    op.add_column("snapshots", sa.Column("verified_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("workers", sa.Column("utilisation", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "utilisation")
    op.drop_column("snapshots", "verified_at")
    op.drop_column("snapshots", "world_size")
    for name in _ORDERS:
        op.drop_index(name, "jobs")
    op.drop_column("jobs", "priority")
