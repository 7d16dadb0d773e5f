"""Small jobs in a real job's place: its drill and its preflight have the same topology, resources and environment."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.spec import Budgets, JobSpec, Snapshot, Supervise
from trainer.contract.config import TrainerConfig

_NAME_LENGTH = 63
_SAVES = 6  # of a drill: the kill comes between two of them, so that some steps are lost and made again


def build_drill(spec: JobSpec, *, steps: int) -> tuple[JobSpec, JobSpec]:
    """The job that is killed once, and the same undisturbed. Raises InvalidSpec for a program of the user's own."""
    config = spec.trainer_config()
    if config is None:
        raise InvalidSpec(
            [FieldProblem("/run", "a drill needs run.trainer: nothing is known of a program's own curve")]
        )
    interval = max(1, steps // _SAVES)
    config = replace(config, steps=steps, snapshot_interval=str(interval))
    kill_at = min(steps - 1, interval * (_SAVES // 2) + max(1, interval // 2))
    small = spec.model_copy(update={"snapshot": Snapshot(dir=spec.snapshot.dir, interval=str(interval))})
    disturbed = _run_module(small, "drill", "trainer.drill", ("--kill-at", str(kill_at), *_config(config)))
    trainer = {**(spec.run.trainer or {}), "steps": steps}
    run = spec.run.model_copy(update={"trainer": trainer})
    return disturbed, small.model_copy(
        update={"name": _name(spec, "drill-undisturbed"), "run": run, "after": (), "notify": ()}
    )


def build_preflight(spec: JobSpec) -> JobSpec:
    """The checks; with the bundled trainer also three steps of its own configuration."""
    config = spec.trainer_config()
    trial = _run_module(spec, "preflight", "trainer.preflight", () if config is None else _config(config))
    once = Supervise(budgets=Budgets(application=0), startup_timeout_s=spec.supervise.startup_timeout_s)
    return trial.model_copy(update={"supervise": once})


def _run_module(spec: JobSpec, suffix: str, module: str, args: tuple[str, ...]) -> JobSpec:
    changes = {"trainer": None, "script": None, "command": None, "module": module, "args": args}
    run = spec.run.model_copy(update=changes)
    return spec.model_copy(update={"name": _name(spec, suffix), "run": run, "after": (), "notify": ()})


def _config(config: TrainerConfig) -> tuple[str, str]:
    return "--config", json.dumps(asdict(config), sort_keys=True)


def _name(spec: JobSpec, suffix: str) -> str:
    return f"{spec.name[: _NAME_LENGTH - len(suffix) - 1].rstrip('-')}-{suffix}"
