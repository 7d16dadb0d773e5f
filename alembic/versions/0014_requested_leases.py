"""let a service request a lease

Revision ID: 0014
Revises: 0013
Create Date: 2026-11-28 05:40:00
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("requester", sa.Text(), nullable=True))
    op.add_column("leases", sa.Column("request_expires_at", sa.DateTime(timezone=True), nullable=True))
