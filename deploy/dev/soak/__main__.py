"""Real training jobs under random faults, on two services and PostgreSQL. Exit status 1: a promise was broken."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from deploy.dev.crash_points.verdict import wrong_accounts
from deploy.dev.postgres import NoPostgres, running_postgres
from deploy.dev.service import ServiceFailed
from deploy.dev.soak.faults import Faults, InjectedFault
from deploy.dev.soak.stage import KINDS, Stage
from deploy.dev.soak.verdict import judge, wrong_ledgers, wrong_shares
from orchestrator.client import Client
from orchestrator.domain.accounting.breakdown import Grouping
from orchestrator.domain.errors import OrchestratorError
from orchestrator.wire.job_views import AttemptView, EventView

_PATIENCE_S = 900.0  # time for the jobs to end after the last fault
_SHORT = {"faults": 12, "minutes": 1.2, "steps": 300, "pause": 10.0}


class SoakFailed(Exception):
    """The soak could not be completed."""


class Soak:
    def __init__(self, stage: Stage, options: argparse.Namespace) -> None:
        self._stage = stage
        self._options = options
        self._dice = random.Random(options.seed)
        self._faults = Faults(stage, self._dice, pause_s=options.pause)
        self._started = time.monotonic()
        self.injected: list[InjectedFault] = []

    def play(self) -> None:
        for kind in KINDS:
            self._stage.submit(kind)
        self._watch(lambda: any(job.step for job in self._stage.jobs.values()), "the first step", _PATIENCE_S)
        mean_s = self._options.minutes * 60 / self._options.faults
        for kind in self._faults.plan(self._options.faults):
            until = time.monotonic() + min(3 * mean_s, self._dice.expovariate(1 / mean_s))
            self._watch(lambda until=until: time.monotonic() >= until, "the next fault", 3 * mean_s + 60, refill=True)
            self._strike(kind)
        self._faults.undo_due(everything=True)
        self._watch(self._over, "the end of all jobs", _PATIENCE_S)

    def _strike(self, kind: str) -> None:
        deadline = time.monotonic() + 120
        while (injected := self._faults.inject(kind)) is None:
            if time.monotonic() > deadline:
                raise SoakFailed(f"found no target for the fault: {kind}")
            self._pass_time(refill=True)
        self.injected.append(injected)
        number, seconds = len(self.injected), time.monotonic() - self._started
        print(f"{seconds:7.1f} s  {number:3}  {injected.kind:19} {injected.what}", flush=True)

    def _watch(self, holds, what: str, patience_s: float, *, refill: bool = False) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() > deadline:
                state = "; ".join(f"{job.id} {job.state} at {job.step}: {job.reason}" for job in self._live())
                raise SoakFailed(f"not within {patience_s:.0f} s: {what}; {state}")
            self._pass_time(refill=refill)

    def _pass_time(self, *, refill: bool) -> None:
        """Wait a moment and undo faults that are over. `refill`: submit a new job for each one that has ended."""
        time.sleep(0.3)
        self._faults.undo_due()
        self._stage.look()
        live = {job.name.rpartition("-")[0] for job in self._live()}
        for kind in KINDS:
            if refill and kind not in live:
                self._stage.submit(kind)

    def _live(self) -> list:  # type: ignore[type-arg]
        return [job for job in self._stage.jobs.values() if not job.ended]

    def _over(self) -> bool:
        return not self._live() and not self._faults.pending


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-soak-")).resolve()
    problems = ["the soak did not complete"]
    stage = None
    try:
        with running_postgres(durable=True) as server:
            stage = Stage(folder, server, steps=options.steps)
            with stage.set_up():
                if not stage.disk:
                    print("cannot mount a disk here, so the full disk is not tested")
                problems = _play(stage, options)
    except NoPostgres as error:
        problems = [str(error)]
    except (SoakFailed, ServiceFailed, OrchestratorError) as error:
        problems = [f"{type(error).__name__}: {error}"]
    except KeyboardInterrupt:
        problems = ["interrupted"]
    for problem in problems:
        print(f"BROKEN: {problem}", flush=True)
    if problems and stage is not None:
        shutil.copytree(stage.root, folder / "evidence", ignore=shutil.ignore_patterns("*.distcp", "ballast"))
    if stage is not None:
        stage.leave()
    if problems:
        print(f"evidence: {folder}")
        return 1
    shutil.rmtree(folder)
    print("Every promise held.")
    return 0


def _play(stage: Stage, options: argparse.Namespace) -> list[str]:
    started = time.monotonic()
    soak = Soak(stage, options)
    problems = []
    try:
        soak.play()
    except SoakFailed as error:
        problems.append(str(error))
    jobs = list(stage.jobs.values())
    reported = {job.id: stage.ask(partial(_history_of, job.id)) for job in jobs}
    attempts = {job_id: found for job_id, (found, _) in reported.items()}
    events = {job_id: found for job_id, (_, found) in reported.items()}
    problems += judge(stage.root, jobs, soak.injected)
    ledgers = [(job.id, stage.ask(partial(Client.goodput, job_id=job.id))) for job in jobs]
    problems += wrong_ledgers(ledgers)
    problems += wrong_shares(dict(ledgers), [stage.ask(partial(Client.shares, by=by)) for by in Grouping])
    problems += wrong_accounts({job.id: job for job in jobs}, attempts, events)
    problems += [f"process {one.pid} of {one.job_id} was left" for one in stage.processes()]
    made = sum(len(found) for found in attempts.values())
    seconds = time.monotonic() - started
    print(
        f"{len(soak.injected)} faults, {len(jobs)} jobs, {made} attempts, {seconds:.0f} s, seed {options.seed}",
        flush=True,
    )
    return problems


def _history_of(job_id: str, client: Client) -> tuple[list[AttemptView], list[EventView]]:
    return list(client.attempts(job_id)), list(client.events(job_id))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=25, help="time over which the faults are spread")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each job")
    parser.add_argument("--pause", type=float, default=60, metavar="SECONDS", help="how long a service is stopped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="12 faults in about two minutes")
    options = parser.parse_args()
    if options.short:
        vars(options).update(_SHORT)
    return options


if __name__ == "__main__":
    sys.exit(main())
