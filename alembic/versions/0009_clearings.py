"""when the record of a node was cleared

Revision ID: 0009
Revises: 0008
Create Date: 2026-11-25 15:00:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from orchestrator.store.types import CleanText, UtcDateTime

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "node_clearings",
        sa.Column("cluster", CleanText(), nullable=False),
        sa.Column("node", CleanText(), nullable=False),
        sa.Column("cleared_at", UtcDateTime(), nullable=False),
        sa.Column("cleared_by", CleanText(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node", name=op.f("pk_node_clearings")),
    )


def downgrade() -> None:
    op.drop_table("node_clearings")
