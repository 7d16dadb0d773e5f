"""A search with Optuna's ask-and-tell: each trial is a job, and two run at a time.

    pip install optuna
    python optuna_search.py --trials 6

The service is found as the command line finds it. A trial whose job fails counts as failed; the search continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import optuna

from orchestrator.client import Client, connect
from orchestrator.domain.job.job import JobState


def submit(client: Client, trial: optuna.Trial, steps: int) -> str:
    trainer = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "steps": steps,
        "global_batch": trial.suggest_categorical("global_batch", [4, 8]),
        "seq_len": 32,
    }
    spec = {
        "name": f"search-{trial.number}",
        "labels": {"study": "search"},
        "run": {"trainer": trainer, "workdir": str(Path.cwd())},
    }
    return client.submit(spec).id


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--trials", type=int, default=6)
    arguments.add_argument("--at-once", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=20)
    options = arguments.parse_args()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    with connect() as client:
        for begin in range(0, options.trials, options.at_once):
            trials = [study.ask() for _ in range(min(options.at_once, options.trials - begin))]
            jobs = [submit(client, trial, options.steps) for trial in trials]
            for trial, job_id in zip(trials, jobs, strict=True):
                job = client.wait(job_id)
                failed = job.state is not JobState.SUCCEEDED or job.loss is None
                study.tell(trial, None if failed else job.loss, optuna.trial.TrialState.FAIL if failed else None)
                print(f"{job.id} {job.state} loss {job.loss} {trial.params}")
    print(f"best: loss {study.best_value:.4f} {study.best_params}")


if __name__ == "__main__":
    main()
