"""when an attempt's agents were last heard

Revision ID: 0006
Revises: 0005
Create Date: 2026-11-22 21:00:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # Empty at first: agents report every two seconds, and who is not heard is only waited for.
    op.add_column("trainings", sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("trainings", "heard_at")
