"""A worker's side of staying: after its group has broken it waits for the agent's order to join the next one.

The agent's side is survivors.py.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable

from trainer.contract.env import WorkerPlace
from trainer.elastic import child
from trainer.elastic.health.stacks import offer_stacks
from trainer.elastic.workers.forked import settle_environment
from trainer.elastic.workers.title import show_place

_ORDER_WITHIN_S = 5.0  # an order follows a death at once; without a death there is none
_LOOK_EVERY_S = 0.1
_BYTES = 1 << 16
HANDS_OVER, LEAVES = -1.0, -2.0  # in place of a duration


class Reentry:
    """Open pipes to the agent. Raises OSError if the agent has ended."""

    def __init__(self, place: WorkerPlace) -> None:
        orders, answers = place.own_reentry
        self._orders = os.open(orders, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers = os.open(answers, os.O_WRONLY | os.O_CLOEXEC)
        self._received = b""
        self._step_s = 0.0  # the duration of a step that the agent knows

    @property
    def can_stay(self) -> bool:
        """Whether this process may outlive its group."""
        return self._step_s > 0

    def join(self, generation: int) -> None:
        """Tell the agent that this process has joined the generation."""
        self._answer(generation, 0.0)

    def note_step(self, generation: int, step_s: float) -> None:
        """After each step: tell the agent that this process can join another generation, and how long a step takes."""
        if step_s > 2 * self._step_s:
            self._answer(generation, step_s)

    def note_loss(self, generation: int, *, leaves: bool) -> None:
        """Tell the agent that this process has lost a peer, and hands its state over, or then leaves its group."""
        os.write(self._answers, f"{os.getpid()} {generation} {LEAVES if leaves else HANDS_OVER}\n".encode())

    def _answer(self, generation: int, step_s: float) -> None:
        self._step_s = step_s
        os.write(self._answers, f"{os.getpid()} {generation} {step_s:.6f}\n".encode())

    def await_order(self, generation: int, is_stopped: Callable[[], bool]) -> bool:
        """Wait for the order to join a later generation, and take its place. False if none comes.

        Environment and output are those of the new place then.
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
