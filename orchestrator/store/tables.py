"""The tables. Each row has one writer, named in its docstring; migrations in `alembic/` follow this file."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from orchestrator.store.types import CleanJson, CleanText, RowId, UtcDateTime

Json = dict[str, object]
Names = list[str]
_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[object, object]] = {
        str: CleanText(),
        datetime: UtcDateTime(),
        Json: CleanJson(),
        Names: CleanJson(),
        int: BigInteger(),
    }


def _of_job() -> ForeignKey:
    return ForeignKey("jobs.id", ondelete="CASCADE")


def _of_attempt() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job_id", "attempt"], ["attempts.job_id", "attempts.number"], ondelete="CASCADE")


class JobRow(Base):
    """What was asked, requested and decided. The API writes the spec and `desired_*`, the supervisor all the rest."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]  # name, project, cluster and priority repeat the spec, for filters and orders
    project: Mapped[str]
    cluster: Mapped[str]
    priority: Mapped[int]
    spec: Mapped[Json]
    created_at: Mapped[datetime]
    idempotency_key: Mapped[str | None]  # unique within the project and owner
    digest: Mapped[str]  # of the request body that made the job
    owner: Mapped[str | None]  # who submitted it

    desired_number: Mapped[int]  # rises with every request
    desired_cancelled: Mapped[bool]
    desired_suspended: Mapped[bool]
    desired_retry_number: Mapped[int]
    desired_restore_from: Mapped[str | None]
    desired_snapshot_number: Mapped[int]
    desired_stacks: Mapped[Json | None]
    desired_chaos: Mapped[Json | None]

    state: Mapped[str]
    reason: Mapped[str]
    updated_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    retries_done: Mapped[int]
    spent: Mapped[Json]  # failures by budget class since the last retry
    fruitless: Mapped[int]
    retry_at: Mapped[datetime | None]
    recovering_since: Mapped[datetime | None]
    last_failure: Mapped[Json | None]
    farthest_step: Mapped[int | None]
    kept_step: Mapped[int | None]
    kept_s: Mapped[float]

    __table_args__ = (
        UniqueConstraint("project", "owner", "idempotency_key"),
        Index(None, "created_at", "id"),  # one for each order of the list, which are the filters of most as well
        Index(None, "updated_at", "id"),
        Index(None, "name", "created_at", "id"),
        Index(None, "state", "created_at", "id"),
        Index(None, "project", "created_at", "id"),
        Index(None, "cluster", "created_at", "id"),
        Index(None, "priority", "created_at", "id"),
        Index(None, "cluster", "state"),
        Index(
            "ix_jobs_retry_wished",
            "cluster",
            sqlite_where=text("desired_retry_number > retries_done"),
            postgresql_where=text("desired_retry_number > retries_done"),
        ),
    )


class JobLabelRow(Base):
    """The labels of a job's spec, one row each, for filters. Written with the spec."""

    __tablename__ = "job_labels"

    job_id: Mapped[str] = mapped_column(_of_job(), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]

    __table_args__ = (Index(None, "name", "value"),)


class AttemptRow(Base):
    """One submission. The supervisor writes it."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(_of_job(), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    state: Mapped[str]
    reason: Mapped[str]
    nonce: Mapped[str]
    nodes: Mapped[str]  # what it was given
    asked: Mapped[str]  # what the spec asked for
    workers_per_node: Mapped[int | None]
    port: Mapped[int] = mapped_column(Integer)
    restore_from: Mapped[str | None]
    handle: Mapped[str | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    stopping_since: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    failure: Mapped[Json | None]
    tried_at: Mapped[datetime | None]
    not_permitted: Mapped[str | None]
    excluded_nodes: Mapped[Names]
    marked_nodes: Mapped[Names]
    snapshots_told: Mapped[int]
    errand_told: Mapped[int]

    __table_args__ = (Index(None, "state"),)


class ReservationRow(Base):
    """A rendezvous port held by a live attempt, or by one that is about to be written. The supervisor writes it."""

    __tablename__ = "reservations"

    job_id: Mapped[str] = mapped_column(_of_job(), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    cluster: Mapped[str]
    port: Mapped[int] = mapped_column(Integer)

    __table_args__ = (UniqueConstraint("cluster", "port"),)


class EventRow(Base):
    """The append-only account. Ids become visible in rising order, so that a reader behind the newest misses none."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(_of_job())
    attempt: Mapped[int | None] = mapped_column(Integer)
    generation: Mapped[int | None]
    at: Mapped[datetime]  # when it happened, by the clock of whoever saw it
    kind: Mapped[str]
    sentence: Mapped[str]
    evidence: Mapped[Json]
    actor: Mapped[str | None]  # who asked for it

    # AUTOINCREMENT: SQLite would otherwise give the id of a deleted newest row again.
    __table_args__ = (Index(None, "job_id", "id"), {"sqlite_autoincrement": True})


