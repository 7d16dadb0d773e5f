"""Failures of a script, and what `why` answers, for tests."""

from __future__ import annotations

from orchestrator.domain.accounting.chronicle import Chronicle, read_life
from orchestrator.domain.accounting.goodput import Ledger
from orchestrator.domain.explanation.why import Why, explain
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job
from tests.builders import NOW
from trainer.contract.failure import Failure, FailureKind

RAISED = Failure(
    kind=FailureKind.APPLICATION,
    message="KeyError: 'labels'",
    rank=0,
    traceback=(
        "Traceback (most recent call last):\n"
        '  File "/src/train.py", line 40, in <module>\n    main()\n'
        '  File "/src/train.py", line 12, in main\n    batch["labels"]\n'
        "KeyError: 'labels'\n"
    ),
)


ODD = Failure(kind=FailureKind.APPLICATION, message="AssertionError: 3 is not 4", rank=1, step=30)


def why_of(job: Job, attempts: list[Attempt], events: list[Event]) -> Why:
    chronicle = Chronicle(job=job, attempts=attempts, events=events, kept={}, heard_at={})
    return explain(chronicle, read_life(chronicle), Ledger(), NOW)
