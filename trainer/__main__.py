"""Run `python -m trainer --config '{"preset": "nano"}'` on each rank. `--config @file` reads a file.

Exit codes: 0 finished, 1 an error of the run (one line says which), 2 a wrong configuration,
143 stopped by SIGTERM after a snapshot.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.contract.config import ConfigError, TrainerConfig, parse_config
from trainer.contract.env import WorkerPlace, parse_place
from trainer.elastic.workers.reentry import Reentry, open_reentry, train_again
from trainer.errors import TrainerError
from trainer.loop.out_of_memory import explained_shortage
from trainer.train import run
from trainer.worker.signals import StopFlag


def main(argv: list[str] | None = None) -> int:
    stop = StopFlag()
    stop.install()
    parser = argparse.ArgumentParser(prog="python -m trainer")
    parser.add_argument("--config", required=True, help="the configuration as JSON, or @file")
    # Old launchers add this flag. The environment has the same value.
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    try:
        config, place = read_config(arguments.config), parse_place(os.environ)
    except ValueError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    try:
        return _recorded_run(config, place, stop) or 0
    except TrainerError as error:
        print(f"trainer: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1


def read_config(text: str) -> TrainerConfig:
    """Parse `--config`. Raises ConfigError with a message of one line."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise ConfigError("--config", f"{text[1:]} cannot be read: {error.strerror}") from error
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError("--config", f"is not JSON: {error}; @FILE reads it from a file") from error
    if not isinstance(document, dict):
        raise ConfigError("--config", "is not a JSON object")
    return parse_config(document)


@record
def _recorded_run(config: TrainerConfig, place: WorkerPlace, stop: StopFlag) -> int:
    """Train in one generation after another, until training ends or this process has to.

    `record` leaves the traceback in TORCHELASTIC_ERROR_FILE for the agent, and turns on faulthandler.
    """
    reentry: Reentry | None = None

    def train(place: WorkerPlace) -> int:
        with explained_shortage(config, place):
            return run(config, place, stop, reentry)

    def forget() -> None:
        if config.compile != "none":
            torch.compiler.reset()  # the same code is compiled only a few times, and then not at all

    if config.keep_survivors:
        reentry = open_reentry(place, has_device=torch.cuda.is_available())
    if reentry is None:
        return train(place)
    return train_again(train, place, reentry, is_stopped=lambda: stop.is_set, forget=forget)


def leave(program: Callable[[], int]) -> NoReturn:
    """Run a worker's program and end the process with its exit code.

    Everything is committed and closed by then. To shut down an interpreter with torch takes seconds on a busy node.
    """
    try:
        exit_code = program()
    except Exception:  # noqa: BLE001  # print the traceback as the interpreter would
        sys.excepthook(*sys.exc_info())
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    leave(main)
