"""Workers that outlive their group: the agent orders them to join the next one, instead of starting new processes.

In each generation, a worker that can stay says so after its first step, and how soon it leaves after a loss. Earlier it
cannot stay: in torch, a group that fails while it forms leaves traces in the process. An order is the environment of
the worker's new place. The worker reads it once it has left its group, so the agent waits for nothing. A worker that
does not leave in time, or does not join, is replaced by a new process. The worker's side is reentry.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trainer.contract import env
from trainer.elastic.workers.reentry import Stage

# A state can be large. After the handover, nothing is lost with a worker that is replaced.
_WITHIN_S = {Stage.HANDS_OVER: 30.0, Stage.LEAVES: 1.5}
_BYTES = 1 << 16


def _open_pipe() -> tuple[int, int]:
    """Both ends stay open in the agent: nobody sees an end of file, and nobody gets SIGPIPE."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


@dataclass(frozen=True)
class _Answer:
    """What a worker told last. After an order it leaves its group within `leaves_within_s`."""

    pid: int = 0
    generation: int = 0
    stage: Stage = Stage.JOINED
    leaves_within_s: float = 0.0


@dataclass
class _Pipes:
    """The pipes to the worker with one local rank, and what is known of it."""

    orders: tuple[int, int] = field(default_factory=_open_pipe)
    answers: tuple[int, int] = field(default_factory=_open_pipe)
    answer: _Answer = _Answer()
    deadline_s: float | None = None  # for a worker that has an order, by the monotonic clock
    environ: Mapping[str, str] = field(default_factory=dict)


class Survivors:
    """The lines to the workers of this node, by local rank."""

    def __init__(self, workers: int) -> None:
        self._pipes = [_Pipes() for _ in range(workers)]
        pipes = [(each.orders[0], each.answers[1]) for each in self._pipes]
        self.environment = {env.REENTRY: env.render_files(os.getpid(), pipes)}

    def close(self) -> None:
        for each in self._pipes:
            for end in (*each.orders, *each.answers):
                os.close(end)
        self._pipes = []

    def replace(self, local_rank: int, environ: Mapping[str, str]) -> None:
        """A new process has this environment. Orders to the one before it are void."""
        pipes = self._pipes[local_rank]
        pipes.environ = environ
        with suppress(BlockingIOError):
            while os.read(pipes.orders[0], _BYTES):
                pass

    def can_stay(self, local_rank: int, pid: int, generation: int) -> bool:
        """Whether this process has trained in the generation, and can join another one."""
        return self.has_joined(local_rank, pid, generation) and self._pipes[local_rank].answer.stage is not Stage.JOINED

    def has_joined(self, local_rank: int, pid: int, generation: int) -> bool:
        """Whether this process has taken its place in the generation."""
        self._read(self._pipes[local_rank])
        answer = self._pipes[local_rank].answer
        return (answer.pid, answer.generation) == (pid, generation)

    def is_late(self, local_rank: int) -> bool:
        """Whether a worker with an order has not noticed or not left in time."""
        deadline_s = self._pipes[local_rank].deadline_s
        return deadline_s is not None and time.monotonic() > deadline_s

    def order(self, local_rank: int, generation: int, environ: Mapping[str, str]) -> bool:
        """Order the worker to take a new place. False if the order cannot be written."""
        pipes = self._pipes[local_rank]
        pipes.deadline_s = time.monotonic() + _WITHIN_S.get(pipes.answer.stage, pipes.answer.leaves_within_s)
        before, pipes.environ = pipes.environ, environ
        order = {
            "generation": generation,
            "local_rank": local_rank,
            "environ": {name: value for name, value in environ.items() if before.get(name) != value},
            "without": [name for name in before if name not in environ],
        }
        try:
            content = json.dumps(order).encode() + b"\n"
            return os.write(pipes.orders[1], content) == len(content)
        except BlockingIOError:
            return False

    def _read(self, pipes: _Pipes) -> None:
        with suppress(BlockingIOError):
            while answers := os.read(pipes.answers[0], _BYTES):
                for line in answers.splitlines():
                    with suppress(ValueError, KeyError, TypeError, RecursionError):  # a worker can write anything
                        pipes.answer = _parse(json.loads(line))
                        if pipes.answer.stage in _WITHIN_S:
                            pipes.deadline_s = time.monotonic() + _WITHIN_S[pipes.answer.stage]


def _parse(document: dict[str, object]) -> _Answer:
    pid, generation, within_s = (str(document[name]) for name in ("pid", "generation", "leaves_within_s"))
    return _Answer(int(pid), int(generation), Stage(document["stage"]), float(within_s))
