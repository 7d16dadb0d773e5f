"""routes

Revision ID: 0004
Revises: 0003
Create Date: 2026-11-22 12:20:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_by", sa.Text(), nullable=False),
        sa.Column("snapshot_dir", sa.Text(), nullable=True),
        sa.Column("files_due", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_deletions")),
    )
    with op.batch_alter_table("deletions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_deletions_cluster_files_due"), ["cluster", "files_due"], unique=False)
    op.create_table(
        "webhooks",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("all_jobs", sa.Boolean(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_webhooks")),
    )
    # Plain columns: rebuilding these tables, as SQLite's batches do, would cost time and gain nothing.
    op.add_column("jobs", sa.Column("desired_stacks", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("desired_chaos", sa.JSON(), nullable=True))
    op.add_column("attempts", sa.Column("errand_told", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("attempts", "errand_told")
    op.drop_column("jobs", "desired_chaos")
    op.drop_column("jobs", "desired_stacks")
    op.drop_table("webhooks")
    op.drop_table("deletions")  # its index goes with it