class JournalRow(Base):
    """How far one life of a replica's agent has been read. Intake writes it."""

    __tablename__ = "journals"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    replica: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    incarnation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    progress_to: Mapped[int]  # bytes
    events_to: Mapped[int]
    exit_record: Mapped[Json | None]

    __table_args__ = (_of_attempt(),)


class TrainingRow(Base):
    """What an attempt's journals told, summed up line by line. Born with the attempt; then intake writes it.

    Its row lock makes concurrent intakes of one attempt take turns.
    """

    __tablename__ = "trainings"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[int | None]
    world_size: Mapped[int | None]
    formed_at: Mapped[datetime | None]
    progress_at: Mapped[datetime | None]  # the newest line's arrival, by our clock
    heard_at: Mapped[datetime | None]  # the newest report's arrival, with news or without, by our clock
    phase: Mapped[str | None]
    step: Mapped[int | None]
    step_generation: Mapped[int | None]  # of `step`: a new generation may begin at an earlier one
    step_at: Mapped[datetime | None]  # when `step` was reached, by the worker's clock
    total_steps: Mapped[int | None]
    step_s: Mapped[float | None]
    loss: Mapped[float | None]
    tokens_per_s: Mapped[float | None]
    restarts: Mapped[int]
    shrinks: Mapped[int]
    resized_at: Mapped[datetime | None]
    changed_generation: Mapped[int]  # the newest that was counted: every agent journals the same change
    restored: Mapped[str | None]  # the snapshot that the newest generation continued from
    snapshots: Mapped[int]  # committed by this attempt
    began_step: Mapped[int | None]  # the earliest that a generation restored
    kept_step: Mapped[int | None]  # of its newest snapshot
    kept_at: Mapped[datetime | None]  # when that was committed, by the worker's clock
    pace: Mapped[Json]  # by phase: count, usual and longest seconds
    pace_book: Mapped[Json]  # what that is summed up from: contract.silence.PaceBook
    stored: Mapped[Json | None]  # what its journals have left in other tables: domain.bounds.Stored

    __table_args__ = (_of_attempt(),)


class WorkerRow(Base):
    """The newest word of one worker. Intake writes it."""

    __tablename__ = "workers"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    replica: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    local_rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    incarnation: Mapped[int]  # of the agent that it belongs to; an earlier one's late words do not count
    rank: Mapped[int]
    world_size: Mapped[int]
    generation: Mapped[int]
    pid: Mapped[int]
    phase: Mapped[str]
    step: Mapped[int | None]
    memory_bytes: Mapped[int | None]
    utilisation: Mapped[float | None]
    at: Mapped[datetime]
    heard_at: Mapped[datetime]  # its arrival, by our clock

    __table_args__ = (_of_attempt(),)


class LeaseRow(Base):
    """Who supervises a cluster, and until when by the database's clock. Supervisors write it, each for itself."""

    __tablename__ = "leases"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    token: Mapped[int]  # rises with every change of holder
    since: Mapped[datetime]  # when this token was given
    expires_at: Mapped[datetime]


