"""drop trainings.pace, which is computed from pace_book when it is read

Revision ID: 0015
Revises: 0014
Create Date: 2026-11-30 21:30:00
"""

from __future__ import annotations

from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.drop_column("trainings", "pace")
