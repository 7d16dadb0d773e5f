"""Which store the agents of a run use: the first agent's, or that of the agent that takes its place.

If the store is lost, the agents of its group try to reach it again. If nobody answers there, one of them serves the
next store. terms.py decides which one, and that only one of two separated sides goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch.distributed import Store

from trainer.elastic.health.awake import AwakeClock
from trainer.elastic.rendezvous import rounds
from trainer.elastic.rendezvous.endpoint import Answer, connect, explain, hang_up, is_here, probe, serve
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.observer import Observer
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.patience import Notice
from trainer.elastic.rendezvous.rounds import Member, Round, Stage
from trainer.elastic.rendezvous.terms import Served, Terms

_TRY_EVERY_S = 0.05
_LONGEST_TURN_S = 2.0  # with a probe; the rest of a longer turn was a pause of this process
# Before an agent takes the place of a silent store, unless most of the group misses it. The side that has the store
# waits for nothing, so it gets the next term if both sides live.
_GRACE_S = 1.0
# Before an agent outside the newest group does, and only if the store's agent has certainly ended: then the group's own
# agents would have served the next store long ago.
_OUTSIDE_S = 10.0
_TURN_S, _LAST_TURN_S = 0.1, 1.0  # the agents try one after the other, so that one of them serves and others connect


Seed = Callable[[Store, Round], None]  # writes the first document of a new store


class Superseded(Exception):
    """Another store has the next term."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A store and where it is. `term` 0: this run has no terms. `first` is the document of a new store."""

    store: Store
    served: Served
    term: int
    serves: bool = False  # this agent serves it

    @property
    def first(self) -> Round:
        return Round(term=self.term)

    def hang_up(self) -> None:
        """Make a call that waits for this store fail. Does nothing in the agent that serves it."""
        if not self.serves:
            hang_up(self.served.port)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Of the first store. `serves` None: the agent on whose machine it is serves it."""

    host: str
    port: int
    serves: bool | None


class Succession:
    """One agent's way to the store of its run. Call it in the thread that owns the connection."""

    def __init__(
        self, endpoint: Endpoint, me: Member, timing: Timing, observer: Observer, terms: Terms | None = None
    ) -> None:
        """Without `terms` nobody takes the place of a lost store."""
        self.timing, self.observer = timing, observer
        self._endpoint, self._node, self._address = endpoint, me.node, me.address
        self._terms = terms
        self._is_over = False

    def stop(self) -> None:
        """End `replace` soon. May be called in any thread."""
        self._is_over = True

    def open(self, seed: Seed) -> Connection:
        """Serve the first store, or connect to the newest. Raises RendezvousFailed."""
        endpoint = self._endpoint
        if (endpoint.serves or (endpoint.serves is None and is_here(endpoint.host))) and self._newest() is None:
            served = Served(node=self._node, address=endpoint.host, port=endpoint.port)
            term = 0 if self._terms is None else self._terms.claim(served, above=0)
            store = None if term is None else serve(served, self.timing, is_required=bool(endpoint.serves))
            if term is not None and store is not None:
                return Connection(store=store, served=served, term=term, serves=True)
        return self._follow(seed)

    def replace(self, lost: Connection, last: Round, seed: Seed) -> Connection:
        """Reach the store again, or the next one, or serve the next one. Raises RendezvousFailed after a while.

        `last` is the newest document that this agent knows.
        """
        limit_s = self.timing.patience_s if self._terms is None else self.timing.join_s
        clock = AwakeClock(_LONGEST_TURN_S)
        known, since_s = (lost.term, lost.served), 0.0
        while last.stage is not Stage.CLOSED and not self._is_over and clock.now_s() < limit_s:
            newest = self._newest() or known
            if newest != known:
                known, since_s = newest, clock.now_s()
            answer = probe(known[1])
            connection = self._connect(*known) if answer is Answer.YES else None
            self.observer.ask(known[1].node)
            after_s = self._claims_after_s(*known, last, is_gone=answer is Answer.REFUSED)
            if connection is None and after_s is not None and clock.now_s() - since_s >= after_s:
                connection = self._take_over(*known, last, seed, may_return=answer is Answer.REFUSED)
            if connection is not None:
                return connection
            time.sleep(_TRY_EVERY_S)
        is_closed = last.stage is Stage.CLOSED
        raise RendezvousFailed(
            _closed(last.reason) if is_closed else f"the rendezvous store is lost: {_name(known[1])} does not answer"
        )

    def claim(self, connection: Connection, after: Round) -> int:
        """Claim the next term for the group in `after`, or for its end. Returns its number. Raises Superseded."""
        if self._terms is None:
            return after.term
        if after.stage is Stage.CLOSED:
            served = Served(node="", address="", port=0, closed=after.reason)
        else:
            served = replace(connection.served, nodes=sorted(after.group))
        term = self._terms.claim(served, above=after.term - 1)
        if term is None:
            raise Superseded
        return term

    def _newest(self) -> tuple[int, Served] | None:
        """Raises RendezvousFailed if no group may follow."""
        newest = None if self._terms is None else self._terms.newest()
        if newest is not None and newest[1].closed:
            raise RendezvousFailed(_closed(newest[1].closed))
        return newest

    def _follow(self, seed: Seed) -> Connection:
        """Connect to the newest store once it answers. Serve the next one if it was served by an agent of this name."""
        endpoint = self._endpoint
        first = Served(node="", address=endpoint.host, port=endpoint.port)
        clock, notice = AwakeClock(_LONGEST_TURN_S), Notice(f"waiting for the rendezvous store at {_name(first)}")
        while True:
            term, served = self._newest() or (0, first)
            answer = probe(served)
            connection = self._connect(term, served) if answer is Answer.YES else None
            if connection is None and served.node == self._node:  # that one has died, and this one replaces it
                last = Round(awaited=frozenset(served.nodes))
                connection = self._take_over(term, served, last, seed, may_return=True)
            if connection is not None:
                return connection
            notice.give()
            if clock.now_s() > self.timing.read_s:
                raise explain(served, f"{answer.value}, waited {self.timing.read_s:.0f} s")
            time.sleep(_TRY_EVERY_S)

    def _connect(self, term: int, served: Served) -> Connection | None:
        store = connect(served, self.timing)
        if store is None:
            return None
        if not term and self._terms is not None:
            newest = self._newest()
            if newest is None:  # the nodes do not share the job's folder
                self._terms = None
            else:
                term, served = newest[0], served if newest[1].port != served.port else newest[1]
        return Connection(store=store, served=served, term=term)

    def _claims_after_s(self, term: int, served: Served, last: Round, *, is_gone: bool) -> float | None:
        """How long this agent waits for others before it takes the place of the store. None: forever."""
        if self._terms is None:
            return None
        is_member = self._node in served.nodes or (term == last.term and self._node in last.nodes | last.awaited)
        if not is_member:
            return _OUTSIDE_S if is_gone else None
        if self.observer.is_vouched_for(served.node):  # only this agent has lost it
            return None
        group = last.nodes | last.awaited | {served.node}
        turn_s = min(_LAST_TURN_S, _TURN_S * sorted(group - {served.node} | {self._node}).index(self._node))
        is_certain = is_gone or self.observer.is_missed_by_most(served.node, len(group))
        return turn_s if is_certain else turn_s + _GRACE_S

    def _take_over(self, term: int, lost: Served, last: Round, seed: Seed, *, may_return: bool) -> Connection | None:
        """Serve the next store. None if another agent does."""
        assert self._terms is not None
        first = rounds.succeed(last, term + 1, lost.node, lost.address, may_return=may_return)
        if term != last.term:  # generations may have begun without this agent
            first = replace(first, generation=max(first.generation, self._terms.newest_generation()))
        store = serve(Served(node=self._node, address=self._address, port=0), self.timing, is_required=True)
        assert store is not None
        seed(store, first)  # before others can find it
        nodes = sorted(first.nodes | first.awaited)
        served = Served(node=self._node, address=self._address, port=store.port, nodes=nodes)
        claimed = self._terms.claim(served, above=term)
        return None if claimed is None else Connection(store=store, served=served, term=claimed, serves=True)


def _closed(reason: str) -> str:
    return f"the rendezvous is closed: {reason}"


def _name(served: Served) -> str:
    return f"{served.address}:{served.port}"
