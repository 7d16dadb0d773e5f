"""The drill and the preflight of a job: small jobs with its topology, resources and environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.specs.spec import Budgets, JobSpec, Snapshot, Supervise, add_suffix
from trainer.contract.chaos import Fault
from trainer.contract.config import TrainerConfig, render_config

LABEL = "drill"  # the label of a drill's jobs; its value is the name of the real job
_PRIORITY = -100  # the lowest, so that real jobs go first
_SAVES = 6  # snapshots of a drill; the fault comes between two of them, so that some steps are repeated


def build_drill(spec: JobSpec, *, steps: int, fault: Fault = Fault.KILL) -> tuple[JobSpec, JobSpec]:
    """Return the job with one fault, and the same job without it. Raises InvalidSpec unless the spec has run.trainer.

    For a kill, the job kills its own worker, so the right to submit is enough. For any other fault, the job waits until
    the caller injects it.
    """
    config = spec.trainer_config()
    if config is None:
        raise InvalidSpec([FieldProblem("/run", "a drill needs run.trainer: the loss of another program is not known")])
    interval = max(1, steps // _SAVES)
    # Copies in memory would be restored in place of the snapshots that the drill is to prove.
    config = replace(config, steps=steps, snapshot_interval=str(interval), snapshot_memory="off")
    strike_at = min(steps - 1, interval * (_SAVES // 2) + max(1, interval // 2))
    how = "--kill-at" if fault is Fault.KILL else "--hold-at"
    small = spec.model_copy(
        update={
            "snapshot": Snapshot(dir=spec.snapshot.dir, interval=str(interval), memory="off"),
            "priority": _PRIORITY,
            "labels": {**spec.labels, LABEL: spec.name},
        }
    )
    disturbed = _run_module(small, "drill", "trainer.checks.drill", (how, str(strike_at), *_config(config)))
    trainer = {**(spec.run.trainer or {}), "steps": steps}
    run = spec.run.model_copy(update={"trainer": trainer})
    return disturbed, small.model_copy(
        update={"name": add_suffix(spec.name, "drill-undisturbed"), "run": run, "after": (), "notify": ()}
    )


def build_preflight(spec: JobSpec) -> JobSpec:
    """Return the job that runs the checks, and with run.trainer also three steps of its configuration."""
    config = spec.trainer_config()
    trial = _run_module(spec, "preflight", "trainer.checks.preflight", () if config is None else _config(config))
    once = Supervise(budgets=Budgets(application=0, launch=0), startup_timeout_s=spec.supervise.startup_timeout_s)
    return trial.model_copy(update={"supervise": once})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One step of a run, and the generation that completed it last."""

    step: int
    at: datetime
    attempt: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault in a run: its generation, and the last step that any rank had completed by then."""

    at: datetime
    attempt: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`seconds` from the fault to the next step, and how many steps were repeated. None if no step followed."""

    seconds: float | None
    redone: int | None


def score_run(strike: Strike, steps: Sequence[StepDone], *, ends_generation: bool) -> Score:
    """Score a run. If the fault ends its generation (`ends_generation`), only steps of later ones count."""
    term = (strike.attempt, strike.generation)
    after = [
        each for each in steps if ((each.attempt, each.generation) > term if ends_generation else each.at > strike.at)
    ]
    if not after:
        return Score(seconds=None, redone=None)
    first = min(after, key=lambda each: each.at)
    redone = strike.step - min(each.step for each in after) + 1
    return Score(seconds=max(0.0, (first.at - strike.at).total_seconds()), redone=max(0, redone))


def exclude_nodes(spec: JobSpec, nodes: Collection[str]) -> JobSpec:
    """Return the same job, which also avoids these nodes."""
    exclude = tuple(dict.fromkeys((*spec.placement.exclude, *nodes)))
    return spec.model_copy(update={"placement": spec.placement.model_copy(update={"exclude": exclude})})


def _run_module(spec: JobSpec, suffix: str, module: str, args: tuple[str, ...]) -> JobSpec:
    changes = {"trainer": None, "script": None, "command": None, "module": module, "args": args}
    run = spec.run.model_copy(update=changes)
    return spec.model_copy(update={"name": add_suffix(spec.name, suffix), "run": run, "after": (), "notify": ()})


def _config(config: TrainerConfig) -> tuple[str, str]:
    return "--config", json.dumps(render_config(config), sort_keys=True)
