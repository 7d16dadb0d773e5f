"""the tables of the first release

Revision ID: 0011
Revises:
Create Date: 2026-11-25 22:46:32.477631
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision: str = "0011"
down_revision: str | None = None
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
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("desired_number", sa.BigInteger(), nullable=False),
        sa.Column("desired_cancelled", sa.Boolean(), nullable=False),
        sa.Column("desired_suspended", sa.Boolean(), nullable=False),
        sa.Column("desired_retry_number", sa.BigInteger(), nullable=False),
        sa.Column("desired_restore_from", sa.Text(), nullable=True),
        sa.Column("desired_snapshot_number", sa.BigInteger(), nullable=False),
        sa.Column("desired_stacks", sa.JSON(), nullable=True),
        sa.Column("desired_chaos", sa.JSON(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("retries_done", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.JSON(), nullable=False),
        sa.Column("fruitless", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("recovering_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_failure", sa.JSON(), nullable=True),
        sa.Column("farthest_step", sa.BigInteger(), nullable=True),
        sa.Column("kept_step", sa.BigInteger(), nullable=True),
        sa.Column("kept_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("project", "owner", "idempotency_key", name=op.f("uq_jobs_project_owner_idempotency_key")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_jobs_cluster_created_at_id"), ["cluster", "created_at", "id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_jobs_cluster_state"), ["cluster", "state"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_created_at_id"), ["created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_name_created_at_id"), ["name", "created_at", "id"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_jobs_priority_created_at_id"), ["priority", "created_at", "id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_jobs_project_created_at_id"), ["project", "created_at", "id"], unique=False
        )
        batch_op.create_index(
            "ix_jobs_retry_wished",
            ["cluster"],
            unique=False,
            sqlite_where=sa.text("desired_retry_number > retries_done"),
            postgresql_where=sa.text("desired_retry_number > retries_done"),
        )
        batch_op.create_index(batch_op.f("ix_jobs_state_created_at_id"), ["state", "created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_updated_at_id"), ["updated_at", "id"], unique=False)

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
        "node_clearings",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cleared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cleared_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node", name=op.f("pk_node_clearings")),
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
        "secrets",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_sessions")),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sessions_expires_at"), ["expires_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_sessions_token_id"), ["token_id"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("grants", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
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
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("workers_per_node", sa.BigInteger(), nullable=True),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("restore_from", sa.Text(), nullable=True),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopping_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_permitted", sa.Text(), nullable=True),
        sa.Column("excluded_nodes", sa.JSON(), nullable=False),
        sa.Column("marked_nodes", sa.JSON(), nullable=False),
        sa.Column("snapshots_told", sa.BigInteger(), nullable=False),
        sa.Column("errand_told", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_attempts")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_state"), ["state"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_job_id_id"), ["job_id", "id"], unique=False)

    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_labels")),
    )
    with op.batch_alter_table("job_labels", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_labels_name_value"), ["name", "value"], unique=False)

    op.create_table(
        "metrics",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measured", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_metrics")),
    )
    op.create_table(
        "reservations",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_reservations_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_reservations")),
        sa.UniqueConstraint("cluster", "port", name=op.f("uq_reservations_cluster_port")),
    )
    op.create_table(
        "snapshots",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("world_size", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_snapshots_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_snapshots")),
    )
    with op.batch_alter_table("snapshots", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_snapshots_job_id_step"), ["job_id", "step"], unique=False)

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
        batch_op.create_index(
            "ix_deliveries_due",
            ["webhook", "due_at"],
            unique=False,
            sqlite_where=sa.text("due_at IS NOT NULL"),
            postgresql_where=sa.text("due_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_deliveries_order",
            ["job_id", "webhook", "event_id"],
            unique=False,
            sqlite_where=sa.text("due_at IS NOT NULL"),
            postgresql_where=sa.text("due_at IS NOT NULL"),
        )

    op.create_table(
        "journals",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("progress_to", sa.BigInteger(), nullable=False),
        sa.Column("events_to", sa.BigInteger(), nullable=False),
        sa.Column("exit_record", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["attempts.job_id", "attempts.number"],
            name=op.f("fk_journals_job_id_attempt_attempts"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt", "replica", "incarnation", name=op.f("pk_journals")),
    )
    op.create_table(
        "trainings",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("world_size", sa.BigInteger(), nullable=True),
        sa.Column("formed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("step_generation", sa.BigInteger(), nullable=True),
        sa.Column("step_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("step_s", sa.Double(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("tokens_per_s", sa.Double(), nullable=True),
        sa.Column("restarts", sa.BigInteger(), nullable=False),
        sa.Column("shrinks", sa.BigInteger(), nullable=False),
        sa.Column("resized_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed_generation", sa.BigInteger(), nullable=False),
        sa.Column("restored", sa.Text(), nullable=True),
        sa.Column("snapshots", sa.BigInteger(), nullable=False),
        sa.Column("began_step", sa.BigInteger(), nullable=True),
        sa.Column("kept_step", sa.BigInteger(), nullable=True),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pace", sa.JSON(), nullable=False),
        sa.Column("pace_book", sa.JSON(), nullable=False),
        sa.Column("stored", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["attempts.job_id", "attempts.number"],
            name=op.f("fk_trainings_job_id_attempt_attempts"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_trainings")),
    )
    op.create_table(
        "workers",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("replica", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("local_rank", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("utilisation", sa.Double(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heard_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["attempts.job_id", "attempts.number"],
            name=op.f("fk_workers_job_id_attempt_attempts"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt", "replica", "local_rank", name=op.f("pk_workers")),
    )
