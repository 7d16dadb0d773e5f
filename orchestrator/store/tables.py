"""The tables. Each docstring names the writer of the rows. Migrations in `alembic/` must follow every change here."""

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


def _job_key() -> ForeignKey:
    return ForeignKey("jobs.id", ondelete="CASCADE")


def _attempt_key() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job_id", "attempt"], ["attempts.job_id", "attempts.number"], ondelete="CASCADE")


class JobRow(Base):
    """A job. The API writes the spec and `desired_*`; the supervisor writes all other columns."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]  # name, project, cluster and priority are copies from the spec, for filters and sorting
    project: Mapped[str]
    cluster: Mapped[str]
    priority: Mapped[int]
    spec: Mapped[Json]
    created_at: Mapped[datetime]
    idempotency_key: Mapped[str | None]  # unique within the project and owner
    digest: Mapped[str]  # the digest of the request body that created the job
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
        Index(None, "created_at", "id"),  # one index for each sort order of the list; most also serve as filters
        Index(None, "updated_at", "id"),
        Index(None, "name", "created_at", "id"),
        Index(None, "state", "created_at", "id"),
        # An index of project and state would do for counts, but SQLite would prefer it for lists, and sort them.
        Index(None, "project", "created_at", "id", "state"),
        Index(None, "cluster", "created_at", "id"),
        Index(None, "priority", "created_at", "id"),
        Index(None, "cluster", "state"),
        Index(None, "finished_at", "id"),
        Index(
            "ix_jobs_retry_wished",
            "cluster",
            sqlite_where=text("desired_retry_number > retries_done"),
            postgresql_where=text("desired_retry_number > retries_done"),
        ),
    )


class JobLabelRow(Base):
    """The labels of a job's spec, one row each, for filters. The API writes them with the spec."""

    __tablename__ = "job_labels"

    job_id: Mapped[str] = mapped_column(_job_key(), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]

    __table_args__ = (Index(None, "name", "value"),)


class AttemptRow(Base):
    """One submission. The supervisor writes it."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(_job_key(), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    state: Mapped[str]
    reason: Mapped[str]
    nonce: Mapped[str]
    nodes: Mapped[str]  # the node count that the attempt got, as "2" or "1:4"
    asked: Mapped[str]  # the node count of the spec
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
    """A rendezvous port that a live or an upcoming attempt holds. The supervisor writes it."""

    __tablename__ = "reservations"

    job_id: Mapped[str] = mapped_column(_job_key(), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    cluster: Mapped[str]
    port: Mapped[int] = mapped_column(Integer)

    __table_args__ = (UniqueConstraint("cluster", "port"),)


class EventRow(Base):
    """An event, append-only. Ids become visible in rising order, so a reader that polls by id misses none."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(_job_key())
    attempt: Mapped[int | None] = mapped_column(Integer)
    generation: Mapped[int | None]
    at: Mapped[datetime]  # when it happened, by the reporter's clock
    kind: Mapped[str]
    sentence: Mapped[str]
    evidence: Mapped[Json]
    actor: Mapped[str | None]  # the caller who requested it

    # Without AUTOINCREMENT, SQLite reuses the id of the newest row after that row is deleted.
    __table_args__ = (Index(None, "job_id", "id"), {"sqlite_autoincrement": True})


class JournalRow(Base):
    """How far the journals of one incarnation of an agent have been read. Intake writes it."""

    __tablename__ = "journals"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    replica: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    incarnation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    progress_to: Mapped[int]  # bytes
    events_to: Mapped[int]
    exit_record: Mapped[Json | None]

    __table_args__ = (_attempt_key(),)


class TrainingRow(Base):
    """The training summary of an attempt. The supervisor inserts it with the attempt; then intake writes it.

    Intake locks the row, so concurrent reports of one attempt are stored one after the other.
    """

    __tablename__ = "trainings"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[int | None]
    world_size: Mapped[int | None]
    formed_at: Mapped[datetime | None]
    progress_at: Mapped[datetime | None]  # when the newest line arrived, by the service's clock
    heard_at: Mapped[datetime | None]  # when the newest report arrived, even an empty one, by the service's clock
    phase: Mapped[str | None]
    step: Mapped[int | None]
    step_generation: Mapped[int | None]  # the generation of `step`; a later one may restart from an earlier step
    step_at: Mapped[datetime | None]  # when `step` was reached, by the worker's clock
    total_steps: Mapped[int | None]
    step_s: Mapped[float | None]
    loss: Mapped[float | None]
    tokens_per_s: Mapped[float | None]
    restarts: Mapped[int]
    shrinks: Mapped[int]
    resized_at: Mapped[datetime | None]
    changed_generation: Mapped[int]  # the newest counted change of the group; every agent reports the same change
    restored: Mapped[str | None]  # the snapshot that the newest generation continued from
    snapshots: Mapped[int]  # the number that this attempt committed
    began_step: Mapped[int | None]  # the earliest step that a generation restored
    kept_step: Mapped[int | None]  # the step of its newest snapshot
    kept_at: Mapped[datetime | None]  # when that snapshot was committed, by the worker's clock
    pace_book: Mapped[Json]  # trainer.contract.silence.PhaseTimes
    stored: Mapped[Json | None]  # how much its journals have stored in other tables, as row_limits.Stored

    __table_args__ = (_attempt_key(),)


