"""The two halves of a drill: inject the fault, and judge the recovery."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.cli.loss_curves import Comparison, compare_curves
from orchestrator.client import Client
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import OrchestratorError, Refused
from orchestrator.domain.specs.trials import Score, StepDone, Strike, score_run
from orchestrator.wire.history_views import MetricsView
from orchestrator.wire.job_views import EventView, JobView
from trainer.contract.chaos import Fault
from trainer.contract.exit_record import EventKind

MOST_STEPS = 5000  # the service thins the metrics of more steps
_LOOK_EVERY_S = 0.2
_PATIENCE_S = 600.0
# After these faults a new generation begins. The others only delay training.
_ENDING = frozenset({Fault.KILL, Fault.HANG, Fault.PREEMPT, Fault.NODE_LOSS, Fault.CORRUPT_SNAPSHOT})


@dataclass(frozen=True, kw_only=True)
class DrillVerdict:
    fault: Fault
    jobs: Sequence[JobView]  # the job with the fault, then the undisturbed one
    problems: Sequence[str]
    restored: Sequence[str]
    compared: Comparison
    score: Score

    @property
    def verdict(self) -> str:
        return "failed" if self.problems else "passed"

    def sentence(self, steps: int) -> str:
        seconds, redone = self.score.seconds, self.score.redone
        recovery = "no step after the fault"
        if seconds is not None:
            recovery = (
                f"the next step {seconds:.1f} s after the {self.fault.value}, {counted(redone or 0, 'step')} repeated"
            )
        curves = f"largest difference of the curves {self.compared.largest:.3g} in {counted(steps, 'step')}"
        return f"drill {self.verdict}: {recovery}, {curves}"

    def document(self) -> dict[str, object]:
        return {
            "verdict": self.verdict,
            "fault": self.fault.value,
            "problems": list(self.problems),
            "jobs": [job.id for job in self.jobs],
            "recovered": self.score.seconds is not None and self.jobs[0].state == "SUCCEEDED",
            "seconds_to_next_step": self.score.seconds,
            "steps_redone": self.score.redone,
            "restored": list(self.restored),
            "largest_difference": self.compared.largest,
            "at_step": self.compared.step,
            "loss_fallen": self.compared.fallen,
        }


def inject(client: Client, job_id: str, fault: Fault, *, at_step: int) -> None:
    """Inject the fault once the job waits at its step. Cancels the job if that fails. Raises Refused."""
    try:
        _await(client, job_id, at_step)
        client.chaos(job_id, fault.value)
        if fault is Fault.CORRUPT_SNAPSHOT:  # it has an effect only at a restore
            _await_injection(client, job_id)
            client.chaos(job_id, Fault.KILL.value)
    except OrchestratorError:
        client.cancel(job_id)
        raise


def _await(client: Client, job_id: str, step: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (job := client.job(job_id)).step is None or job.step < step:
        if job.ended:
            raise Refused(f"{job_id} ended {job.state} before the fault: {job.reason}")
        if time.monotonic() > deadline and job.state == "RUNNING":
            raise Refused(f"{job_id} did not reach step {step} within {_PATIENCE_S:.0f} s")
        time.sleep(_LOOK_EVERY_S)


def _await_injection(client: Client, job_id: str) -> None:
    """Raises Refused."""
    deadline = time.monotonic() + _PATIENCE_S
    while not any(event.kind == EventKind.CHAOS_INJECTED.value for event in client.events(job_id)):
        if time.monotonic() > deadline:
            raise Refused(f"no agent of {job_id} reported the fault")
        time.sleep(_LOOK_EVERY_S)


def judge(
    client: Client, jobs: Sequence[JobView], fault: Fault, *, at_step: int, steps: int, tolerance: float
) -> DrillVerdict:
    problems = [f"{job.id} ended {job.state}: {job.reason}" for job in jobs if job.state != "SUCCEEDED"]
    events = list(client.events(jobs[0].id))
    measured = [client.metrics(job.id, names="loss", points=MOST_STEPS) for job in jobs]
    restored = [event.sentence for event in events if event.kind == EventKind.RESTORED.value]
    strike = find_strike(events, fault, at_step=at_step)
    score = Score(seconds=None, redone=None)
    if strike is None:
        problems.append(f"{jobs[0].id} reports no {fault.value}")
    else:
        score = score_run(strike, _steps_of(measured[0]), ends_generation=fault in _ENDING)
        if score.seconds is None:
            problems.append(f"{jobs[0].id} completed no step after the {fault.value}")
    if fault in _ENDING and not restored:
        problems.append(f"{jobs[0].id} did not restore a snapshot")
    compared = compare_curves(*(_curve_of(each) for each in measured), steps=steps)
    problems += compared.problems(tolerance=tolerance)
    return DrillVerdict(fault=fault, jobs=jobs, problems=problems, restored=restored, compared=compared, score=score)


def find_strike(events: Sequence[EventView], fault: Fault, *, at_step: int) -> Strike | None:
    """Find when the fault hit and after how many steps, from the agents' events or the failures that followed.

    The job had completed at least `at_step` steps by then. A failed worker may report more.
    """
    kinds = (EventKind.CHAOS_INJECTED.value, EventKind.WORKER_FAILED.value)
    marks = [event for event in events if event.kind in kinds and event.attempt is not None]
    if fault is Fault.CORRUPT_SNAPSHOT:
        marks = [event for event in marks if event.evidence.get("fault") != fault.value]
    if not marks:
        return None
    first = min(marks, key=lambda event: event.at)
    mine = [event for event in marks if (event.attempt, event.generation) == (first.attempt, first.generation)]
    made = [step for event in mine if isinstance(step := event.evidence.get("step"), int)]
    return Strike(at=first.at, attempt=first.attempt or 0, generation=first.generation or 0, step=max([at_step, *made]))


def _steps_of(measured: MetricsView) -> list[StepDone]:
    rows = zip(measured.steps, measured.at, measured.attempts, measured.generations, strict=True)
    return [StepDone(step=step, at=at, attempt=attempt, generation=number) for step, at, attempt, number in rows]


def _curve_of(measured: MetricsView) -> dict[int, float]:
    losses = zip(measured.steps, measured.series.get("loss", []), strict=False)
    return {step: loss for step, loss in losses if loss is not None}
