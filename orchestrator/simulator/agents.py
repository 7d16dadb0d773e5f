"""A fake agent: no process, but the real books of one in the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from orchestrator import rundir
from orchestrator.domain.attempt import AttemptKey
from orchestrator.ports import Clock
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
from trainer.contract.launch import DesiredState, parse_desired
from trainer.contract.progress import Phase, Progress, render_progress


class AgentState(StrEnum):
    STARTING = "starting"  # a process, which has not claimed the attempt yet
    WORKING = "working"  # it holds the claim and has opened its books
    ENDED = "ended"


class FakeAgent:
    """The agent of one replica, from one submission (`token`). `deaf`: it never obeys a polite word."""

    def __init__(self, job_dir: Path, key: AttemptKey, replica: int, token: str, clock: Clock) -> None:
        self.replica = replica
        self.token = token
        self.state = AgentState.STARTING
        self.orphans = False  # workers that outlived it
        self.told_to_stop = False  # by a signal
        self.deaf = False
        self.exit_record: ExitRecord | None = None
        self.claimed = False
        self._attempt_dir = layout.attempt_dir(job_dir, key.number)
        self._folder = layout.replica_dir(job_dir, key.number, replica) / "1"
        self._clock = clock

    @property
    def running(self) -> bool:
        return self.state is not AgentState.ENDED

    def claim(self) -> None:
        """The first act of an agent. The loser of a double start ends without a word."""
        if not self._takes_claim():
            self.state = AgentState.ENDED
            return
        self.claimed = True
        self.state = AgentState.WORKING
        identity = ProcessIdentity(pid=4711, start_ticks=1, boot_id="boot", host="simulated")
        record = AgentRecord(process=identity, claim=self.token, incarnation=1, at=self._now())
        rundir.write_document(self._folder / layout.AGENT, render_agent_record(record))
        self.journal(EventKind.AGENT_STARTED, 0)

    def heed(self) -> None:
        """Obey a signal or the desired state."""
        wished = parse_desired(rundir.read_document(self._attempt_dir / layout.DESIRED) or {})
        stop = wished.state is DesiredState.STOP
        if self.state is AgentState.WORKING and not self.deaf and (stop or self.told_to_stop):
            self.exit(Outcome.CANCELLED if stop else Outcome.PREEMPTED)

    def journal(self, kind: EventKind, generation: int) -> None:
        sentence = f"replica {self.replica}: {kind.value}"
        event = JournalEvent(at=self._now(), kind=kind.value, sentence=sentence, generation=generation)
        self._append(layout.EVENTS, render_journal_event(event))

    def tell_step(self, step: int, generation: int, world_size: int) -> None:
        line = Progress(
            at=self._now(),
            rank=self.replica,
            local_rank=0,
            world_size=world_size,
            generation=generation,
            pid=4712,
            phase=Phase.STEP,
            step=step,
            metrics={"step_s": 1.0},
        )
        self._append(layout.PROGRESS, render_progress(line))

    def exit(self, outcome: Outcome, failure: Failure | None = None, *, generation: int = 1) -> None:
        """Leave a record, then go."""
        record = ExitRecord(outcome=outcome, at=self._now(), generation=generation, restarts=0, failure=failure)
        rundir.write_document(self._folder / layout.EXIT, render_exit_record(record))
        self.exit_record = record
        self.state = AgentState.ENDED

    def die(self, *, orphans: bool) -> None:
        """Go without a record, as by SIGKILL or with the machine."""
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

    def _append(self, name: str, document: Mapping[str, object]) -> None:
        with (self._folder / name).open("a") as file:
            file.write(json.dumps(document) + "\n")

    def _now(self) -> str:
        return render_time(self._clock.now())
