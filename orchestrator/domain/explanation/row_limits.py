"""Limits on the rows that the journals of one attempt and of one job may leave in the database. Pure.

A job can report any amount of anything. What decisions read is summed up line by line and needs no limit. Rows have a
limit for each kind (`Room`), so that noise never displaces important rows. docs/failures.md publishes the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from orchestrator.domain.accounting.chronicle import KINDS
from orchestrator.domain.job.attempt import AttemptKey
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Progress

MOST_LIVES = 1_000  # incarnations of one replica in one attempt
MOST_WORKERS = 64  # per replica, even if its launch requested fewer, because a script may start processes
MOST_NAMES = 500  # names of metrics in one attempt
MOST_NAME_CHARS = 100
LEVEL_POINTS = 250_000  # rows of metrics before every second step is stored, then every fourth
LEVEL_BYTES = 64 * 1024 * 1024
LEVELS = 12  # in all 3 million rows, enough for a billion steps
MOST_SNAPSHOTS = 10_000  # listed snapshots of one job
ROW_BYTES = 2048  # bytes per row on average; with larger rows, a room is full before its last row
JOB_SHARE = 4  # the limit of a job, in multiples of the limit of an attempt
# Metrics that every job may report in addition to MOST_NAMES.
_USUAL_NAMES = frozenset({"loss", "tokens_per_s", "learning_rate", "grad_norm", "step_s", "snapshot_s"})
_ACCOUNT = KINDS & {kind.value for kind in EventKind}
_SNAPSHOTS = frozenset(
    {
        EventKind.SNAPSHOT_COMMITTED.value,
        EventKind.SNAPSHOT_QUARANTINED.value,
        EventKind.SNAPSHOT_DELETED.value,
        EventKind.SNAPSHOT_FAILED.value,
        EventKind.SNAPSHOT_SKIPPED.value,
    }
)


class Room(StrEnum):
    """The kinds of rows that have separate limits."""

    ACCOUNT = "account"  # events that `goodput` and `why` read
    FIRSTS = "firsts"  # once ACCOUNT is full, the first event of each kind in each generation
    SNAPSHOTS = "snapshots"
    NOTES = "notes"  # all other events
    POINTS = "points"  # metrics of steps


_ROWS = {Room.ACCOUNT: 10_000, Room.FIRSTS: 5_000, Room.SNAPSHOTS: 50_000, Room.NOTES: 10_000}
_ROWS_PER_NODE = {Room.ACCOUNT: 1_000, Room.NOTES: 100}  # every agent reports each generation
_WHAT = {
    Room.ACCOUNT: (
        "events about its generations",
        "Of later ones, the first of each kind in each generation is stored.",
    ),
    Room.FIRSTS: ("first events of later generations", "Later ones are not stored, but restarts still count."),
    Room.SNAPSHOTS: ("events about snapshots", "Later ones are not stored, but the list of snapshots continues."),
    Room.NOTES: ("events", "Later ones are not stored."),
}


class Launch(NamedTuple):
    """The size of an attempt: `replicas` agents with `workers` each, None if not known."""

    key: AttemptKey
    replicas: int
    workers: int | None

    def refusal(self, replica: int, incarnation: int) -> str | None:
        """Return why reports of this incarnation of this replica are not stored. None if they are."""
        if not 0 <= replica < self.replicas:
            nodes = "1 node" if self.replicas == 1 else f"{self.replicas} nodes"
            return f"Attempt {self.key.number} was launched on {nodes} and has no replica {replica}."
        if not 1 <= incarnation <= MOST_LIVES:
            return (
                f"Replica {replica} of attempt {self.key.number} reported incarnation {incarnation}. "
                f"The highest that is stored is {MOST_LIVES:,}."
            )
        return None

    def has_worker(self, local_rank: int) -> bool:
        return 0 <= local_rank < max(self.workers or 0, MOST_WORKERS)


@dataclass(slots=True)
class Stored:
    """The rows that an attempt's journals have left in the database, by room. Changed in place.

    `rows_before` and `bytes_before` are those of the job's earlier attempts.
    """

    rows: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    rows_before: dict[str, int] = field(default_factory=dict)
    bytes_before: dict[str, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # the newest generation with a stored event, by kind
    names: list[str] = field(default_factory=list)  # names of metrics
    leader: int | None = None  # the newest generation in which rank 0 reported the loss
    said: list[str] = field(default_factory=list)  # the limits whose event was stored

    def successor(self) -> Stored:
        """Return the record that the next attempt of the job begins with."""
        return Stored(
            rows_before=_added(self.rows_before, self.rows), bytes_before=_added(self.bytes_before, self.size_bytes)
        )

    def find_room(self, launch: Launch, kind: str, generation: int) -> tuple[Room, bool]:
        """Return the room of an event, and whether it has space left."""
        room = _room_of(kind)
        if room is Room.ACCOUNT and not self._has_room(room, launch):
            if generation <= self.newest.get(kind, -1):
                return room, False
            room = Room.FIRSTS
        return room, self._has_room(room, launch)

    def count_event(self, room: Room, kind: str, generation: int, size_bytes: int) -> None:
        if room in (Room.ACCOUNT, Room.FIRSTS):
            self.newest[kind] = max(generation, self.newest.get(kind, -1))
        self._count(room, size_bytes)

    def takes_metrics(self, line: Progress) -> bool:
        """Whether the metrics of this line are stored: rank 0's, or any rank's with the loss if rank 0 has none."""
        if line.rank == 0:
            self.leader = line.generation if "loss" in line.metrics else self.leader
            return True
        return "loss" in line.metrics and self.leader != line.generation

    def take_point(self, step: int, size_bytes: int, *, always: bool) -> bool:
        """Count the metrics of a step. Returns False if they are not stored. `always` stores those of any step."""
        level = self.level()
        if level >= LEVELS or not (always or step % (1 << level) == 0):
            return False
        self._count(Room.POINTS, size_bytes)
        return True

    def level(self) -> int:
        """Return the level. One of every 2**level steps is stored, and none from LEVELS on."""
        return max(self._rows(Room.POINTS) // LEVEL_POINTS, self._bytes(Room.POINTS) // LEVEL_BYTES)

    def take_names(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics whose name is usual or among the first MOST_NAMES of the attempt."""
        known = _USUAL_NAMES.union(self.names)
        for name in metrics:
            if name not in known and len(name) <= MOST_NAME_CHARS and len(self.names) < MOST_NAMES:
                self.names.append(name)
                known |= {name}
        return {name: value for name, value in metrics.items() if name in known}

    def mark_said(self, limit: str) -> bool:
        """Note that the event of this limit is stored. Returns False if it already was."""
        if limit in self.said:
            return False
        self.said.append(limit)
        return True

    def tell_full(self, room: Room, launch: Launch) -> str:
        """Return the sentence for the job's owner."""
        what, consequence = _WHAT[room]
        most = most_rows(room, launch.replicas)
        mine = self._is_within(room, most, self.rows, self.size_bytes)
        whose = "This job" if mine else f"Attempt {launch.key.number}"
        most = most * JOB_SHARE if mine else most
        return f"{whose} reported more than {most:,} {what}, or {most * ROW_BYTES >> 20:,} MiB of them. {consequence}"

    def _has_room(self, room: Room, launch: Launch) -> bool:
        most = most_rows(room, launch.replicas)
        return self._is_within(room, most, self.rows, self.size_bytes) and (
            self._rows(room) < most * JOB_SHARE and self._bytes(room) < most * JOB_SHARE * ROW_BYTES
        )

    @staticmethod
    def _is_within(room: Room, most: int, rows: Mapping[str, int], size_bytes: Mapping[str, int]) -> bool:
        return rows.get(room, 0) < most and size_bytes.get(room, 0) < most * ROW_BYTES

    def _count(self, room: Room, size_bytes: int) -> None:
        name = room.value
        self.rows[name] = self.rows.get(name, 0) + 1
        self.size_bytes[name] = self.size_bytes.get(name, 0) + size_bytes

    def _rows(self, room: Room) -> int:
        return self.rows_before.get(room, 0) + self.rows.get(room, 0)

    def _bytes(self, room: Room) -> int:
        return self.bytes_before.get(room, 0) + self.size_bytes.get(room, 0)


def most_rows(room: Room, nodes: int) -> int:
    """Return the limit of one attempt on `nodes` nodes."""
    return _ROWS[room] + _ROWS_PER_NODE.get(room, 0) * nodes


def tell_thinned(level: int) -> str:
    """Return the sentence for the job's owner."""
    if level >= LEVELS:
        return "This job has reached the limit of stored metrics. Later ones are not stored."
    return (
        f"This job reported metrics of more than {level * LEVEL_POINTS:,} steps, or {level * LEVEL_BYTES >> 20:,} MiB "
        f"of them. From now on, one step in {1 << level:,} is stored."
    )


def _room_of(kind: str) -> Room:
    if kind in _ACCOUNT:
        return Room.ACCOUNT
    return Room.SNAPSHOTS if kind in _SNAPSHOTS else Room.NOTES


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