class NodeFailureRow(Base):
    """One mark in a node's record. The supervisor writes it; it outlives the job."""

    __tablename__ = "node_failures"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    kind: Mapped[str]
    sentence: Mapped[str]

    __table_args__ = (Index(None, "cluster", "at"),)


class NodeClearingRow(Base):
    """When a node's record was cleared last, and by whom. The API writes it."""

    __tablename__ = "node_clearings"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    cleared_at: Mapped[datetime]
    cleared_by: Mapped[str]


class DeliveryRow(Base):
    """An event that is owed to a webhook. Written with the event; then the outbox writes it. Times are the database's.

    Still owed while `due_at` is set; without it and without `delivered_at` it was given up.
    """

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    event_id: Mapped[int] = mapped_column(RowId, ForeignKey("events.id", ondelete="CASCADE"))
    job_id: Mapped[str]  # the event's: of one job, events are delivered in their order
    webhook: Mapped[str]
    message_id: Mapped[str]  # what the receiver tells repetitions by
    created_at: Mapped[datetime]
    due_at: Mapped[datetime | None]
    tries: Mapped[int]  # begun
    delivered_at: Mapped[datetime | None]
    last_error: Mapped[str | None]

    __table_args__ = (
        UniqueConstraint("event_id", "webhook"),
        # What is owed is little beside what was delivered.
        Index(
            "ix_deliveries_due",
            "webhook",
            "due_at",
            sqlite_where=text("due_at IS NOT NULL"),
            postgresql_where=text("due_at IS NOT NULL"),
        ),
        Index(
            "ix_deliveries_order",
            "job_id",
            "webhook",
            "event_id",
            sqlite_where=text("due_at IS NOT NULL"),
            postgresql_where=text("due_at IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )


class MetricRow(Base):
    """What one step measured. The latest term that did the step has it. Intake writes it."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(_of_job(), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int]
    at: Mapped[datetime]
    measured: Mapped[Json]


class SnapshotRow(Base):
    """A snapshot as the journals tell of it: committed, then perhaps quarantined, then perhaps deleted."""

    __tablename__ = "snapshots"

    job_id: Mapped[str] = mapped_column(_of_job(), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int]
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int]
    state: Mapped[str]
    size_bytes: Mapped[int | None]
    world_size: Mapped[int | None]  # of the group that took it
    at: Mapped[datetime]
    verified_at: Mapped[datetime | None]  # when all of its bytes were last compared with its manifest

    __table_args__ = (Index(None, "job_id", "step"),)


class TokenRow(Base):
    """What a caller signs in with. The API writes it; the token itself was shown once and is not here."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    digest: Mapped[str]  # SHA-256 of the whole token
    grants: Mapped[Json]  # role by project
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str | None]


class SessionRow(Base):
    """A browser's sign-in. The API writes it."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(primary_key=True)  # SHA-256 of the cookie
    token_id: Mapped[str]  # the first token, which is a setting, has an id and no row
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]

    __table_args__ = (Index(None, "token_id"), Index(None, "expires_at"))


class SecretRow(Base):
    """A project's secret, sealed by a key that is not in the database. The API writes it."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[str]
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class DeletionRow(Base):
    """A job whose record was deleted, and by whom. The API writes it; the supervisor notes that the files are gone."""

    __tablename__ = "deletions"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    project: Mapped[str]
    cluster: Mapped[str]
    owner: Mapped[str | None]
    state: Mapped[str]  # the job's last
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime]
    deleted_by: Mapped[str]
    snapshot_dir: Mapped[str | None]  # of its spec: where its snapshots are, if not in its folder
    files_due: Mapped[bool]  # its files are to go and are there, as far as anybody knows

    __table_args__ = (Index(None, "cluster", "files_due"),)


class WebhookRow(Base):
    """A webhook that was made by request, beside those of the settings. The API writes it."""

    __tablename__ = "webhooks"

    name: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    events: Mapped[Names]  # patterns
    all_jobs: Mapped[bool]
    sealed: Mapped[str]  # its URL, and the key that signs
    created_at: Mapped[datetime]
    created_by: Mapped[str]
