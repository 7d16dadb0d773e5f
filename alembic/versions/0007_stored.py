"""what an attempt's journals have left in the database

Revision ID: 0007
Revises: 0006
Create Date: 2026-11-23 21:00:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # Empty at first: what live attempts have left before this is not counted.
    op.add_column("trainings", sa.Column("stored", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("trainings", "stored")
