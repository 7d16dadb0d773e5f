"""A worker's side of staying: after its group has broken it waits for the agent's order to join the next one.

The agent's side is survivors.py.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from enum import Enum

from trainer.contract.env import WorkerPlace
from trainer.elastic import child
from trainer.elastic.health.stacks import offer_stacks
from trainer.elastic.workers.forked import settle_environment
from trainer.elastic.workers.title import show_place

_ORDER_WITHIN_S = 5.0  # an order follows a death at once; without a death there is none
_LOOK_EVERY_S = 0.1
_BYTES = 1 << 16


class Stage(str, Enum):
    """Where a worker is in a generation, as it tells its agent."""

    JOINED = "joined"  # it has taken its place
    TRAINS = "trains"  # it has made a step, and can join another generation
    HANDS_OVER = "hands over"  # it has lost a peer, and writes its state
    LEAVES = "leaves"  # its state is written


class Reentry:
    """Open pipes to the agent. Raises OSError if they cannot be opened."""

    def __init__(self, place: WorkerPlace) -> None:
        orders, answers = place.own_reentry
        self._orders = os.open(orders, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers = os.open(answers, os.O_WRONLY | os.O_CLOEXEC)
        self._received = b""
        self._stage = Stage.JOINED
        self._step_s = 0.0  # the duration of a step that the agent knows

    @property
    def can_stay(self) -> bool:
        """Whether this process may outlive its group."""
        return self._stage is not Stage.JOINED

    def tell(self, generation: int, stage: Stage) -> None:
        if stage is Stage.JOINED:
            self._step_s = 0.0
        self._stage = stage
        answer = {"pid": os.getpid(), "generation": generation, "stage": stage.value, "step_s": self._step_s}
        os.write(self._answers, json.dumps(answer).encode() + b"\n")

    def note_step(self, generation: int, step_s: float) -> None:
        """After each step. Tell the agent when the first one is complete, and when steps take much longer."""
        if step_s > 2 * self._step_s:
            self._step_s = step_s
            self.tell(generation, Stage.TRAINS)

    def await_order(self, generation: int, is_stopped: Callable[[], bool]) -> bool:
        """Wait for the order to join a later generation. False if none comes.

        If one comes, environment and output are those of the new place.
        """
        deadline = time.monotonic() + _ORDER_WITHIN_S
        while True:
            if select.select([self._orders], [], [], _LOOK_EVERY_S)[0]:
                for order in self._read():
                    if int(str(order["generation"])) > generation:
                        _take_place(order)
                        return True
            elif is_stopped() or time.monotonic() > deadline:
                return False

    def _read(self) -> list[dict[str, object]]:
        self._received += os.read(self._orders, _BYTES)
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]


def _take_place(order: dict[str, object]) -> None:
    settle_environment(order)
    folder = child.redirect(str(order["local_rank"]))
    show_place(os.environ)
    if folder is not None:
        offer_stacks(folder)
