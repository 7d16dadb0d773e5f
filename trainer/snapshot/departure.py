"""How a rank leaves a generation in which it has lost a peer: it hands over its state, once.

Most ranks notice the loss because a collective fails. But if the peer is silent, no connection is closed. So a second
thread waits for the agent's order to join the next generation. If the main thread does not leave soon, it breaks the
connections of the groups. gloo may also forget a message (see `release_process_groups`), more often if it is writing
when its connection breaks. The collective then waits until its timeout, and the main thread with it. If the main thread
still does not leave, the second thread hands the state over and ends the process. A new process takes its place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

from trainer.elastic.workers.reentry import Reentry, Stage, find_readable
from trainer.worker.torch_compat import break_process_groups


class Departure:
    """Train in its context. Without `reentry` it does nothing.

    `hand_over` is called once, in either thread. Whoever changes the state holds `changing`.
    """

    def __init__(
        self, reentry: Reentry | None, generation: int, hand_over: Callable[[], None], changing: threading.Lock
    ) -> None:
        self._reentry, self._generation = reentry, generation
        self._hand_over, self._changing = hand_over, changing
        self._has_begun = False
        self._context = ExitStack()

    def __enter__(self) -> Departure:
        if self._reentry is not None:
            self._reentry.has_second_thread = True
            reads, writes = os.pipe2(os.O_CLOEXEC)
            thread = threading.Thread(target=self._watch, args=(self._reentry, reads), name="departure", daemon=True)
            thread.start()
            for end in (reads, writes):
                self._context.callback(os.close, end)
            self._context.callback(thread.join)
            # A child may hold this end, so closing it would wake nobody.
            self._context.callback(os.write, writes, b"\0")
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def leave(self) -> None:
        """Hand the state over in the main thread. Does not return if the second thread does it: the process ends."""
        if self._reentry is not None and self._reentry.can_stay:
            with self._changing:
                self._tell_and_hand_over(self._reentry)

    def _watch(self, reentry: Reentry, left: int) -> None:
        if not reentry.await_order_unless(left):
            return
        patience_s = reentry.notices_within_s
        unaided_s = min(patience_s, reentry.leaves_unaided_within_s)
        if find_readable(left, within_s=unaided_s):
            return
        break_process_groups()
        if find_readable(left, within_s=patience_s - unaided_s):
            return
        with self._changing:
            if not self._has_begun:
                try:
                    self._tell_and_hand_over(reentry)
                finally:
                    os._exit(1)

    def _tell_and_hand_over(self, reentry: Reentry) -> None:
        self._has_begun = True
        reentry.tell(self._generation, Stage.HANDS_OVER)
        self._hand_over()
        reentry.tell(self._generation, Stage.LEAVES)
