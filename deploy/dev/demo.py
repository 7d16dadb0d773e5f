"""`make demo`: a training job survives three `kill -9` and ends with the loss curve of an undisturbed run.

It starts the service on a free loopback port with SQLite in a temporary folder and submits
docs/examples/stdlib-gpt.yaml over REST. It kills a worker, then the service, then the whole replica. Then it runs
the job again undisturbed. Exit status 0: every claim held. KEEP=1 leaves the service running.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.text import Text

from deploy.dev.killing import kill_at_once
from deploy.dev.service import Marked, ServiceFailed, ThrowawayService
from orchestrator.cli.loss_curves import compare_curves
from orchestrator.client import Client
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import OrchestratorError
from orchestrator.wire.job_views import JobView
from trainer.contract.clock import parse_time

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "stdlib-gpt.yaml"
TOLERANCE = 1e-6  # between the loss curves, in nats, at the same world size
LEAST_FALL = 1.0  # nats by which the loss must fall
PATIENCE_S = 240.0  # time without a step, also on a busy machine

console = Console()


class DemoFailed(Exception):
    """A claim of the demo did not hold. The message says which."""


@dataclass(frozen=True)
class Step:
    """A completed optimizer step of rank 0, from its replica's journal."""

    at: float  # seconds since the epoch
    attempt: int
    generation: int
    step: int
    loss: float


@dataclass(frozen=True)
class Fault:
    name: str
    at_step: int
    inject: Callable[[ThrowawayService], None]
    ends_group: bool  # whether the worker group dies and must form again


@dataclass(frozen=True)
class InjectedFault:
    fault: Fault
    at: float
    took_s: float  # duration of the injection; for the service, until it was back
    attempt: int
    generation: int


def steps_of(service: ThrowawayService, job_id: str) -> list[Step]:
    """Return every step of rank 0 in order of time, including repeated steps."""
    found = []
    for journal in (service.root / job_id / "attempts").glob("*/replica-0/*/progress.jsonl"):
        attempt = int(journal.parts[-4])
        for line in journal.read_text().splitlines():
            reported = json.loads(line)
            if reported["rank"] == 0 and "loss" in reported.get("metrics", {}):
                at = parse_time(reported["at"]).timestamp()
                found.append(Step(at, attempt, reported["generation"], reported["step"], reported["metrics"]["loss"]))
    return sorted(found, key=lambda step: step.at)


def kill_worker(service: ThrowawayService) -> None:
    """Kill the worker of local rank 1."""
    _kill([process for process in service.processes() if process.local_rank == 1][:1], "worker 1")


def kill_service(service: ThrowawayService) -> None:
    """Kill the service and start a new one."""
    service.kill()
    service.start()


def kill_replica(service: ThrowawayService) -> None:
    """Kill the agent and all its workers, as in a power failure of their node."""
    _kill(list(service.processes()), "the replica")


FAULTS = (
    Fault("a worker is killed", 60, kill_worker, ends_group=True),
    Fault("the service is killed and started again", 135, kill_service, ends_group=False),
    Fault("the whole replica is killed, agent and workers", 210, kill_replica, ends_group=True),
)


