"""How a rank leaves a generation in which it has lost a peer: it hands over its state, once.

Most ranks notice the loss because a collective fails. But gloo may forget a message (see `release_process_groups`). The
collective then waits until its timeout, and the main thread with it. So another thread waits for the agent's order to
join the next generation. If the main thread does not leave in time, that thread hands over the state and ends the
process. A new process takes its place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainer.elastic.workers.reentry import Reentry, Stage, find_readable, notices_within_s


class Departure:
    """Train in its context. Without `reentry` it does nothing.

    `hand_over` writes the state of the last completed step, in one of the threads. It never raises.
    """

    def __init__(self, reentry: Reentry | None, generation: int, hand_over: Callable[[], None]) -> None:
        self._reentry, self._generation, self._hand_over = reentry, generation, hand_over
        self._begun = threading.RLock()  # held from the handover on
        self._context = ExitStack()

    def __enter__(self) -> Departure:
        if self._reentry is not None:
            left, stays = os.pipe2(os.O_CLOEXEC)
            thread = threading.Thread(target=self._watch, args=(self._reentry, left), name="departure", daemon=True)
            thread.start()
            for end in (left, stays):
                self._context.callback(os.close, end)
            self._context.callback(thread.join)
            self._context.callback(os.write, stays, b"\0")  # children may hold this end, so closing it tells nothing
            self._context.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def leave(self) -> None:
        """Hand the state over in the main thread. Does not return if the other thread does so."""
        if self._reentry is not None and self._reentry.can_stay:
            self._begun.acquire()
            self._tell_and_hand_over(self._reentry)

    def _before_update(self, *_: object) -> None:
        """The state must not change while the other thread hands it over."""
        with self._begun:
            pass

    def _watch(self, reentry: Reentry, left: int) -> None:
        is_ordered = reentry.await_order_unless(left)
        within_s = notices_within_s(reentry.step_s)
        if is_ordered and not find_readable(left, within_s=within_s) and self._begun.acquire(blocking=False):
            self._tell_and_hand_over(reentry)
            os._exit(1)

    def _tell_and_hand_over(self, reentry: Reentry) -> None:
        reentry.tell(self._generation, Stage.HANDS_OVER)
        self._hand_over()
        reentry.tell(self._generation, Stage.LEAVES)
