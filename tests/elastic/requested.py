"""A job with a steady script, and requests to its agent."""

from __future__ import annotations

from pathlib import Path

from tests.elastic.harness import STEADY, TWO, Agent, Job, wait_for
from trainer.contract.chaos import Chaos, Fault
from trainer.contract.launch import DesiredDocument, render_desired
from trainer.elastic.records.files import write_document


def request(job: Job, desired: DesiredDocument) -> None:
    write_document(job.attempt / "desired.json", render_desired(desired))


def chaos(job: Job, fault: Fault, *, number: int = 1, **target: int) -> None:
    request(job, DesiredDocument(number=number, chaos=Chaos(number=number, fault=fault, **target)))


def start(job: Job, tmp_path: Path, *, max_restarts: int = 3, heartbeat_timeout_s: float | None = None) -> Agent:
    job.policy(max_restarts=max_restarts, heartbeat_timeout_s=heartbeat_timeout_s)
    agent = job.start(TWO, STEADY, str(tmp_path / "finish"))
    agent.await_steps(1)
    return agent


def await_events(agent: Agent, kind: str, count: int = 1) -> list[dict[str, object]]:
    wait_for(lambda: len(agent.events(kind)) >= count, f"{count} x {kind}")
    return agent.events(kind)


def evidence(event: dict[str, object]) -> dict[str, object]:
    found = event["evidence"]
    assert isinstance(found, dict)
    return found
