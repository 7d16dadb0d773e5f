"""The door through which torch's agent gets its workers from the nursery.

torch has none for another way to start a process: the name of the one that it knows is replaced meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, PContext, api
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.numa.binding import NumaOptions, _maybe_wrap_command_args_with_numa_binding

from trainer.elastic.nursery import ForkedProcess, Nursery

_DOOR = "get_subprocess_handler"


class OwnLogs(LogsSpecs):
    """For workers that open their logs and name their error files themselves (child.py).

    torch's own specifications would watch /dev/null with a thread for each stream, and every restart waits for those.
    """

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nowhere = dict.fromkeys(envs, "")
        return LogsDest(nowhere, dict(nowhere), {}, {}, dict(nowhere))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


class ForkedHandler:
    """What torch keeps of a worker: its `proc`, and how to signal it."""

    def __init__(self, process: ForkedProcess) -> None:
        self.proc = process

    def close(self, death_sig: signal.Signals | None = None) -> None:
        self.proc.send_signal(death_sig or signal.SIGTERM)


@contextmanager
def workers_from(nursery: Nursery, environ: Mapping[str, str]) -> Iterator[None]:
    """Within it torch starts workers from the nursery, each with these variables beside its own."""

    def start(
        entrypoint: str,
        args: tuple[object, ...],
        env: dict[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: NumaOptions | None = None,
    ) -> ForkedHandler:
        command = _maybe_wrap_command_args_with_numa_binding(
            (entrypoint, *map(str, args)), gpu_index=local_rank_id, numa_options=numa_options
        )
        whole = {**os.environ, **env, **environ}
        return ForkedHandler(nursery.start(command, whole, local_rank=local_rank_id, stdout=stdout, stderr=stderr))

    original = getattr(api, _DOOR)
    setattr(api, _DOOR, start)
    try:
        yield
    finally:
        setattr(api, _DOOR, original)


def processes_of(context: PContext | None) -> dict[int, ForkedProcess]:
    """The workers that were started through the door, by local rank; none before the first start."""
    if not isinstance(context, SubprocessContext):
        return {}
    return {rank: cast(ForkedHandler, handler).proc for rank, handler in context.subprocess_handlers.items()}
