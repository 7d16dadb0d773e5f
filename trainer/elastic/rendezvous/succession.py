"""Which store the agents of a run use: the first agent's, or that of the agent that takes its place.

If the store is lost, the agents of its group try to reach it again. If nobody answers there, one of them serves the
next store. epochs.py decides which one, and that only one of two separated sides goes on.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace

from torch.distributed import Store

from trainer.elastic.health.awake import AwakeClock
from trainer.elastic.rendezvous import rounds
from trainer.elastic.rendezvous.backoff import Notice
from trainer.elastic.rendezvous.document import write_first
from trainer.elastic.rendezvous.endpoint import Answer, connect, explain, hang_up, is_here, probe, serve
from trainer.elastic.rendezvous.epochs import Epochs, Served
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.observer import Observer
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.round_document import Member, Round, Stage

_TRY_EVERY_S = 0.05
_LONGEST_PASS_S = 4.0  # with a probe and a connection; the rest of a longer turn was a pause of this process
# Agents try one after the other, so that one of them serves and the others connect.
_TURN_S = 0.1
# How long an agent waits before it replaces a silent store, unless it hears most of its group. Of two equal sides, the
# one that has the store wins: it does not wait.
_GRACE_S = 1.3
MINORITY_S = 4.0  # how long agents that miss most of their group wait: that part may go on without them
# How long the host must refuse connections before an agent outside the newest group replaces the store. The agents of
# that group would have replaced it long before.
_OUTSIDE_S = 10.0


class Superseded(Exception):
    """Another store has the next epoch."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A store and where it is. `epoch` 0: this run has no epochs."""

    store: Store
    served: Served
    epoch: int
    serves: bool = False  # this agent serves it

    def hang_up(self) -> None:
        """Make a call that waits for this store fail. Does nothing in the agent that serves it."""
        if not self.serves:
            hang_up(self.served)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the first store is. `serves` None: the agent on that machine serves it."""

    host: str
    port: int
    serves: bool | None


@dataclass
class _Search:
    """One search for a store: the newest epoch, and for how long nobody has answered there."""

    epoch: int
    served: Served
    since_s: float = 0.0
    refused_since_s: float | None = None
    trouble: str = ""  # the error of the attempt's folder, if the newest look met one

    def note(self, newest: tuple[int, Served] | None, now_s: float) -> None:
        if newest is not None and newest != (self.epoch, self.served):
            (self.epoch, self.served), self.since_s, self.refused_since_s = newest, now_s, None

    def note_answer(self, answer: Answer, now_s: float) -> None:
        if answer is not Answer.REFUSED:
            self.refused_since_s = None
        elif self.refused_since_s is None:
            self.refused_since_s = now_s


class Succession:
    """One agent's way to the store of its run. Call it in the thread that owns the connection."""

    def __init__(
        self, endpoint: Endpoint, key: str, me: Member, timing: Timing, observer: Observer, epochs: Epochs | None
    ) -> None:
        """Without `epochs` nobody takes the place of a lost store. `key` is the document's in each store."""
        self.key, self.timing, self.observer = key, timing, observer
        self._endpoint, self._node, self._address = endpoint, me.node, me.address
        self._epochs = epochs
        self._is_over, self._may_serve = False, True

    def forbid_serving(self) -> None:
        """Only connect to stores. A store would soon end with this agent, which has no workers. Call before `open`."""
        self._may_serve = False

    def stop(self) -> None:
        """End a search soon. May be called in any thread."""
        self._is_over = True

    def open(self) -> Connection:
        """Serve the first store, or connect to the newest. Raises RendezvousFailed."""
        endpoint = self._endpoint
        first = Served(node=self._node, address=endpoint.host, port=endpoint.port)
        is_host = endpoint.serves or (endpoint.serves is None and is_here(endpoint.host))
        if is_host and self._may_serve:
            connection = self._serve_first(first, is_required=bool(endpoint.serves))
            if connection is not None:
                return connection
        search = _Search(0, replace(first, node=""))
        notice = Notice(f"waiting for the rendezvous store at {_name(first)}")
        found = self._search(search, None, Round(), self.timing.read_s, notice)
        if found is None:
            raise explain(search.served, search.trouble or f"waited {self.timing.read_s:.0f} s")
        return found

    def replace(self, lost: Connection, last: Round) -> Connection:
        """Reach the store again, or the next one, or serve the next one. Raises RendezvousFailed after a while.

        `last` is the newest document that this agent knows.
        """
        if last.stage is Stage.CLOSED:
            raise RendezvousFailed(_closed(last.reason))
        limit_s = self.timing.patience_s if self._epochs is None else self.timing.join_s
        search = _Search(lost.epoch, lost.served)
        found = self._search(search, lost, last, limit_s, None)
        if found is None:
            because = f"; {search.trouble}" if search.trouble else ""
            raise RendezvousFailed(f"the rendezvous store is lost: {_name(search.served)} does not answer{because}")
        return found

    def note_finished(self, generation: int) -> None:
        """Note in the attempt's folder that this agent's workers have succeeded. The agent of the next store reads it.

        Idempotent. May be called in any thread.
        """
        epochs = self._epochs
        if epochs is not None:
            with suppress(OSError):  # the store gets to know it too
                epochs.note_finished(generation, self._node)

    def finished_in(self, generation: int) -> frozenset[str]:
        """The nodes that have finished a generation, according to the attempt's folder. Raises OSError."""
        return frozenset() if self._epochs is None else self._epochs.finished_in(generation)

    def claim(self, connection: Connection, before: Round, after: Round) -> int:
        """Claim the next epoch for the group in `after`, or for its end. Returns its number. Raises Superseded."""
        if self._epochs is None:
            return after.epoch
        if after.stage is Stage.CLOSED:
            served = Served(node="", address="", port=0, closed=after.reason)
        else:
            served = replace(connection.served, nodes=sorted(after.nodes))
        epoch = self._epochs.claim(served, before.epoch, holder=connection.served)
        if epoch is None:
            raise Superseded
        return epoch

    def check(self, connection: Connection) -> None:
        """Raises Superseded if a newer store has replaced this one. Call it often.

        The agent that serves the store always looks: it may have been paused. The others look only while their workers
        stall, because a store with a lossy host is replaced although it answers.
        """
        newest = self._newest() if connection.serves or self.observer.is_stalled else None
        if newest is not None and newest[1] != connection.served:
            raise Superseded

    def _serve_first(self, served: Served, *, is_required: bool) -> Connection | None:
        if self._newest() is not None:
            return None
        store = serve(served, self.timing, is_required=is_required)
        if store is None:
            return None
        epoch = 0 if self._epochs is None else self._epochs.claim(served, above=0)
        if epoch is None:
            return None
        write_first(store, self.key, Round(epoch=epoch))
        return Connection(store=store, served=served, epoch=epoch, serves=True)

    def _newest(self) -> tuple[int, Served] | None:
        """Raises RendezvousFailed if no group may follow."""
        newest = None if self._epochs is None else self._epochs.newest()
        if newest is not None and newest[1].closed:
            raise RendezvousFailed(_closed(newest[1].closed))
        return newest

    def _search(
        self, search: _Search, lost: Connection | None, last: Round, limit_s: float, notice: Notice | None
    ) -> Connection | None:
        """The next connection. None if the time is up."""
        clock = AwakeClock(_LONGEST_PASS_S)
        of_folder: Notice | None = None
        while not self._is_over and clock.now_s() < limit_s:
            try:
                found = self._try(search, lost, last, clock)
                search.trouble, of_folder = "", None
            except OSError as error:  # the folder is full or does not answer
                found, search.trouble = None, f"the attempt's folder: {error}"
                of_folder = of_folder or Notice(search.trouble)
                of_folder.give()
            if found is not None:
                return found
            if notice is not None:
                notice.give()
            time.sleep(_TRY_EVERY_S)
        return None

    def _try(self, search: _Search, lost: Connection | None, last: Round, clock: AwakeClock) -> Connection | None:
        search.note(self._newest(), clock.now_s())
        served = search.served
        if lost is not None and lost.serves and lost.served == served:
            return lost
        # A host that is paused accepts connections. One that has given up on this agent sends it no heartbeats.
        is_lossy = self.observer.is_lossy(served.node)
        is_silent = is_lossy or (self._node in served.nodes and self.observer.suspects(served.node))
        answer = Answer.SILENT if is_silent else probe(served)
        store = connect(served, self.timing, self.key) if answer is Answer.YES else None
        if store is not None:
            return self._describe(store, search)
        search.note_answer(answer, clock.now_s())
        self.observer.ask(served.node)
        after_s = self._claims_after_s(search, last, clock.now_s())
        if after_s is None or clock.now_s() - search.since_s < after_s:
            return None
        return self._take_over(search, last, may_return=answer is Answer.REFUSED)

    def _describe(self, store: Store, search: _Search) -> Connection:
        if not search.epoch and self._epochs is not None:
            newest = self._newest()  # the first document is written after the first epoch is claimed
            if newest is None:  # the nodes do not share the job's folder
                self._epochs = None
            elif newest[1].port == search.served.port:
                return Connection(store=store, served=newest[1], epoch=newest[0])
        return Connection(store=store, served=search.served, epoch=search.epoch)

    def _claims_after_s(self, search: _Search, last: Round, now_s: float) -> float | None:
        """How long this agent waits for others before it takes the place of the store. None: it does not."""
        served, observer = search.served, self.observer
        if self._epochs is None or not search.epoch or not self._may_serve:
            return None
        if served.node == self._node:  # its agent has died, and this one has replaced it
            return 0.0
        refused_s = None if search.refused_since_s is None else now_s - search.refused_since_s
        if served.nodes and self._node not in served.nodes:
            is_over = refused_s is not None and refused_s > _OUTSIDE_S and not any(map(observer.hears, served.nodes))
            return 0.0 if is_over else None
        is_lossy = observer.is_lossy(served.node)
        is_heard = observer.hears(served.node) or (refused_s is None and observer.is_vouched_for(served.node))
        if is_heard and not is_lossy:
            return None  # only this agent has lost the store
        others = sorted({*served.nodes, *last.nodes, *last.awaited, self._node} - {served.node})
        turn_s = _TURN_S * others.index(self._node)
        if refused_s is not None:
            return turn_s
        here, size = 1 + sum(map(observer.hears, others)), len(others) + 1
        knows_all = observer.is_linked_to(others)
        if 2 * here < size if knows_all else here == 1:
            return turn_s + MINORITY_S
        is_majority = knows_all and 2 * here > size and observer.is_answered(served.node)
        return turn_s + (0.0 if is_lossy or is_majority else _GRACE_S)

    def _take_over(self, search: _Search, last: Round, *, may_return: bool) -> Connection | None:
        """Serve the next store. None if another agent does, or if that fails."""
        assert self._epochs is not None
        lost, nodes = search.served, {*search.served.nodes, *last.nodes, *last.awaited}
        known = _find_newest_group(self._epochs, last, frozenset(nodes))
        try:
            store = serve(Served(node=self._node, address=self._address, port=0), self.timing, is_required=True)
        except RendezvousFailed:
            return None
        assert store is not None
        served = Served(node=self._node, address=self._address, port=store.port, nodes=sorted(nodes | {self._node}))
        epoch = self._epochs.claim(served, above=search.epoch)
        if epoch is None:
            return None
        first = rounds.succeed(known, epoch, lost.node, lost.address, may_return=may_return)
        if self.observer.is_lossy(lost.node):
            change = f"too many packets of {lost.address}, which served the rendezvous, were lost"
            first = rounds.mark_lossy(replace(first, change=change), {lost.node}, ())
        write_first(store, self.key, first)
        return Connection(store=store, served=served, epoch=epoch, serves=True)


def _find_newest_group(epochs: Epochs, last: Round, nodes: frozenset[str]) -> Round:
    """The newest group, according to the attempt's folder and an agent that knew `last`. `nodes` may be in it."""
    generation = max(last.generation, epochs.newest_generation())
    known = last if generation == last.generation else replace(last, stage=Stage.OPEN, finished=frozenset())
    known = replace(known, generation=generation, finished=known.finished | epochs.finished_in(generation))
    return known if known.nodes | known.awaited else replace(known, awaited=nodes)


def _closed(reason: str) -> str:
    return f"the rendezvous is closed: {reason}"


def _name(served: Served) -> str:
    return f"{served.address}:{served.port}"
