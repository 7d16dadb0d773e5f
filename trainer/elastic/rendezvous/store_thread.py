"""The thread that owns an agent's connection to the rendezvous store. It sends heartbeats and drops silent members.

If the store is lost, the thread goes on with the next one (succession.py) and repeats the order that had failed.

A call of the store can block in C++ for as long as the network takes, and no signal interrupts it. So the main thread
waits for this thread instead, and a signal ends that wait.

A heartbeat is a counter, and the listener measures silence by its own clock, so the nodes' clocks may differ. The
store's errors are RuntimeErrors in every torch from 2.6 on (DistNetworkError, DistStoreError).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerYet
from contextlib import suppress
from functools import partial

from torch.distributed import Store

from trainer.elastic.rendezvous import rounds
from trainer.elastic.rendezvous.document import Document
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.patience import LOOKS_PER_S
from trainer.elastic.rendezvous.rounds import Limits, Round
from trainer.elastic.rendezvous.succession import Connection, Succession, Superseded

PARTING_S = 2.0  # the most to wait for the store's last answer, and again for the thread's end
_CHECK_S = 0.2  # between two checks whether the thread is alive
_LOOK_EVERY_S = 0.05
_AFTERMATH_S = 10.0  # after an absence, for workers here to notice the peers that ended during it


class StoreThread:
    """One agent's access to the document under `key`, which all agents of a run share. Call it on the main thread."""

    def __init__(self, succession: Succession, key: str, node: str, limits: Limits) -> None:
        self._succession, self._key, self._node, self._limits = succession, key, node, limits
        self._observer, self._timing = succession.observer, succession.timing
        self._connection: Connection | None = None
        self._host, self._is_replacing = "", False
        self._orders: queue.SimpleQueue[tuple[Callable[[Round], Round] | None, Future[Round]] | None]
        self._orders = queue.SimpleQueue()
        self._error: RendezvousFailed | None = None
        self._document: Document | None = None
        self._round, self._answers = Round(), 0  # the document, and how often it was read
        self._heard: dict[str, tuple[bytes, float]] = {}  # of each watched node: its count, and when that changed
        self._listened_s = float("-inf")
        self._absence = 0.0, float("-inf")  # the last time without a heartbeat from here: its length, and its end
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    @property
    def serves(self) -> bool:
        return self._connection is not None and self._connection.serves

    @property
    def is_connected(self) -> bool:
        """Whether there is a store, which may be silent."""
        return self._connection is not None and not self._is_replacing

    @property
    def host(self) -> str:
        """The node of the agent that serves the store. Empty if that is not known."""
        return self._host

    @property
    def is_open(self) -> bool:
        """Whether the document has been read once."""
        return self._document is not None

    def start_once(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        self._succession.stop()
        self._orders.put(None)
        if self._thread.ident:
            self._thread.join(PARTING_S)

    def newest(self) -> tuple[Round, int]:
        """The document as last read, and how often it was read. Raises RendezvousFailed once the store is lost."""
        if self._error is not None:
            raise self._error
        return self._round, self._answers

    def find_absence(self) -> float | None:
        """How many seconds this agent has been silent, now or until a moment ago. None if it was not silent.

        After such a time the others may have dropped this agent.
        """
        now_s = time.monotonic()
        since_s = now_s - self._listened_s
        if since_s > self._away_s:
            return since_s
        away_s, back_s = self._absence
        return away_s if now_s - back_s < _AFTERMATH_S else None

    def hang_up(self) -> None:
        """Give up on the store, which has been silent for too long."""
        connection = self._connection
        if connection is not None:
            connection.hang_up()

    def look(self, timeout_s: float | None = None) -> Round:
        """The current document."""
        return self._ask(None, timeout_s)

    def amend(self, change: Callable[[Round], Round], timeout_s: float | None = None) -> Round:
        """Apply a change and return the resulting document."""
        return self._ask(change, timeout_s)

    def _ask(self, change: Callable[[Round], Round] | None, timeout_s: float | None = None) -> Round:
        answer: Future[Round] = Future()
        self._orders.put((change, answer))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with suppress(NoAnswerYet):
                return answer.result(_CHECK_S)
            if not self._thread.is_alive() and not answer.done():
                raise self._error or RendezvousFailed("the rendezvous has ended")
            if deadline is not None and time.monotonic() > deadline:
                raise RendezvousFailed("the rendezvous store does not answer")

    def _run(self) -> None:
        answer: Future[Round] | None = None
        try:
            self._use(self._succession.open(self._seed))
            order: tuple[Callable[[Round], Round] | None, Future[Round]] | None
            while True:
                try:
                    self._keep_alive()
                    if answer is None:
                        try:
                            order = self._orders.get(timeout=self._poll_s())
                        except queue.Empty:
                            self._apply(None)
                            continue
                        if order is None:
                            return
                        change, answer = order
                    answer.set_result(self._apply(change))
                    answer = None
                except (RuntimeError, Superseded):
                    self._replace_store()
        except (RuntimeError, ValueError, OSError, RendezvousFailed) as error:
            self._error = error if isinstance(error, RendezvousFailed) else _lost(error)
            self._error.was_member |= self.is_open
            if answer is not None:
                answer.set_exception(self._error)

    def _replace_store(self) -> None:
        assert self._connection is not None
        self._is_replacing = True
        self._connection = self._succession.replace(self._connection, self._round, self._seed)
        self._is_replacing = False
        with suppress(RuntimeError):  # it is lost again: the next call for it fails too
            self._use(self._connection)

    def _use(self, connection: Connection) -> None:
        self._connection, self._host = connection, connection.served.node
        connection.store.add(self._beat(self._node), 1)
        claim = partial(self._succession.claim, connection)
        self._document = Document(connection.store, self._key, connection.first, claim)
        self._hear(self._document.round)

    def _seed(self, store: Store, first: Round) -> None:
        """Write the first document of the next store, and the counts that are read before all agents have arrived."""
        for node in first.nodes | first.awaited:
            store.add(self._beat(node), 0)
        Document(store, self._key, first, lambda after: after.term)

    def _apply(self, change: Callable[[Round], Round] | None) -> Round:
        assert self._document is not None
        return self._hear(self._document.refresh() if change is None else self._document.amend(change))

    def _hear(self, now: Round) -> Round:
        self._round, self._answers = now, self._answers + 1
        self._observer.follow(now, self._host)
        return now

    def _poll_s(self) -> float:
        return min(self._timing.beat_s, max(_LOOK_EVERY_S, len(self._round.members) / LOOKS_PER_S))

    def _keep_alive(self) -> None:
        """Once a heartbeat interval, count in the store and read the others' counts. Drop silent members."""
        now_s = time.monotonic()
        if now_s - self._listened_s >= self._timing.beat_s:
            self._count(now_s)
        silent = {node for node, (_, since_s) in self._heard.items() if self._observer.is_silent(node, now_s - since_s)}
        if not rounds.can_do_without(self._round, silent, self._limits):
            patient_s = now_s - self._timing.patience_s
            silent = {node for node in silent if self._heard[node][1] < patient_s or self._observer.is_gone(node)}
        if silent:
            self._apply(partial(rounds.drop, nodes=silent))

    def _count(self, now_s: float) -> None:
        assert self._connection is not None
        store, since_s = self._connection.store, now_s - self._listened_s
        was_away = self._away_s < since_s < float("inf")  # then this agent was silent, not the others
        if was_away:
            self._absence = since_s, now_s
        self._listened_s = now_s
        store.add(self._beat(self._node), 1)
        self._apply(None)
        watched = sorted(rounds.watched_by(self._round, self._node))
        counts = store.multi_get([self._beat(node) for node in watched]) if watched else []
        heard = {}
        for node, count in zip(watched, counts, strict=True):
            before = self._heard.get(node)
            heard[node] = before if before is not None and before[0] == count and not was_away else (count, now_s)
        self._heard = heard

    @property
    def _away_s(self) -> float:
        """After so long without a heartbeat from here, others may have dropped this agent."""
        return 2 * self._timing.beat_s

    def _beat(self, node: str) -> str:
        return f"{self._key}/beat/{node}"


def _lost(error: Exception) -> RendezvousFailed:
    text = " ".join(str(error).split())[:200]
    return RendezvousFailed(f"the rendezvous store is lost: {type(error).__name__}: {text}")
