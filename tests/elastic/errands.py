"""What the tests of an agent's errands share: a job with a steady script, requests for it, and what it tells."""

from __future__ import annotations

from pathlib import Path

from tests.elastic.harness import SCRIPTS, Agent, Job, wait_for
from trainer.contract.chaos import Chaos, Fault
from trainer.contract.launch import DesiredDocument, render_desired
from trainer.elastic.records.files import write_document

TWO, FAST = "--nproc-per-node=2", "--monitor-interval=0.05"
STEADY = str(SCRIPTS / "steady.py")


def request(job: Job, desired: DesiredDocument) -> None:
    write_document(job.attempt / "desired.json", render_desired(desired))


def chaos(job: Job, fault: Fault, *, number: int = 1, **target: int) -> None:
    request(job, DesiredDocument(number=number, chaos=Chaos(number=number, fault=fault, **target)))


def start(job: Job, tmp_path: Path, *, max_restarts: int = 3, heartbeat_timeout_s: float | None = None) -> Agent:
    job.policy(max_restarts=max_restarts, heartbeat_timeout_s=heartbeat_timeout_s)
    agent = job.start(TWO, FAST, STEADY, str(tmp_path / "finish"))
    wait_for(lambda: {entry["rank"] for entry in agent.progress(1)} == {0, 1}, "step of both ranks")
    return agent


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def told(agent: Agent, kind: str, count: int = 1) -> list[dict[str, object]]:
    wait_for(lambda: len(agent.events(kind)) >= count, f"{count} x {kind}")
    return agent.events(kind)


def evidence(event: dict[str, object]) -> dict[str, object]:
    found = event["evidence"]
    assert isinstance(found, dict)
    return found
