"""The main job, end to end: a training job survives three `kill -9` and finishes on the curve of an undisturbed run.

`make demo` runs this. It starts the service on a free loopback port with SQLite in a temporary folder, submits
docs/examples/stdlib-gpt.yaml over REST, kills a worker, then the service, then the whole replica, and at last runs
the job again undisturbed. Exit 0 when every claim held. KEEP=1 leaves the service up.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orchestrator.client import Client
from orchestrator.wire import JobView
from trainer.contract.clock import parse_time

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "stdlib-gpt.yaml"
TOLERANCE = 1e-6  # between the loss curves, in nats, at the same world size
LEARNED = 1.0  # by how many nats the loss must fall
PATIENCE_S = 240.0  # for one run

console = Console()


class DemoFailed(Exception):
    """A claim of the demo did not hold; the text says which."""


@dataclass(frozen=True)
class Step:
    """A completed optimizer step of rank 0, as its replica's journal tells."""

    at: float  # seconds since the epoch
    attempt: int
    generation: int
    step: int
    loss: float


@dataclass(frozen=True)
class Fault:
    name: str
    at_step: int
    strike: Callable[[Stage, JobView], None]


@dataclass(frozen=True)
class Struck:
    fault: Fault
    at: float
    attempt: int
    generation: int


class Stage:
    """The service under test, in a run directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process: subprocess.Popen[bytes] | None = None

    def start_service(self) -> None:
        (self.root / "service.json").unlink(missing_ok=True)
        with (self.root / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.cli", "serve"],
                env={**_outer_environment(), "ORCHESTRATOR_ROOT": str(self.root), "ORCHESTRATOR_PORT": "0"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                raise DemoFailed(f"the service ended at once:\n{(self.root / 'service.log').read_text()}")
            with contextlib.suppress(OSError, ValueError, KeyError):
                self.url = json.loads((self.root / "service.json").read_text())["url"]
                return
            time.sleep(0.05)
        raise DemoFailed(f"the service was not ready within 30 s:\n{(self.root / 'service.log').read_text()}")

    def kill_service(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop_service(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def kill_processes(self) -> None:
        """End every agent and worker that carries this run directory's mark."""
        for _ in range(20):
            pids = [pid for pid, _ in self.marked()]
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def marked(self) -> Iterator[tuple[int, dict[str, str]]]:
        mark = f"ORCHESTRATOR_JOB_DIR={self.root}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                pairs = (entry / "environ").read_bytes().split(b"\0")
                if any(pair.startswith(mark) for pair in pairs):
                    split = (pair.decode(errors="replace").partition("=") for pair in pairs)
                    yield int(entry.name), {name: value for name, _, value in split}

    def steps(self, job_id: str) -> list[Step]:
        """Every step that rank 0 of the job has made, in the order of time, steps done again included."""
        found = []
        for journal in (self.root / job_id / "attempts").glob("*/replica-0/*/progress.jsonl"):
            attempt = int(journal.parts[-4])
            for line in journal.read_text().splitlines():
                told = json.loads(line)
                if told["rank"] == 0 and "loss" in told.get("metrics", {}):
                    at = parse_time(told["at"]).timestamp()
                    found.append(Step(at, attempt, told["generation"], told["step"], told["metrics"]["loss"]))
        return sorted(found, key=lambda step: step.at)


def kill_worker(stage: Stage, job: JobView) -> None:
    """`kill -9` for the worker of local rank 1."""
    victims = [pid for pid, environment in stage.marked() if environment.get("LOCAL_RANK") == "1"]
    _kill(victims[:1], "worker 1")


def kill_service(stage: Stage, job: JobView) -> None:
    """`kill -9` for the service, and a new one."""
    stage.kill_service()
    stage.start_service()


def kill_replica(stage: Stage, job: JobView) -> None:
    """`kill -9` for the agent and all its workers, as a node does that loses power."""
    _kill([pid for pid, _ in stage.marked()], "the replica")


FAULTS = (
    Fault("a worker is killed", 60, kill_worker),
    Fault("the service is killed and started again", 135, kill_service),
    Fault("the whole replica is killed, agent and workers", 210, kill_replica),
)


def main() -> int:
    keep = bool(os.environ.get("KEEP"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="orchestrator-demo-")).resolve()
    stage = Stage(root)
    try:
        started = time.monotonic()
        stage.start_service()
        console.print(f"The service is at [bold]{stage.url}[/], its run directory is {root}")
        _play(stage)
        console.print(f"[green]Every claim held.[/] {time.monotonic() - started:.0f} s in all.")
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running")
        keep = False
        return 130
    except DemoFailed as error:
        console.print(f"[red]The demo failed:[/] {error}")
        keep = False
        return 1
    finally:
        _leave(stage, keep=keep)
    return 0


def _play(stage: Stage) -> None:
    spec = yaml.safe_load(EXAMPLE.read_text())
    console.rule("with three faults")
    disturbed, struck = _run(stage, spec, FAULTS)
    _print_faults(stage, disturbed, struck)
    console.rule("undisturbed")
    undisturbed, _ = _run(stage, spec | {"name": spec["name"] + "-undisturbed"}, ())
    _compare(stage, disturbed, undisturbed)


