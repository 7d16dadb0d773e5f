"""count the jobs of a project in the index that lists them

Revision ID: 0013
Revises: 0012
Create Date: 2026-11-28 00:45:00
"""

from __future__ import annotations

from orchestrator.store.online_index import create_index, drop_index

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    create_index("ix_jobs_project_created_at_id_state", "jobs", ["project", "created_at", "id", "state"])
    drop_index("ix_jobs_project_created_at_id", "jobs")
