"""The agent's records in the run directory: claim, identity, journal, exit record. Standard library only.

This module must not import torch: `agent.json` must exist within a tenth of a second of the start.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from trainer.contract import env, layout
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
from trainer.contract.launch import DesiredDocument, LaunchPolicy, parse_desired, parse_policy
from trainer.elastic.health.processes import stat_fields
from trainer.elastic.records.claim import claim_attempt
from trainer.elastic.records.files import append_line, read_document, say, write_document


@dataclass(frozen=True, kw_only=True)
class Record:
    """The records of one incarnation of a replica's agent."""

    job_id: str
    job_dir: Path
    attempt: int
    replica: int
    incarnation: int
    policy: LaunchPolicy | None  # None: there is no launch.json, only the flags apply
    process: ProcessIdentity = field(repr=False)
    node: str  # as the cluster calls it: in a pod, the host name is the pod's

    @property
    def attempt_dir(self) -> Path:
        return layout.attempt_dir(self.job_dir, self.attempt)

    @property
    def incarnation_dir(self) -> Path:
        return layout.replica_dir(self.job_dir, self.attempt, self.replica) / str(self.incarnation)

    def journal(self, kind: EventKind, sentence: str, generation: int, /, **evidence: object) -> None:
        """Append an event. A journal that cannot be written, for example on a full disk, never stops the training."""
        event = JournalEvent(at=now(), kind=kind.value, sentence=sentence, generation=generation, evidence=evidence)
        try:
            append_line(self.incarnation_dir / layout.EVENTS, render_journal_event(event))
        except OSError as error:
            say(f"cannot journal {kind.value}: {error}")

    def is_superseded(self) -> bool:
        """Whether a later incarnation of this replica has begun, as far as this node sees."""
        return newest_incarnation(self.incarnation_dir.parent) > self.incarnation

    def finish(self, record: ExitRecord) -> None:
        write_document(self.incarnation_dir / layout.EXIT, render_exit_record(record))

    def desired(self) -> DesiredDocument:
        """The current desired state. RUN if there is none, or if it cannot be read."""
        return parse_desired(read_document(self.attempt_dir / layout.DESIRED) or {})


def open_record(environ: Mapping[str, str]) -> Record | None:
    """Claim the attempt, open the next incarnation and write `agent.json`. None outside a job.

    Raises ClaimRefused if another submission holds the attempt (then nothing was written), ValueError for an incomplete
    environment, OSError if the run directory cannot be written.
    """
    place = env.parse_place(environ)
    if place.job_dir is None:
        return None
    job_dir, token = Path(place.job_dir), environ.get(env.CLAIM, "")
    if not token:
        raise ValueError(f"{env.JOB_DIR} is set but {env.CLAIM} is not: the attempt cannot be claimed")
    attempt_dir = layout.attempt_dir(job_dir, place.attempt)
    claim_attempt(attempt_dir, token)
    least = int(environ.get(env.INCARNATION) or 1)
    incarnation = _next_incarnation(layout.replica_dir(job_dir, place.attempt, place.replica), least)
    record = reopen_record(environ, incarnation, os.getpid())
    _introduce(record, token)
    return record


def reopen_record(environ: Mapping[str, str], incarnation: int, pid: int) -> Record:
    """The record that the process `pid` has opened, in another process with the same environment."""
    place = env.parse_place(environ)
    assert place.job_dir is not None
    job_dir = Path(place.job_dir)
    launch = read_document(layout.attempt_dir(job_dir, place.attempt) / layout.LAUNCH)
    process = identify_process(pid)
    return Record(
        job_id=place.job_id or job_dir.name,
        job_dir=job_dir,
        attempt=place.attempt,
        replica=place.replica,
        incarnation=incarnation,
        policy=None if launch is None else _policy(launch),
        process=process,
        node=environ.get(env.NODE) or process.host,
    )


def _policy(launch: Mapping[str, object]) -> LaunchPolicy:
    nested = launch.get("policy")
    return parse_policy(nested if isinstance(nested, Mapping) else launch)


def _introduce(record: Record, token: str) -> None:
    agent = AgentRecord(process=record.process, claim=token, incarnation=record.incarnation, at=now())
    write_document(record.incarnation_dir / layout.AGENT, render_agent_record(agent))
    sentence = f"agent of replica {record.replica} started on {record.node}"
    who = {"pid": record.process.pid, "host": record.node}
    record.journal(EventKind.AGENT_STARTED, sentence, 0, **who, replica=record.replica, incarnation=record.incarnation)


def newest_incarnation(replica_dir: Path) -> int:
    """The highest incarnation of a replica that has begun, as far as this node sees. 0: none."""
    return max((int(path.name) for path in replica_dir.iterdir() if path.name.isdecimal()), default=0)


def _next_incarnation(replica_dir: Path, least: int) -> int:
    replica_dir.mkdir(parents=True, exist_ok=True)
    number = max(newest_incarnation(replica_dir) + 1, least)
    while not _make(replica_dir / str(number)):
        number += 1
    return number


def _make(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def identify_process(pid: int | None = None) -> ProcessIdentity:
    """Identify a process of this machine, by default the calling one. Raises FileNotFoundError if it is gone."""
    pid = os.getpid() if pid is None else pid
    return ProcessIdentity(
        pid=pid,
        start_ticks=int(stat_fields(pid)[22 - 3]),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        host=socket.gethostname(),
    )


def build_exit_record(
    outcome: Outcome, failure: Failure | None = None, *, generation: int = 0, restarts: int = 0
) -> ExitRecord:
    """The exit record of an agent that ends now."""
    return ExitRecord(outcome=outcome, at=now(), generation=generation, restarts=restarts, failure=failure)


def now() -> str:
    return render_time(datetime.now(timezone.utc))
