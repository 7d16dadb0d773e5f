"""The thread that owns an agent's connection to the rendezvous store. It sends heartbeats and drops silent members.

If the store is lost, the thread goes on with the next one (succession.py) and repeats the request that failed.

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
from dataclasses import dataclass
from functools import partial

from trainer.elastic.health.awake import AwakeClock
from trainer.elastic.rendezvous import round_queries, rounds
from trainer.elastic.rendezvous.backoff import LOOKS_PER_S, Unchanged
from trainer.elastic.rendezvous.document import Document, count_key
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.round_document import Limits, Round
from trainer.elastic.rendezvous.rounds import Lost
from trainer.elastic.rendezvous.succession import Connection, Succession, Superseded

PARTING_S = 2.0  # the most to wait for the store's last answer, and again for the thread's end
_CHECK_S = 0.2  # between two checks whether the thread is alive
_LOOK_EVERY_S = 0.05
_LONGEST_PASS_S = 0.5  # between two measurements of a silence; the rest was a pause of this process
_RETRY_S = 0.5  # after an error of the folder
_REPLACED_WITHIN_S = 2.0  # a lost store; after that this node is alone, and must not train
_AFTERMATH_S = 10.0  # after an absence, for workers here to notice the peers that ended during it


@dataclass(frozen=True)
class _Order:
    carry_out: Callable[[], Round]
    answer: Future[Round]


class StoreThread:
    """One agent's access to the document, which all agents of a run share. Call it on the main thread."""

    def __init__(self, succession: Succession, node: str, limits: Limits) -> None:
        self._succession, self._node, self._limits = succession, node, limits
        self._observer, self._timing, self._key = succession.observer, succession.timing, succession.key
        self._connection: Connection | None = None  # the last one
        self._lost_s: float | None = None  # since when there is none
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()  # None ends the thread
        self._order: _Order | None = None  # the one that is carried out
        self._is_stopped = False
        self._error: RendezvousFailed | None = None
        self._document: Document | None = None
        self._round, self._answers = Round(), 0  # the document, and how often it was read
        self._unanswered = Unchanged(AwakeClock(_LONGEST_PASS_S))
        self._heard: dict[str, tuple[bytes, float]] = {}  # of each watched node: its count, and when that changed
        self._counted_s = float("-inf")
        self._absence = 0.0, float("-inf")  # the last time without a heartbeat from here: its length, and its end
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    @property
    def serves(self) -> bool:
        return self._connection is not None and self._connection.serves

    @property
    def host(self) -> str:
        """The node of the agent that serves the store. Empty if that is not known."""
        return "" if self._connection is None else self._connection.served.node

    @property
    def is_open(self) -> bool:
        """Whether the document has been read once."""
        return self._document is not None

    def find_silence(self) -> float | None:
        """How long the store has been silent, in seconds. None while that is not too long.

        It is too long if the store was lost 2 s ago and not replaced, if its host counts as silent, or if its host is
        lossy. Call it often.
        """
        unanswered_s, lost_s = self._unanswered.measure_s(self._answers), self._lost_s
        if lost_s is not None:
            return unanswered_s if time.monotonic() - lost_s > _REPLACED_WITHIN_S else None
        if not self.is_open or self.serves:
            return None
        is_lost = self._observer.is_lossy(self.host) or self._observer.is_silent(self.host, unanswered_s)
        return unanswered_s if is_lost else None

    def start_once(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        self._succession.stop()
        self._orders.put(None)
        if self._thread.ident:
            self._thread.join(PARTING_S)

    def newest(self) -> Round:
        """The document as last read. Raises RendezvousFailed once the store is lost for good."""
        if self._error is not None:
            raise self._error
        return self._round

    def find_absence(self) -> float | None:
        """How many seconds this agent has been silent, now or until a moment ago. None if it was not silent.

        After such a time the others may have dropped this agent.
        """
        now_s = time.monotonic()
        since_s = now_s - self._counted_s
        if since_s > self._absent_after_s:
            return since_s
        absence_s, back_s = self._absence
        return absence_s if now_s - back_s < _AFTERMATH_S else None

    def hang_up(self) -> None:
        """Give up on the store, which has been silent for too long."""
        connection = self._connection
        if connection is not None and self._lost_s is None:
            connection.hang_up()

    def look(self, timeout_s: float | None = None) -> Round:
        """The current document."""
        return self._ask(self._read, timeout_s)

    def amend(self, change: Callable[[Round], Round], timeout_s: float | None = None) -> Round:
        """Apply a change and return the resulting document."""
        return self._ask(partial(self._apply, change), timeout_s)

    def _ask(self, carry_out: Callable[[], Round], timeout_s: float | None) -> Round:
        answer: Future[Round] = Future()
        self._orders.put(_Order(carry_out, answer))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with suppress(NoAnswerYet):
                return answer.result(_CHECK_S)
            if self.find_silence() is not None:
                self.hang_up()
            if not self._thread.is_alive() and not answer.done():
                raise self._error or RendezvousFailed("the rendezvous has ended")
            if deadline is not None and time.monotonic() > deadline:
                raise RendezvousFailed("the rendezvous store does not answer")

    def _run(self) -> None:
        try:
            self._connection = self._succession.open()
            if not self._use(self._connection):
                self._replace_store()
            while not self._is_stopped:
                try:
                    self._keep_alive()
                    self._carry_out_next_order()
                except (RuntimeError, Superseded):
                    self._replace_store()
                except OSError:  # of the folder
                    time.sleep(_RETRY_S)
        except Exception as error:  # noqa: BLE001  # the thread's edge: whatever ends it is the agent's cause
            what = "the rendezvous store is lost" if self._connection is not None else "the rendezvous failed"
            self._error = error if isinstance(error, RendezvousFailed) else _describe(what, error)
            self._error.was_member |= self.is_open
            if self._order is not None:
                self._order.answer.set_exception(self._error)

    def _carry_out_next_order(self) -> None:
        """Carry out one order, and only read if none comes soon. After an error the same order is tried again."""
        if self._order is None:
            try:
                self._order = self._orders.get(timeout=self._poll_s())
            except queue.Empty:
                self._read()
                return
        if self._order is None:
            self._is_stopped = True
            return
        self._order.answer.set_result(self._order.carry_out())
        self._order = None

    def _replace_store(self) -> None:
        assert self._connection is not None
        self._lost_s = time.monotonic()
        while True:
            self._connection = self._succession.replace(self._connection, self._round)
            if self._use(self._connection):
                self._lost_s = None
                return
            time.sleep(_LOOK_EVERY_S)

    def _use(self, connection: Connection) -> bool:
        """False if the store is lost again."""
        try:
            connection.store.add(count_key(self._key, self._node), 1)
            document = Document(connection.store, self._key, partial(self._succession.claim, connection))
        except RuntimeError:
            return False
        self._document, self._heard = document, {}
        self._note_document(document.round)
        return True

    def _read(self) -> Round:
        assert self._document is not None
        return self._note_document(self._document.refresh())

    def _apply(self, change: Callable[[Round], Round]) -> Round:
        assert self._document is not None
        return self._note_document(self._document.amend(change))

    def _note_document(self, now: Round) -> Round:
        for node in now.nodes - self._round.nodes:
            self._heard.pop(node, None)  # joining is a sign of life
        self._round, self._answers = now, self._answers + 1
        self._observer.follow(now, self.host)
        return now

    def _poll_s(self) -> float:
        return min(self._timing.beat_s, max(_LOOK_EVERY_S, len(self._round.members) / LOOKS_PER_S))

    def _keep_alive(self) -> None:
        """Once a heartbeat interval, count in the store and read the others' counts. Drop silent members."""
        now_s = time.monotonic()
        if now_s - self._counted_s >= self._timing.beat_s:
            self._count(now_s)
        silent = {node for node, (_, since_s) in self._heard.items() if self._observer.is_silent(node, now_s - since_s)}
        if not round_queries.can_form_without(self._round, silent, self._limits):
            patient_s = now_s - self._timing.patience_s
            silent = {node for node in silent if self._heard[node][1] < patient_s or self._observer.is_gone(node)}
        lossy = {node for node in self._heard.keys() & self._round.nodes if self._observer.is_lossy(node)}
        if silent or lossy:
            generation = self._round.generation
            lost = Lost(
                silent=frozenset(silent),
                lossy=frozenset(lossy),
                generation=generation,
                finished=self._succession.finished_in(generation),
            )
            self._apply(partial(rounds.lose, lost=lost, limits=self._limits))

    def _count(self, now_s: float) -> None:
        assert self._connection is not None
        store, since_s = self._connection.store, now_s - self._counted_s
        was_away = self._absent_after_s < since_s < float("inf")  # then this agent was silent, not the others
        if was_away:
            self._absence = since_s, now_s
        self._counted_s = now_s
        self._succession.check(self._connection)
        store.add(count_key(self._key, self._node), 1)
        self._read()
        watched = sorted(round_queries.watched_by(self._round, self._node))
        counts = store.multi_get([count_key(self._key, node) for node in watched]) if watched else []
        heard = {}
        for node, count in zip(watched, counts, strict=True):
            before = self._heard.get(node)
            heard[node] = before if before is not None and before[0] == count and not was_away else (count, now_s)
        self._heard = heard
        self._mark_newcomers()

    def _mark_newcomers(self) -> None:
        """The first member marks newcomers that are badly connected, and those that have become well connected."""
        now = self._round
        if now.members and now.members[0].node == self._node:
            lossy, good = self._observer.grade({member.node for member in now.waiting})
            mark = partial(rounds.mark_lossy, lossy=lossy, good=good)
            if mark(now) != now:
                self._apply(mark)

    @property
    def _absent_after_s(self) -> float:
        """After so long without a heartbeat from here, others may have dropped this agent."""
        return 2 * self._timing.beat_s


def _describe(what: str, error: Exception) -> RendezvousFailed:
    text = " ".join(str(error).split())[:200]
    return RendezvousFailed(f"{what}: {type(error).__name__}: {text}")
