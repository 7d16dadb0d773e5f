"""A snapshot from begin to commit: each rank writes and checksums its own files, and rank 0 commits all or none.

It runs in the background (`snapshot_mode` async) or while training waits (sync), by the same steps. A save that fails
on one rank fails on all. An event reports it, and training continues. Only a stale term ends training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import torch.distributed as dist

from trainer.contract.manifest import Manifest
from trainer.errors import StaleTerm, TrainerError
from trainer.snapshot.cadence import Cost
from trainer.snapshot.committer import Committer, PendingSnapshot
from trainer.snapshot.lineage import Beginning, answered_requests, fence_of, snapshots_of
from trainer.snapshot.mailbox import Mailbox
from trainer.snapshot.provenance import Provenance
from trainer.snapshot.retention import Retention
from trainer.snapshot.run_state import RunState
from trainer.snapshot.staging import Stager
from trainer.snapshot.writing import Abandoned, Part, Plan, SharedPlan, Values, values_of, write_part
from trainer.worker.agreement import on_rank_zero, through_rank_zero
from trainer.worker.full_disk import raise_injected_full_disk
from trainer.worker.run import Run

_LEAVES_WITHIN_S = 10.0  # how long to wait for the stager after a snapshot was abandoned


@dataclass
class SnapshotInFlight:
    """A snapshot in the background. The stager sets `failure` before `gathered`, and all events before it is done."""

    pending: PendingSnapshot
    plan: Plan
    mailbox: Mailbox
    written: threading.Event = field(default_factory=threading.Event)  # this rank has written its part, or failed
    gathered: threading.Event = field(default_factory=threading.Event)  # on rank 0: all ranks have written
    closed: threading.Event = field(default_factory=threading.Event)  # on rank 0: committed, or given up
    failure: Exception | None = None


class Saver:
    """Saves snapshots. `begin`, `save` and `settle` are collective: all ranks call them at the same step."""

    def __init__(self, run: Run, beginning: Beginning, *, strategy: str, data: dict[str, object]) -> None:
        config, restore, tell = run.config, beginning.restore, run.heartbeat.tell
        self._place = run.place
        self._provenance = Provenance(config, run.place, restore, tell)
        self._committer = Committer(run, beginning, self._provenance, strategy=strategy, data=data)
        self._retention = Retention(
            snapshots_of(run.place),
            fence_of(run.place),
            tell,
            keep=config.snapshot_keep,
            keep_every=config.snapshot_keep_every,
            verified=None if restore is None or restore.memory else restore.path,
        )
        self._waits, self._in_background = run.waits, config.snapshot_mode == "async"
        self.answered_requests = answered_requests(restore)
        is_on_disk = restore is not None and restore.is_own and not restore.memory
        self.saved_step = restore.manifest.step if restore is not None and is_on_disk else None
        self.cost = Cost()
        self.plan = SharedPlan(run.waits)
        self._stager = Stager(run.device)
        self._begun = 0  # snapshots in the background
        self._in_flight: SnapshotInFlight | None = None
        self._is_abandoned = False

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for this rank's part of the snapshot in flight, unless the group broke: then it cannot be committed."""
        self._is_abandoned = kind is not None and not issubclass(kind, TrainerError)
        if self._is_abandoned:
            self._retention.stop_verifying()
        self._stager.wait_until_done(_LEAVES_WITHIN_S if self._is_abandoned else None)
        self._stager.close()

    @property
    def is_busy(self) -> bool:
        """Whether this rank writes its part of a snapshot. On rank 0, whether any rank does."""
        return self._stager.is_busy

    @property
    def is_writing(self) -> bool:
        """On rank 0, whether a snapshot is in progress and not yet committed."""
        return self._in_flight is not None and not self._in_flight.closed.is_set()

    def start_provenance(self) -> None:
        """On rank 0, start to collect provenance in the background once training runs."""
        if dist.get_rank() == 0:
            self._provenance.start()

    def before_update(self, *_: object) -> None:
        """Delay the optimizer's step until its tensors are copied."""
        if self._stager.is_staged:
            return
        started = time.perf_counter()
        self._stager.wait_until_staged()
        self.cost.add_hold(time.perf_counter() - started)

    def begin(self, state: RunState, *, requests: int = 0) -> None:
        """Start a snapshot of `state` once the previous one is done. Raises StaleTerm, also for the previous one.

        `requests`, on rank 0, is how many of the service's requests this snapshot and those before have answered.
        """
        if not self._in_background:
            self.save(state, requests=requests)
            return
        started = time.perf_counter()
        is_begun = self._begin(state, requests)
        self.cost.add_stall(time.perf_counter() - started, is_begun=is_begun)

    def save(self, state: RunState, *, requests: int = 0, keep_all: bool = False) -> bool:
        """Commit a snapshot of `state` unless its step has one. Returns False on failure. Raises StaleTerm.

        `keep_all` skips retention and does not wait for git: the job is stopping.
        """
        if keep_all:
            self._provenance.stop_waiting()
            self._retention.stop_verifying()
        started = time.perf_counter()
        is_committed = self._save(state, requests, keep_all=keep_all)
        self.cost.add_stall(time.perf_counter() - started, is_begun=is_committed)
        return is_committed

    def describe(self, state: RunState) -> Manifest:
        """The manifest of a copy in memory."""
        return self._committer.describe(state.step, state.samples_seen, self.answered_requests, {})

    def settle(self) -> None:
        """Wait for the snapshot in flight. Raises StaleTerm if that was its failure."""
        flight, self._in_flight = self._in_flight, None
        if flight is None:
            return
        flight.written.wait()  # own work, not a wait for peers
        with self._waits.waiting():
            flight.gathered.wait()
        self._stager.wait_until_done()
        if on_rank_zero(lambda: _is_committed(flight), self._waits):
            self.saved_step, self.answered_requests = flight.pending.step, flight.pending.requests

    def _begin(self, state: RunState, requests: int) -> bool:
        self.settle()
        if self.saved_step == state.step:
            return False
        pending = self._open(state, requests)
        if pending is None:
            return False
        self._begun += 1
        flight = SnapshotInFlight(pending, self.plan.of(state), Mailbox(f"snapshot/{self._begun}"))
        self._in_flight = flight
        self._stager.begin(values_of(state, flight.plan), state.is_steady, lambda staged: self._finish(flight, staged))
        return True

    def _save(self, state: RunState, requests: int, *, keep_all: bool) -> bool:
        self.settle()
        if self.saved_step == state.step:
            return True
        pending = self._open(state, requests)
        if pending is None:
            return False
        try:
            self._write(state, pending)
        except (OSError, StaleTerm) as error:
            if dist.get_rank() == 0:
                self._committer.give_up(pending, error)
            if isinstance(error, StaleTerm):
                raise
            return False
        self.saved_step, self.answered_requests = state.step, requests
        self.cost.duration_s = pending.age_s
        if dist.get_rank() == 0 and not keep_all:
            self._retention.delete_old()
        return True

    def _open(self, state: RunState, requests: int) -> PendingSnapshot | None:
        """Make the directory of a snapshot. Returns None, and reports why, if that fails."""
        pending = self._committer.plan(state, requests)
        try:
            on_rank_zero(lambda: self._committer.open(pending), self._waits)
        except (OSError, StaleTerm) as error:
            if dist.get_rank() == 0:
                self._committer.give_up(pending, error, is_opened=False)
            if isinstance(error, StaleTerm):
                raise
            return None
        return pending

    def _write(self, state: RunState, pending: PendingSnapshot) -> None:
        plan = self.plan.of(state)
        values = values_of(state, plan)

        def commit(parts: list[Part]) -> list[None]:
            self._committer.commit(pending, plan, parts)
            return [None] * len(parts)

        through_rank_zero(lambda: self._write_part(plan, values, pending), commit, self._waits)

    def _write_part(
        self, plan: Plan, values: Values, pending: PendingSnapshot, should_continue: Callable[[], bool] = lambda: True
    ) -> Part:
        raise_injected_full_disk(self._place, str(pending.path))
        return write_part(plan, values, pending.path, should_continue)

    def _finish(self, flight: SnapshotInFlight, staged: Values | Exception) -> None:
        """The stager's work: write the copies, and on rank 0 commit once all ranks have written."""
        try:
            self._write_staged(flight, staged)
            if dist.get_rank() == 0:
                self._commit_gathered(flight)
                self.cost.duration_s = flight.pending.age_s
        except Exception as error:  # noqa: BLE001  # no failure of a background save ends training
            flight.failure = error
            if dist.get_rank() == 0 and not isinstance(error, Abandoned):
                self._committer.give_up(flight.pending, error)
        else:
            flight.closed.set()
            if dist.get_rank() == 0:
                self._retention.delete_old()
        finally:
            flight.written.set()
            flight.gathered.set()
            flight.closed.set()

    def _write_staged(self, flight: SnapshotInFlight, staged: Values | Exception) -> None:
        """Write this rank's part and send it, or the error, to rank 0. Raises Abandoned."""
        try:
            if isinstance(staged, Exception):
                raise staged
            part: Part | Exception = self._write_part(flight.plan, staged, flight.pending, self._should_continue)
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001  # sent in place of the part
            part = error
        flight.mailbox.send(part)
        flight.written.set()

    def _commit_gathered(self, flight: SnapshotInFlight) -> None:
        parts = flight.mailbox.collect(self._should_continue)
        flight.gathered.set()
        self._committer.commit(flight.pending, flight.plan, parts)

    def _should_continue(self) -> bool:
        return not self._is_abandoned


def _is_committed(flight: SnapshotInFlight) -> bool:
    if isinstance(flight.failure, StaleTerm):
        raise flight.failure
    return flight.failure is None
