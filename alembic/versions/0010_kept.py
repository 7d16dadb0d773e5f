"""what an attempt keeps of its training earns its charge back

Revision ID: 0010
Revises: 0009
Create Date: 2026-11-25 15:30:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # Empty at first: an attempt that runs through the upgrade earns by its next snapshot.
    op.add_column("jobs", sa.Column("kept_step", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("kept_s", sa.Double(), nullable=False, server_default="0"))
    op.add_column("trainings", sa.Column("began_step", sa.BigInteger(), nullable=True))
    op.add_column("trainings", sa.Column("kept_step", sa.BigInteger(), nullable=True))
    op.add_column("trainings", sa.Column("kept_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for name in ("kept_at", "kept_step", "began_step"):
        op.drop_column("trainings", name)
    for name in ("kept_s", "kept_step"):
        op.drop_column("jobs", name)
