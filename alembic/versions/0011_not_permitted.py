"""why a cluster does not permit the submission of an attempt

Revision ID: 0011
Revises: 0010
Create Date: 2026-11-25 15:00:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("not_permitted", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("not_permitted")
