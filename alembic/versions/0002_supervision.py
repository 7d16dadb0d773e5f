"""supervision

Revision ID: 0002
Revises: 0001
Create Date: 2026-11-21 01:44:03.530574
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

_DELIVERY_INDEXES = {
    "ix_deliveries_due": ["webhook", "due_at"],
    "ix_deliveries_order": ["job_id", "webhook", "event_id"],
}


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_leases")),
    )
    op.create_table(
        "node_failures",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node", "job_id", "attempt", name=op.f("pk_node_failures")),
    )
    with op.batch_alter_table("node_failures", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_node_failures_cluster_at"), ["cluster", "at"], unique=False)

    op.create_table(
        "deliveries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("event_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("webhook", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["event_id"], ["events.id"], name=op.f("fk_deliveries_event_id_events"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("event_id", "webhook", name=op.f("uq_deliveries_event_id_webhook")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        for name, columns in _DELIVERY_INDEXES.items():
            batch_op.create_index(
                name,
                columns,
                unique=False,
                sqlite_where=sa.text("due_at IS NOT NULL"),
                postgresql_where=sa.text("due_at IS NOT NULL"),
            )

    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("asked", sa.Text(), nullable=False, server_default="1"))
        batch_op.add_column(sa.Column("workers_per_node", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("excluded_nodes", sa.JSON(), nullable=False, server_default="[]"))
        batch_op.add_column(sa.Column("marked_nodes", sa.JSON(), nullable=False, server_default="[]"))
        batch_op.add_column(sa.Column("snapshots_told", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.create_index(batch_op.f("ix_attempts_state"), ["state"], unique=False)

    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("desired_number", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("desired_suspended", sa.Boolean(), nullable=False, server_default=sa.false()))
        batch_op.add_column(sa.Column("desired_snapshot_number", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("recovering_since", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("last_failure", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("farthest_step", sa.BigInteger(), nullable=True))
        batch_op.create_index(batch_op.f("ix_jobs_state_created_at_id"), ["state", "created_at", "id"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_jobs_project_created_at_id"), ["project", "created_at", "id"], unique=False
        )

    with op.batch_alter_table("trainings", schema=None) as batch_op:
        batch_op.add_column(sa.Column("shrinks", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("resized_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("changed_generation", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("snapshots", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("pace", sa.JSON(), nullable=False, server_default="{}"))
        batch_op.add_column(sa.Column("pace_book", sa.JSON(), nullable=False, server_default="{}"))

    op.execute("UPDATE trainings SET changed_generation = coalesce(restart_generation, 0)")
    with op.batch_alter_table("trainings", schema=None) as batch_op:
        batch_op.drop_column("restart_generation")

    op.execute("UPDATE attempts SET asked = nodes")
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE workers SET heard_at = at")
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.alter_column("heard_at", nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.drop_column("heard_at")

    with op.batch_alter_table("trainings", schema=None) as batch_op:
        batch_op.add_column(sa.Column("restart_generation", sa.BigInteger(), nullable=True))
    op.execute("UPDATE trainings SET restart_generation = nullif(changed_generation, 0)")
    with op.batch_alter_table("trainings", schema=None) as batch_op:
        batch_op.drop_column("pace_book")
        batch_op.drop_column("pace")
        batch_op.drop_column("snapshots")
        batch_op.drop_column("changed_generation")
        batch_op.drop_column("resized_at")
        batch_op.drop_column("shrinks")

    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_project_created_at_id"))
        batch_op.drop_index(batch_op.f("ix_jobs_state_created_at_id"))
        batch_op.drop_column("farthest_step")
        batch_op.drop_column("last_failure")
        batch_op.drop_column("recovering_since")
        batch_op.drop_column("desired_snapshot_number")
        batch_op.drop_column("desired_suspended")
        batch_op.drop_column("desired_number")

    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_attempts_state"))
        batch_op.drop_column("snapshots_told")
        batch_op.drop_column("marked_nodes")
        batch_op.drop_column("excluded_nodes")
        batch_op.drop_column("tried_at")
        batch_op.drop_column("workers_per_node")
        batch_op.drop_column("asked")

    op.drop_table("deliveries")  # its indexes go with it
    with op.batch_alter_table("node_failures", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_node_failures_cluster_at"))

    op.drop_table("node_failures")
    op.drop_table("leases")