class WorkerRow(Base):
    """The newest report of one worker. Intake writes it."""

    __tablename__ = "workers"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    replica: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    local_rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    incarnation: Mapped[int]  # the agent's; late reports of earlier incarnations are ignored
    rank: Mapped[int]
    world_size: Mapped[int]
    generation: Mapped[int]
    pid: Mapped[int]
    phase: Mapped[str]
    step: Mapped[int | None]
    memory_bytes: Mapped[int | None]
    utilisation: Mapped[float | None]
    at: Mapped[datetime]
    heard_at: Mapped[datetime]  # when the report arrived, by the service's clock

    __table_args__ = (_attempt_key(),)


class LeaseRow(Base):
    """The lease of a cluster. Times are the database's. Each supervisor writes it for itself."""

    __tablename__ = "leases"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    token: Mapped[int]  # rises each time the lease is acquired
    since: Mapped[datetime]  # when it was acquired
    expires_at: Mapped[datetime]
    requester: Mapped[str | None]  # the service that requests it from the holder
    request_expires_at: Mapped[datetime | None]


class NodeFailureRow(Base):
    """One failure in a node's record. The supervisor writes it. It stays when the job is deleted."""

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
    """The newest clearing of a node's record. The API writes it."""

    __tablename__ = "node_clearings"

    cluster: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    cleared_at: Mapped[datetime]
    cleared_by: Mapped[str]


class DeliveryRow(Base):
    """An event to deliver to a webhook. Inserted with the event; then the outbox writes it. Times are the database's.

    A delivery is pending while `due_at` is set. Without `due_at` and `delivered_at` it was abandoned.
    """

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    event_id: Mapped[int] = mapped_column(RowId, ForeignKey("events.id", ondelete="CASCADE"))
    job_id: Mapped[str]  # copied from the event, because the events of a job are delivered in order
    webhook: Mapped[str]
    message_id: Mapped[str]  # the same for each try, so the receiver can discard repeats
    created_at: Mapped[datetime]
    due_at: Mapped[datetime | None]
    tries: Mapped[int]  # tries that were begun
    delivered_at: Mapped[datetime | None]
    last_error: Mapped[str | None]

    __table_args__ = (
        UniqueConstraint("event_id", "webhook"),
        # Partial indexes: few deliveries are pending.
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
        Index(
            "ix_deliveries_over",
            "created_at",
            sqlite_where=text("due_at IS NULL"),
            postgresql_where=text("due_at IS NULL"),
        ),
        {"sqlite_autoincrement": True},
    )


class MetricRow(Base):
    """The metrics of one step, from the latest term that reported it. Intake writes it."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(_job_key(), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int]
    at: Mapped[datetime]
    measured: Mapped[Json]


class SnapshotRow(Base):
    """A snapshot that the journals report. Intake writes it."""

    __tablename__ = "snapshots"

    job_id: Mapped[str] = mapped_column(_job_key(), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int]
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int]
    state: Mapped[str]  # committed, quarantined or deleted
    size_bytes: Mapped[int | None]
    world_size: Mapped[int | None]  # of the group that saved it
    at: Mapped[datetime]
    verified_at: Mapped[datetime | None]  # when all its bytes were last compared with the manifest

    __table_args__ = (Index(None, "job_id", "step"),)


class TokenRow(Base):
    """A token. The API writes it. Only its digest is stored."""

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
    """A browser's session. The API writes it."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(primary_key=True)  # SHA-256 of the cookie
    token_id: Mapped[str]  # no foreign key, because the token of the settings has no row
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]

    __table_args__ = (Index(None, "token_id"), Index(None, "expires_at"))


class SecretRow(Base):
    """A project's secret, encrypted with a key that is not in the database. The API writes it."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[str]
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class DeletionRow(Base):
    """A deleted job. The API writes it; the supervisor clears `files_due`."""

    __tablename__ = "deletions"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    project: Mapped[str]
    cluster: Mapped[str]
    owner: Mapped[str | None]
    state: Mapped[str]  # the last state of the job
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime]
    deleted_by: Mapped[str]
    snapshot_dir: Mapped[str | None]  # where its snapshots are, if not in its folder
    files_due: Mapped[bool]  # its files must still be deleted

    __table_args__ = (Index(None, "cluster", "files_due"),)


class WebhookRow(Base):
    """A webhook that was created through the API, in addition to those of the settings. The API writes it."""

    __tablename__ = "webhooks"

    name: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    events: Mapped[Names]  # patterns
    all_jobs: Mapped[bool]
    sealed: Mapped[str]  # its URL and its signing key, encrypted
    created_at: Mapped[datetime]
    created_by: Mapped[str]
