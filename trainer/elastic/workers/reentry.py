"""A worker's side of staying: after its group has broken it waits for the agent's order to join the next one.

`train_again` is the loop over generations, of the bundled trainer and of scripts.

The agent's side is survivors.py.
"""

from __future__ import annotations

import gc
import json
import os
import select
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from trainer.contract.env import WorkerPlace, parse_place
from trainer.elastic import child
from trainer.elastic.health.stacks import offer_stacks
from trainer.elastic.workers.forked import settle_environment
from trainer.elastic.workers.title import show_place
from trainer.worker.lost_peer import is_end_of_group

_ORDER_WITHIN_S = 5.0  # the agents form the next group within a moment, or not soon
_LOOK_EVERY_S = 0.1
_UNAIDED_WITHIN_S = 0.1  # in a collective whose connections are closed, or before the next step
_NOTICES_WITHIN_S, _STEPS = 0.5, 3.0  # in a collective, so within some steps
_RECENT_STEPS = 9  # their median ignores a few steps that the network delays
_SECOND_THREAD_S = 2.0  # then the second thread must have begun (departure.py)
_BYTES = 1 << 16

T = TypeVar("T")


def find_readable(*files: int, within_s: float | None = None) -> list[int]:
    """Wait until one of the files can be read or its other end is closed. Unlike select(2), poll(2) takes any number.

    `within_s` None waits forever.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(None if within_s is None else 1000 * within_s)]


class Stage(str, Enum):
    """Where a worker is in a generation, as it tells its agent."""

    JOINED = "joined"  # it has taken its place
    TRAINS = "trains"  # it has made a step, and can join another generation
    HANDS_OVER = "hands over"  # its group has ended, and it writes its state
    LEAVES = "leaves"  # its state is written


class Reentry:
    """Open pipes to the agent. Raises OSError if they cannot be opened."""

    def __init__(self, place: WorkerPlace) -> None:
        orders, answers = place.own_reentry
        self._orders = os.open(orders, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers = os.open(answers, os.O_WRONLY | os.O_CLOEXEC)
        self._received = b""
        self._stage = Stage.JOINED
        self._recent_s = deque[float](maxlen=_RECENT_STEPS)  # the durations of this generation's last steps
        self._typical_s = 0.0  # the median of these
        self._reported_s = 0.0  # the step of the last report to the agent: at least half of the longest
        self.has_second_thread = False  # which leaves the group if the main thread hangs in it

    @property
    def can_stay(self) -> bool:
        """Whether this process may outlive its group."""
        return self._stage is not Stage.JOINED

    @property
    def notices_within_s(self) -> float:
        """Seconds from the order until the second thread hands over for the main thread."""
        return _NOTICES_WITHIN_S + _STEPS * self._typical_s

    @property
    def leaves_unaided_within_s(self) -> float:
        """Seconds from the order until the main thread leaves by itself, unless it waits for a silent rank."""
        return _UNAIDED_WITHIN_S + self._typical_s

    def tell(self, generation: int, stage: Stage) -> None:
        if stage is Stage.JOINED:
            self._recent_s.clear()
            self._typical_s = self._reported_s = 0.0
        self._stage = stage
        leaves_within_s = _NOTICES_WITHIN_S + _STEPS * self._reported_s + _SECOND_THREAD_S * self.has_second_thread
        answer = {
            "pid": os.getpid(),
            "generation": generation,
            "stage": stage.value,
            "leaves_within_s": leaves_within_s,
        }
        os.write(self._answers, json.dumps(answer).encode() + b"\n")

    def note_step(self, generation: int, step_s: float) -> None:
        """After each step. Tell the agent when the first one is complete, and when steps take much longer."""
        self._recent_s.append(step_s)
        self._typical_s = statistics.median(self._recent_s)
        if step_s > 2 * self._reported_s:
            self._reported_s = step_s
            self.tell(generation, Stage.TRAINS)

    def await_order(self, generation: int, is_stopped: Callable[[], bool]) -> bool:
        """Wait for the order to join a later generation. False if none comes.

        If one comes, environment and output are those of the new place.
        """
        deadline = time.monotonic() + _ORDER_WITHIN_S
        while True:
            if find_readable(self._orders, within_s=_LOOK_EVERY_S):
                for order in self._read():
                    if int(str(order["generation"])) > generation:
                        _take_place(order)
                        return True
            elif is_stopped() or time.monotonic() > deadline:
                return False

    @property
    def has_order(self) -> bool:
        """Whether the agent has written an order that is not read yet: this worker has to leave its group."""
        return bool(find_readable(self._orders, within_s=0))

    def await_order_unless(self, file: int) -> bool:
        """Wait for an order, or until `file` can be read. True if there is only an order."""
        return file not in find_readable(self._orders, file)

    def _read(self) -> list[dict[str, object]]:
        self._received += os.read(self._orders, _BYTES)
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]


def open_reentry(place: WorkerPlace, *, has_device: bool) -> Reentry | None:
    """None if this process must end with its group.

    That is so on GPUs, because NCCL may wait for the lost rank, and where nobody could read its state in memory.
    """
    if has_device or not place.own_reentry or not place.can_outlive_group:
        return None
    try:
        return Reentry(place)
    except OSError:  # the agent is in another PID namespace
        return None


def train_again(
    train: Callable[[WorkerPlace], T],
    place: WorkerPlace,
    reentry: Reentry,
    *,
    is_stopped: Callable[[], bool],
    forget: Callable[[], None],
) -> T:
    """Train in one generation after another, until training ends or this process has to.

    `train` has left its group when it raises. `forget` removes what the process must not keep from a generation.
    """
    excepthook = sys.excepthook  # each group replaces it by one that adds its rank
    while True:
        reentry.tell(place.generation, Stage.JOINED)
        try:
            return train(place)
        except RuntimeError as error:
            is_survivor = reentry.can_stay and is_end_of_group(error)
            if not (is_survivor and reentry.await_order(place.generation, is_stopped)):
                raise
        gc.collect()  # what is left of the broken group
        forget()
        sys.excepthook = excepthook
        place = parse_place(os.environ)


def _take_place(order: dict[str, object]) -> None:
    settle_environment(order)
    folder = child.redirect(str(order["local_rank"]))
    show_place(os.environ)
    if folder is not None:
        offer_stacks(folder)
