"""The first milliseconds of a worker: die with the agent, write to the worker's own log, become the worker.

Run as `python -I -S child.py [--parent PID] [--local-rank N] [--plain] COMMAND ...`. `--plain` leaves the environment
and the output alone. This file imports only the standard library, so that it starts in milliseconds from any folder.
Processes that the fork server forks take the same steps.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_EXIT_CANNOT_START = 127  # as in a shell
_EXIT_ORPHAN = 137


def main(argv: list[str]) -> None:
    options, command = _split(argv)
    die_with_parent(int(options.get("--parent", os.getppid())))
    if "--plain" not in options:
        prepare_environment()
        redirect(options.get("--local-rank") or os.environ.get("LOCAL_RANK", "0"))
    execute(command)


def _split(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0] in ("--parent", "--local-rank", "--plain"):
        name = rest.pop(0)
        options[name] = "" if name == "--plain" else rest.pop(0)
    if not rest:
        raise SystemExit("child.py: no command")
    return options, rest


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent's thread ends (prctl(2); kept across execve). Exit if the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_EXIT_ORPHAN)


def prepare_environment() -> None:
    # As torchrun does: otherwise each of several workers would start as many threads as the node has cores.
    if os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def redirect(local_rank: str) -> str | None:
    """Send stdout and stderr to the worker's log and return its folder. Outside a job do nothing and return None.

    O_APPEND lets the agent truncate the log while the worker writes to it.
    """
    replica_dir = os.environ.get("ORCHESTRATOR_REPLICA_DIR")
    if not replica_dir:
        return None
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    generation = os.environ.get("ORCHESTRATOR_GENERATION") or str(restarts + 1)
    folder = f"{replica_dir}/g{generation}/local-{local_rank}"
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103  # pathlib would double the start-up time
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ["ORCHESTRATOR_GENERATION"] = generation
    os.environ["TORCHELASTIC_ERROR_FILE"] = f"{folder}/error.json"
    return folder


def execute(command: Sequence[str]) -> NoReturn:
    """Become the command. If that fails, print why and exit with 127."""
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"can't open file or command {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_EXIT_CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
