"""Carry out the requests to a running agent other than stop: save stacks, inject faults.

The agent reads them from `desired.json` (desired.py). Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.contract import env, layout
from trainer.contract.chaos import Chaos, Fault, find_targets
from trainer.contract.exit_record import EventKind
from trainer.contract.launch import DesiredDocument, DesiredState, newest, parse_desired
from trainer.elastic.chaos import Target, Worker, inject
from trainer.elastic.health.stacks import collect_stacks
from trainer.elastic.records.files import say
from trainer.elastic.records.record import Record
from trainer.elastic.rendezvous.formation import name_ranks

_LOOK_EVERY_S = 0.25
_ALL_STACKS_BYTES, _STACKS_BYTES = 40 * 1024, 16 * 1024  # limits per event: all ranks together, one rank


@dataclass(frozen=True, kw_only=True)
class Group:
    """The running group: `workers` has the agent's own, by rank."""

    generation: int
    world_size: int
    workers: Mapping[int, Worker]


class AgentRequests:
    """Carries out each request once, on the main thread, in half a second at most, or in a few seconds with py-spy."""

    def __init__(self, record: Record, *, stacks_done: int = 0) -> None:
        """`stacks_done` is the last request for stacks that an earlier agent has carried out."""
        self._record = record
        self._path = record.attempt_dir / layout.DESIRED
        self._looked_s = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._desired = DesiredDocument()
        self.stacks_done = stacks_done
        self._chaos_done = 0

    def run(self, group: Group) -> None:
        """Carry out new requests. A failed request never ends the agent. Stopped passes through."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._look()
        desired = self._desired
        if desired.state is DesiredState.STOP or not group.workers:
            return
        if desired.stacks > self.stacks_done:
            self.stacks_done = desired.stacks
            self._save_stacks(group, desired.stacks, desired.stacks_rank)
        if desired.chaos is not None and desired.chaos.number > self._chaos_done:
            self._run_chaos(group, desired.chaos)

    def _look(self) -> None:
        """Read the file if it has changed."""
        try:
            status = self._path.stat()
            identity = status.st_ino, status.st_mtime_ns, status.st_size
            if identity == self._seen:
                return
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return
        self._seen = identity
        if isinstance(document, dict):
            self._desired = newest(self._desired, parse_desired(document))

    def _save_stacks(self, group: Group, request: int, rank: int | None) -> None:
        asked = {each: worker for each, worker in group.workers.items() if rank in (None, each)}
        if not asked:
            return
        limit = min(_STACKS_BYTES, _ALL_STACKS_BYTES // len(asked))
        folders = {worker.pid: worker.folder for worker in asked.values()}
        collected = collect_stacks(folders, limit_bytes=limit)
        stacks = {str(each): collected[worker.pid] for each, worker in sorted(asked.items()) if worker.pid in collected}
        silent = [each for each, worker in sorted(asked.items()) if worker.pid not in collected]
        parts = []
        if stacks:
            parts.append(f"stacks of {name_ranks([int(each) for each in stacks])} saved on request")
        if silent:
            parts.append(f"no answer from {name_ranks(silent)}")
        self._record.journal(
            EventKind.STACKS_SAVED,
            "; ".join(parts),
            group.generation,
            ranks=[int(each) for each in stacks],
            silent=silent,
            wish=request,
            stacks=stacks,
        )

    def _run_chaos(self, group: Group, request: Chaos) -> None:
        ranks = find_targets(
            request, replica=self._record.replica, ranks=group.workers.keys(), world_size=group.world_size
        )
        every = request.fault is Fault.PREEMPT
        if ranks and not self._claim(request, self._record.replica if every else None):
            return
        self._chaos_done = request.number  # also if another agent is the target: its rank may move to this agent later
        if ranks:
            self._inject(group, request, ranks[-1])

    def _claim(self, request: Chaos, replica: int | None) -> bool:
        """Claim the request. False if it was carried out before, by any incarnation, or if the disk refuses the claim.

        After a refusal by the disk the next look tries again.
        """
        path = layout.chaos_file(self._record.attempt_dir, request.number, replica)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            self._chaos_done = request.number
            return False
        except OSError as error:
            say(f"cannot claim a requested fault: {error}")
            return False
        return True

    def _inject(self, group: Group, request: Chaos, rank: int) -> None:
        evidence = {"fault": request.fault.value, "number": request.number, "rank": rank}

        def report(what: str) -> None:
            self._record.journal(EventKind.CHAOS_INJECTED, f"on purpose: {what}", group.generation, **evidence)

        folder = os.environ.get(env.SNAPSHOT_DIR) or str(layout.snapshots_dir(self._record.job_dir))
        target = Target(
            rank=rank,
            worker=group.workers[rank],
            incarnation_dir=self._record.incarnation_dir,
            snapshots=folder,
            keeper=self._record.process.pid,
        )
        inject(request.fault, target, report)