def main() -> int:
    keep = bool(os.environ.get("KEEP"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    service = ThrowawayService(Path(tempfile.mkdtemp(prefix="orchestrator-demo-")))
    status = 1
    try:
        started = time.monotonic()
        service.start()
        console.print(f"The service is at [bold]{service.url}[/], its run directory is {service.root}")
        _play(service)
        console.print(f"[green]Every claim held.[/] {time.monotonic() - started:.0f} s in all.")
        status = 0
    except KeyboardInterrupt:
        status = 130
    except (DemoFailed, ServiceFailed, OrchestratorError) as error:
        console.print(f"[red]The demo failed:[/] {error}")
    finally:
        _leave(service, keep=keep and status == 0)
    if status == 130:
        console.print("\ninterrupted; nothing is left running")
    return status


def _play(service: ThrowawayService) -> None:
    spec = yaml.safe_load(EXAMPLE.read_text())
    console.rule("with three faults")
    disturbed, injected = _run(service, spec, FAULTS)
    _print_faults(service, disturbed, injected)
    console.rule("undisturbed")
    undisturbed, _ = _run(service, spec | {"name": spec["name"] + "-undisturbed"}, ())
    _compare(service, disturbed, undisturbed)


def _run(
    service: ThrowawayService, spec: dict[str, object], faults: tuple[Fault, ...]
) -> tuple[JobView, list[InjectedFault]]:
    with Client(service.url) as client:
        job: JobView = client.submit(spec)
    pending, injected, deadline = list(faults), [], time.monotonic() + PATIENCE_S
    reached = job.step
    with console.status(job.id) as status:
        while not job.state.terminal:
            if time.monotonic() > deadline:
                raise DemoFailed(f"{job.id} completed no step for {PATIENCE_S:.0f} s: {job.state}, {job.reason}")
            if pending and job.state == "RUNNING" and (job.step or 0) >= pending[0].at_step:
                injected.append(_inject(service, job, pending.pop(0)))
            time.sleep(0.2)
            with Client(service.url) as client:
                job = client.job(job.id)
            if job.step != reached:
                reached, deadline = job.step, time.monotonic() + PATIENCE_S
            if job.step is not None and job.loss is not None:  # a new attempt has no report yet: keep the last line
                status.update(f"{job.id}  {job.state}  step {job.step}/{job.total_steps}  loss {job.loss:.3f}")
    if job.state != "SUCCEEDED":
        raise DemoFailed(f"{job.id} ended {job.state}: {job.reason}")
    if pending:
        raise DemoFailed(f"{job.id} ended before this fault: {pending[0].name}")
    return job, injected


def _inject(service: ThrowawayService, job: JobView, fault: Fault) -> InjectedFault:
    console.print(f"[yellow]step {job.step}: {fault.name}[/]")
    last = steps_of(service, job.id)[-1]
    at = time.time()
    fault.inject(service)
    return InjectedFault(fault, at, time.time() - at, last.attempt, last.generation)


def _print_faults(service: ThrowawayService, job: JobView, injected: list[InjectedFault]) -> None:
    steps = steps_of(service, job.id)
    for index, one in enumerate(injected):
        until = injected[index + 1].at if index + 1 < len(injected) else float("inf")
        seconds, redone = _cost(steps, one)
        cost = f"next step after {seconds:.2f} s, {counted(redone, 'step')} repeated"
        print_fault(console, one.fault.name, cost, _noticed(service, job, one, until))


def print_fault(output: Console, fault: str, cost: str, events: Sequence[tuple[float, str]]) -> None:
    """Print a fault, its cost, and the events with their seconds since the fault, one line each, cut at the width."""
    for line in (f"{fault}:", f"  {cost}", *(f"{f'+{after_s:.2f}':>8} s  {sentence}" for after_s, sentence in events)):
        output.print(Text(line), no_wrap=True, overflow="ellipsis")


def _cost(steps: list[Step], injected: InjectedFault) -> tuple[float, int]:
    """Return the seconds until the next step, and how many steps were repeated."""
    before = [step for step in steps if step.at <= injected.at]
    after = [step for step in steps if step.at > injected.at]
    if injected.fault.ends_group:
        # A step of the killed group does not count as recovery.
        old = (injected.attempt, injected.generation)
        before = [step for step in steps if (step.attempt, step.generation) <= old]
        after = [step for step in steps if (step.attempt, step.generation) > old]
    if not after:
        raise DemoFailed(f"no step followed this fault: {injected.fault.name}")
    return after[0].at - injected.at, max(0, before[-1].step - after[0].step + 1)


def _noticed(service: ThrowawayService, job: JobView, injected: InjectedFault, until: float) -> list[tuple[float, str]]:
    """Return the job's event sentences, each with its seconds since the fault."""
    if not injected.fault.ends_group:
        return [(injected.took_s, "a new service watches the attempt; training never paused")]
    kinds = ("worker.failed", "restart.in_place", "job.state", "restored")
    with Client(service.url) as client:
        found = [event for event in client.events(job.id) if event.kind in kinds]
    reported = [event for event in found if injected.at <= event.at.timestamp() < until]
    # The events up to the restore.
    end = next((index for index, event in enumerate(reported) if event.kind == "restored"), len(reported))
    return [(event.at.timestamp() - injected.at, event.sentence) for event in reported[: end + 1]]


def _compare(service: ThrowawayService, disturbed: JobView, undisturbed: JobView) -> None:
    """Check that both curves have every step, differ only by rounding, and fall."""
    # The last run of a repeated step counts.
    curves = [{step.step: step.loss for step in steps_of(service, job.id)} for job in (disturbed, undisturbed)]
    compared = compare_curves(*curves, steps=disturbed.total_steps or 0)
    console.print(f"the loss has fallen by {compared.fallen:.3f} nats")
    console.print(f"largest difference of the two loss curves: {compared.largest:.3g} (at most {TOLERANCE:g})")
    for problem in compared.problems(tolerance=TOLERANCE, least_fall=LEAST_FALL):
        raise DemoFailed(problem)


def _leave(service: ThrowawayService, *, keep: bool) -> None:
    """End the service and its jobs, unless `keep` leaves the service running."""
    if keep:
        console.print(f"The service stays up at [bold]{service.url}[/], its run directory is {service.root}")
        console.print(f"    export ORCHESTRATOR_URL={service.url}", highlight=False)
        console.print(f"    kill {service.pid} && rm -r {service.root}      # when you are done", highlight=False)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    service.end()
    shutil.rmtree(service.root, ignore_errors=True)


def _kill(processes: list[Marked], what: str) -> None:
    if not processes:
        raise DemoFailed(f"found no process of {what}")
    kill_at_once(process.pid for process in processes)


if __name__ == "__main__":
    sys.exit(main())
