"""A fake agent without a process, which writes the files of a real one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.ports.clock import Clock
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, ProcessIdentity, render_agent_record
from trainer.contract.clock import render_time
from trainer.contract.exit_record import (
    EventKind,
    ExitRecord,
    JournalEvent,
    Outcome,
    render_exit_record,
    render_journal_event,
)
from trainer.contract.failure import Failure
from trainer.contract.launch import DesiredDocument, DesiredState, newest, parse_desired
from trainer.contract.progress import Phase, Progress, render_progress


class AgentState(StrEnum):
    STARTING = "starting"  # it has not claimed the attempt yet
    WORKING = "working"  # it holds the claim and writes its files
    ENDED = "ended"


class FakeAgent:
    """One incarnation of a replica's agent, from one submission (`token`). `deaf`: it ignores requests to stop."""

    def __init__(self, job_dir: Path, key: AttemptKey, replica: int, token: str, clock: Clock, *, node: str) -> None:
        self.replica = replica
        self.token = token
        self.node = node
        self.state = AgentState.STARTING
        self.orphans = False  # whether its workers outlived it
        self.told_to_stop = False  # whether it got a signal
        self.deaf = False
        self.exit_record: ExitRecord | None = None
        self.claimed = False
        self.incarnation = 0
        self.desired = DesiredDocument()
        self._attempt_dir = layout.attempt_dir(job_dir, key.number)
        self._replica_dir = layout.replica_dir(job_dir, key.number, replica)
        self._clock = clock

    @property
    def running(self) -> bool:
        return self.state is not AgentState.ENDED

    @property
    def folder(self) -> Path:
        """The folder of its files, once it has claimed the attempt."""
        return self._replica_dir / str(self.incarnation)

    def claim(self) -> None:
        """Claim the attempt, as the first act of an agent. The loser of a double start ends without a record."""
        if not self._takes_claim():
            self.state = AgentState.ENDED
            return
        self.claimed = True
        self.state = AgentState.WORKING
        self._replica_dir.mkdir(parents=True, exist_ok=True)
        self.incarnation = 1 + len(list(self._replica_dir.iterdir()))
        identity = ProcessIdentity(pid=4711, start_ticks=1, boot_id="boot", host=self.node)
        record = AgentRecord(process=identity, claim=self.token, incarnation=self.incarnation, at=self._now())
        self._write(layout.AGENT, render_agent_record(record))
        self.journal(EventKind.AGENT_STARTED, 0)

    def read_desired(self) -> bool:
        """Read the desired state. Returns whether the agent must stop."""
        desired = self._attempt_dir / layout.DESIRED
        document = parse_desired(json.loads(desired.read_text()) if desired.exists() else {})
        self.desired = newest(self.desired, document)
        stop = self.told_to_stop or self.desired.state is DesiredState.STOP
        return stop and self.state is AgentState.WORKING and not self.deaf

    def stop_as_requested(self, generation: int) -> None:
        """Stop as requested."""
        stop = self.desired.state is DesiredState.STOP
        self.exit(Outcome.CANCELLED if stop else Outcome.PREEMPTED, generation=generation)

    def journal(self, kind: EventKind, generation: int, **evidence: object) -> None:
        sentence = f"replica {self.replica}: {kind.value}"
        event = JournalEvent(
            at=self._now(), kind=kind.value, sentence=sentence, generation=generation, evidence=evidence
        )
        self._append(layout.EVENTS, render_journal_event(event))

    def tell(self, phase: Phase, step: int | None, *, rank: int, generation: int, world_size: int) -> None:
        """Report as a worker that a phase begins, or in phase STEP with a step, that the step is complete."""
        line = Progress(
            at=self._now(),
            rank=rank,
            local_rank=0,
            world_size=world_size,
            generation=generation,
            pid=4712,
            phase=phase,
            step=step,
            metrics={"step_s": 1.0} if phase is Phase.STEP and step else {},
        )
        self._append(layout.PROGRESS, render_progress(line))

    def exit(self, outcome: Outcome, failure: Failure | None = None, *, generation: int = 1) -> None:
        """Write an exit record and end."""
        record = ExitRecord(outcome=outcome, at=self._now(), generation=generation, restarts=0, failure=failure)
        self._write(layout.EXIT, render_exit_record(record))
        self.exit_record = record
        self.state = AgentState.ENDED

    def die(self, *, orphans: bool) -> None:
        """End without a record, as after SIGKILL or a power failure."""
        self.state = AgentState.ENDED
        self.orphans = orphans

    def _takes_claim(self) -> bool:
        path = self._attempt_dir / layout.CLAIM
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as file:
                file.write(self.token)
        except FileExistsError:
            return path.read_text() == self.token
        return True

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(json.dumps(document))

    def _append(self, name: str, document: Mapping[str, object]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(document) + "\n")

    def _now(self) -> str:
        return render_time(self._clock.now())