def _run(stage: Stage, spec: dict[str, object], faults: tuple[Fault, ...]) -> tuple[JobView, list[Struck]]:
    with Client(stage.url) as client:
        job = client.submit(spec)
    pending, struck, deadline = list(faults), [], time.monotonic() + PATIENCE_S
    with _bar() as bar:
        task = bar.add_task(job.id, total=None, state=job.state, loss="")
        while not job.state.terminal:
            if time.monotonic() > deadline:
                raise DemoFailed(f"{job.id} was not done within {PATIENCE_S:.0f} s: {job.state}, {job.reason}")
            if pending and job.state == "RUNNING" and (job.step or 0) >= pending[0].at_step:
                struck.append(_strike(stage, job, pending.pop(0), bar))
            time.sleep(0.2)
            with Client(stage.url) as client:
                job = client.job(job.id)
            loss = "" if job.loss is None else f"loss {job.loss:.3f}"
            bar.update(task, completed=job.step or 0, total=job.total_steps, state=job.state, loss=loss)
    if job.state != "SUCCEEDED":
        raise DemoFailed(f"{job.id} ended {job.state}: {job.reason}")
    if pending:
        raise DemoFailed(f"{job.id} was done before {pending[0].name}")
    return job, struck


def _strike(stage: Stage, job: JobView, fault: Fault, bar: Progress) -> Struck:
    bar.console.print(f"[yellow]step {job.step}: {fault.name}[/]")
    last = stage.steps(job.id)[-1]
    at = time.time()
    fault.strike(stage, job)
    return Struck(fault, at, last.attempt, last.generation)


def _print_faults(stage: Stage, job: JobView, struck: list[Struck]) -> None:
    table = Table("fault", "what was noticed", "next step after", "steps re-done")
    steps = stage.steps(job.id)
    for index, one in enumerate(struck):
        until = struck[index + 1].at if index + 1 < len(struck) else float("inf")
        seconds, redone = _cost(steps, one)
        table.add_row(one.fault.name, _noticed(stage, job, one.at, until), f"{seconds:.2f} s", str(redone))
    console.print(table)


def _cost(steps: list[Step], struck: Struck) -> tuple[float, int]:
    """Seconds to the next step that training made, and how many steps it made twice."""
    before = [step for step in steps if step.at <= struck.at]
    after = [step for step in steps if step.at > struck.at]
    if struck.fault.strike is not kill_service:
        # What was under way in the killed world does not count as training again.
        old = (struck.attempt, struck.generation)
        before = [step for step in steps if (step.attempt, step.generation) <= old]
        after = [step for step in steps if (step.attempt, step.generation) > old]
    if not after:
        raise DemoFailed(f"no step was made after {struck.fault.name}")
    return after[0].at - struck.at, max(0, before[-1].step - after[0].step + 1)


def _noticed(stage: Stage, job: JobView, since: float, until: float) -> str:
    telling = ("worker.failed", "restart.in_place", "attempt.state", "restored")
    with Client(stage.url) as client:
        events = [e for e in client.events(job.id) if since <= e.at.timestamp() < until and e.kind in telling]
    return (
        "\n".join(f"+{e.at.timestamp() - since:.2f} s {e.sentence}" for e in events[:4]) or "nothing: training went on"
    )


def _compare(stage: Stage, disturbed: JobView, undisturbed: JobView) -> None:
    """Both curves hold every step; they differ by rounding at most; the loss has fallen."""
    curves = []
    for job in (disturbed, undisturbed):
        curve = {step.step: step.loss for step in stage.steps(job.id)}  # the last that made a step counts
        if sorted(curve) != list(range(1, (job.total_steps or 0) + 1)):
            raise DemoFailed(f"{job.id} has no loss for some of its steps")
        curves.append(curve)
    largest = max(abs(curves[0][step] - curves[1][step]) for step in curves[0])
    fallen = curves[0][1] - curves[0][max(curves[0])]
    console.print(f"loss {curves[0][1]:.3f} -> {curves[0][max(curves[0])]:.3f}, fallen by {fallen:.3f} nats")
    console.print(f"largest difference of the two loss curves: {largest:.3g} (at most {TOLERANCE:g})")
    if fallen <= LEARNED:
        raise DemoFailed(f"the loss fell by {fallen:.3f} nats, not by more than {LEARNED:g}")
    if largest > TOLERANCE:
        raise DemoFailed(f"the curves differ by {largest:.3g}")


def _leave(stage: Stage, *, keep: bool) -> None:
    """Leave nothing running, whatever happens; or, if asked to, the service."""
    if keep:
        console.print(
            f"The service stays up at [bold]{stage.url}[/] (process {stage.process.pid if stage.process else '?'})"
        )
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stage.stop_service()
    stage.kill_processes()
    shutil.rmtree(stage.root, ignore_errors=True)
    signal.signal(signal.SIGINT, previous)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[state]}"),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _kill(pids: list[int], what: str) -> None:
    if not pids:
        raise DemoFailed(f"found no process of {what} to kill")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _outer_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}


if __name__ == "__main__":
    sys.exit(main())
