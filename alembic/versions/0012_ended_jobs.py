"""index ended jobs and old deliveries

Revision ID: 0012
Revises: 0011
Create Date: 2026-11-27 21:05:00
"""

from __future__ import annotations

from orchestrator.store.online_index import create_index

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    create_index("ix_jobs_finished_at_id", "jobs", ["finished_at", "id"])
    create_index("ix_deliveries_over", "deliveries", ["created_at"], where="due_at IS NULL")
