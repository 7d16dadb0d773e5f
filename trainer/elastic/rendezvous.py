"""The rendezvous over a TCP store: this agent's access to the document of rounds.py, and the heartbeats.

One thread owns the connection. A store's call blocks in C++ for as long as the network likes, out of reach of signals:
the main thread waits for that thread instead, and a signal ends the wait.

A heartbeat is a counter, and silence is measured by the clock of the listener, so clocks of nodes may differ. Errors of
the store are RuntimeErrors in every torch from 2.6 on (DistNetworkError, DistStoreError).
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerYet
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from torch.distributed import Store, TCPStore

from trainer.contract.failure import Failure, FailureKind
from trainer.contract.fence import parse_term
from trainer.contract.layout import fence_dir, replica_dir
from trainer.elastic import rounds
from trainer.elastic.awake import AwakeClock
from trainer.elastic.document import Document
from trainer.elastic.files import say
from trainer.elastic.rdzv_conf import Timing
from trainer.elastic.record import Record
from trainer.elastic.rounds import Ending, Limits, Member, Round, Stage, WorkersStore

_PROBE_EVERY_S, _PROBE_S = 0.1, 1.0
_GLANCE_S = 0.2  # between two looks whether the thread lives
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.005, 0.1  # while a group forms
_LOOK_EVERY_S = 0.05  # while it runs
_LONGEST_TURN_S = 0.5  # of a loop that waits for others: what lasts longer was a pause of this process
_AFTERMATH_S = 10.0  # of an absence: within this time the workers here lose peers that were ended during it
_ASK_S = 2.0  # for one answer, where it is not waited for
_LOOKS_PER_S = 2000  # of all agents of a large group together
_PARTING_S = 2.0  # for the store's last answer, and again for the thread's end
_TELL_AFTER_S = 3.0
_RESTS = "waiting before the workers start again: the last generations made no progress"
_LAST_TO_FINISH_S = 300.0  # torchrun's own exit barrier
_SILENT_STORE_S = 30
# tcp(7): what was sent is acknowledged within this time, and when nothing is sent the kernel asks every five seconds.
_KEEP_ALIVE = {
    socket.TCP_USER_TIMEOUT: _SILENT_STORE_S * 1000,
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: _SILENT_STORE_S // 5,
}


class RendezvousFailed(Exception):
    """No group can form. `was_member`: this agent had been in one."""

    def __init__(self, message: str, *, was_member: bool = False) -> None:
        super().__init__(message)
        self.failure = Failure(kind=FailureKind.RENDEZVOUS, message=message)
        self.was_member = was_member


class Rendezvous(Protocol):
    """How an agent finds its group. Methods are the main thread's; each may raise RendezvousFailed."""

    def next_group(self, generation: int, ending: Ending) -> Round:
        """Wait for the next formed round with this agent in it. `generation` is the highest that it knows of.

        `ending` is that of the round before, where this agent was in one.
        """

    def offer(self, store: WorkersStore) -> None:
        """Tell the group where its workers meet."""

    def await_offer(self) -> WorkersStore | None:
        """Where the workers of the formed round meet; None when the group has changed before its first node said so."""

    def find_change(self) -> str | None:
        """Why the group is not what it was when it formed; None while it is. Never blocks."""

    def find_lost(self) -> Sequence[Member]:
        """The members that the group of this agent has lost since it formed. Never blocks."""

    def find_parting(self) -> str | None:
        """Why workers may have lost their peers though none of them failed: the group changed, or was out of touch.

        None where nothing is known of that. Takes two seconds at most.
        """

    def tell_still(self, words: str | None) -> None:
        """Report to the group that this agent's workers stand still; None withdraws it."""

    def find_still(self) -> Sequence[str] | None:
        """The reports of all agents whose workers run; None while one of them has none. Never blocks."""

    def finish(self) -> None:
        """All workers of this agent have succeeded. The agent that serves the store waits for the other nodes."""

    def leave(self, reason: str | None = None) -> None:
        """Leave the group; with a reason, close the rendezvous for all. Never raises; takes five seconds at most."""


class Alone:
    """The rendezvous of a group of one agent: there is nobody to ask."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self._round = Round(number=-1)
        self._unsettled = 0  # generations in a row that did not last

    def next_group(self, generation: int, ending: Ending) -> Round:
        if self._round.generation:
            self._unsettled = 0 if ending.lasted else self._unsettled + 1
        rest_s = rounds.pause_s(self._unsettled)
        if rest_s > _TELL_AFTER_S:
            say(_RESTS)
        time.sleep(rest_s)
        known = max(self._round.generation, generation)
        self._round = Round(
            number=self._round.number + 1, stage=Stage.FORMED, generation=known + 1, members=(self._me,)
        )
        return self._round

    def offer(self, store: WorkersStore) -> None:
        self._round = replace(self._round, store=store)

    def await_offer(self) -> WorkersStore | None:
        return self._round.store

    def find_change(self) -> str | None:
        return None

    def find_lost(self) -> Sequence[Member]:
        return ()

    def find_parting(self) -> str | None:
        return None

    def tell_still(self, words: str | None) -> None:
        self._round = rounds.tell_still(self._round, self._round.number, self._me.node, words)

    def find_still(self) -> Sequence[str] | None:
        return rounds.find_still(self._round)

    def finish(self) -> None:
        return

    def leave(self, reason: str | None = None) -> None:
        return


class Shared:
    """The rendezvous of several agents, over the store that `open_store` opens."""

    def __init__(
        self, open_store: Callable[[], tuple[Store, bool]], run_id: str, me: Member, limits: Limits, timing: Timing
    ) -> None:
        self._me, self._limits, self._timing = me, limits, timing
        self._clerk = _Clerk(open_store, f"elasticrun/{run_id}", me.node, limits, timing)
        self._formed: Round | None = None
        self._silence = _Steady(AwakeClock(timing.silence_s / 2))  # of the store, as the main thread sees it

    def next_group(self, generation: int, ending: Ending) -> Round:
        me = self._me = replace(self._me, generation=generation)
        before, self._formed = self._formed, None
        self._clerk.start_once()
        now = self._clerk.amend(partial(_come_back, before=before, ending=ending, me=me, limits=self._limits))
        clock, waits = AwakeClock(_LONGEST_TURN_S), _Waits()
        present, opened = _Steady(clock), _Steady(clock)
        patient = _Patience(f"waiting for other nodes; a group needs at least {self._limits.min_nodes}")
        resting = _Patience(_RESTS)
        while not (now.stage is Stage.FORMED and now.has(me.node)):
            if now.stage is Stage.CLOSED:
                raise RendezvousFailed(f"the rendezvous is closed: {now.reason}", was_member=before is not None)
            rest_s = rounds.pause_s(now.unsettled)
            if clock.now_s() > self._timing.join_s + rest_s:
                raise self._too_few(now, was_member=before is not None)
            time_is_up = present.measure_s(now.nodes) > self._timing.last_call_s
            rests = opened.measure_s(now.number) < rest_s
            step = partial(_step, me=me, limits=self._limits, rests=rests, time_is_up=time_is_up)
            if step(now) == now:
                (resting if rests else patient).tell()
                waits.wait(len(now.members))
                now = self._clerk.look()
            else:
                now = self._clerk.amend(step)
        self._formed = now
        return now

    def offer(self, store: WorkersStore) -> None:
        assert self._formed is not None
        self._clerk.amend(partial(rounds.offer, number=self._formed.number, store=store))

    def await_offer(self) -> WorkersStore | None:
        assert self._formed is not None
        clock, waits = AwakeClock(_LONGEST_TURN_S), _Waits()
        while True:
            now = self._clerk.look()
            if now.number == self._formed.number and now.store is not None:
                return now.store
            if rounds.find_change(now, self._formed, self._me.node, self._limits) is not None:
                return None
            if clock.now_s() > self._timing.join_s:
                raise RendezvousFailed("the first node named no store for the workers", was_member=True)
            waits.wait(len(self._formed.members))

    def find_change(self) -> str | None:
        if self._formed is None:
            return None
        now, answers = self._clerk.newest()
        silent_s = self._find_silence(now, answers)
        if silent_s is not None:
            return f"the rendezvous store has not answered for {silent_s:.0f} s"
        return rounds.find_change(now, self._formed, self._me.node, self._limits)

    def find_lost(self) -> Sequence[Member]:
        if self._formed is None:
            return ()
        now, answers = self._clerk.newest()
        # In a job the first member serves the store.
        return self._formed.members[:1] if self._find_silence(now, answers) else rounds.find_lost(now, self._formed)

    def _find_silence(self, now: Round, answers: int) -> float | None:
        """For how long the store has been silent, where that is too long; `answers` is how many it has given."""
        assert self._formed is not None
        silent_s = self._silence.measure_s(answers)
        limit_s = 2 * self._timing.silence_s
        if not rounds.can_do_without(now, {self._me.node}, self._limits):
            limit_s = max(limit_s, self._timing.patience_s)
        return silent_s if len(self._formed.members) > 1 and silent_s > limit_s else None

    def find_parting(self) -> str | None:
        assert self._formed is not None
        with suppress(RendezvousFailed):
            parting = rounds.find_parting(self._clerk.look(_ASK_S), self._formed, self._me.node)
            if parting is not None:
                return parting
        away_s = self._clerk.find_absence()
        return None if away_s is None else f"this node was out of touch with the others for {away_s:.0f} s"

    def tell_still(self, words: str | None) -> None:
        assert self._formed is not None
        number, node = self._formed.number, self._me.node
        self._clerk.amend(partial(rounds.tell_still, number=number, node=node, words=words))

    def find_still(self) -> Sequence[str] | None:
        now, _ = self._clerk.newest()
        return rounds.find_still(now)

    def finish(self) -> None:
        assert self._formed is not None
        formed, clock, waits = self._formed, AwakeClock(_LONGEST_TURN_S), _Waits()
        now = self._clerk.amend(partial(rounds.finish, number=formed.number, node=self._me.node))
        while self._clerk.serves and formed.nodes & now.nodes - now.finished and clock.now_s() < _LAST_TO_FINISH_S:
            if now.stage is Stage.CLOSED:
                return
            waits.wait(len(formed.members))
            now = self._clerk.look()

    def leave(self, reason: str | None = None) -> None:
        if not self._clerk.is_open:  # nobody knows of us, and the thread may wait for the store for long
            return
        go = partial(rounds.drop, nodes={self._me.node})
        with suppress(RendezvousFailed):
            self._clerk.amend(go if reason is None else partial(rounds.close, reason=reason), timeout_s=_PARTING_S)
        self._clerk.stop()

    def _too_few(self, now: Round, *, was_member: bool) -> RendezvousFailed:
        there = ", ".join(member.address for member in now.members) or "none"
        return RendezvousFailed(
            f"{len(now.members)} of at least {self._limits.min_nodes} nodes came within {self._timing.join_s:.0f} s: "
            f"{there}",
            was_member=was_member,
        )


def _come_back(now: Round, *, before: Round | None, ending: Ending, me: Member, limits: Limits) -> Round:
    """Open the round after the one that this agent has just left, unless another agent has; then join."""
    is_mine = before is not None and before.number == now.number and now.has(me.node)
    return rounds.join(rounds.reopen(now, me, limits, ending) if is_mine else now, me, limits)


def _step(now: Round, *, me: Member, limits: Limits, rests: bool, time_is_up: bool) -> Round:
    joined = rounds.join(now, me, limits)
    return joined if rests else rounds.form(joined, limits, time_is_up=time_is_up)


class _Steady:
    """Since when something has been the same, by an AwakeClock."""

    def __init__(self, clock: AwakeClock) -> None:
        self._clock = clock
        self._value: object = None
        self._since_s = 0.0

    def measure_s(self, value: object) -> float:
        now_s = self._clock.now_s()
        if value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s


class _Waits:
    """Pauses between looks, each longer than the last. They are longer in a large group, to spare its store."""

    def __init__(self) -> None:
        self._pause_s = _SHORTEST_POLL_S

    def wait(self, nodes: int) -> None:
        time.sleep(max(self._pause_s, nodes / _LOOKS_PER_S))
        self._pause_s = min(_LONGEST_POLL_S, self._pause_s * 1.2)


class _Patience:
    """Says once, after a while, what this agent waits for."""

    def __init__(self, sentence: str) -> None:
        self._sentence, self._tell_at_s = sentence, time.monotonic() + _TELL_AFTER_S

    def tell(self) -> None:
        if time.monotonic() > self._tell_at_s:
            self._tell_at_s = float("inf")
            say(self._sentence)


class _Clerk:
    """The thread that owns the connection. All agents of a run share the document under `key`."""

    def __init__(
        self, open_store: Callable[[], tuple[Store, bool]], key: str, node: str, limits: Limits, timing: Timing
    ) -> None:
        self.serves = False
        self._open_store, self._key, self._node, self._limits, self._timing = open_store, key, node, limits, timing
        self._orders: queue.SimpleQueue[tuple[Callable[[Round], Round] | None, Future[Round]] | None]
        self._orders = queue.SimpleQueue()
        self._error: RendezvousFailed | None = None
        self._document: Document | None = None
        self._round, self._answers = Round(), 0  # and how often it was read
        self._heard: dict[str, tuple[bytes, float]] = {}  # of each node that we watch: its count, and when that changed
        self._listened_s = float("-inf")
        self._absence = 0.0, float("-inf")  # the last time without a heartbeat of ours: how long, and when it ended
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    @property
    def is_open(self) -> bool:
        """Whether it has read the document once."""
        return self._document is not None

    def start_once(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        self._orders.put(None)
        if self._thread.ident:
            self._thread.join(_PARTING_S)

    def newest(self) -> tuple[Round, int]:
        """The document as last seen, and how often it has been seen. Raises RendezvousFailed once the store is lost."""
        if self._error is not None:
            raise self._error
        return self._round, self._answers

    def find_absence(self) -> float | None:
        """How long this agent was silent, so that the others may have given it up: now, or until a moment ago."""
        now_s = time.monotonic()
        since_s = now_s - self._listened_s
        if since_s > self._timing.silence_s / 2:
            return since_s
        away_s, back_s = self._absence
        return away_s if now_s - back_s < _AFTERMATH_S else None

    def look(self, timeout_s: float | None = None) -> Round:
        """The document as it is now."""
        return self._ask(None, timeout_s)

    def amend(self, change: Callable[[Round], Round], timeout_s: float | None = None) -> Round:
        """Apply a change and return the document with it."""
        return self._ask(change, timeout_s)

    def _ask(self, change: Callable[[Round], Round] | None, timeout_s: float | None = None) -> Round:
        answer: Future[Round] = Future()
        self._orders.put((change, answer))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with suppress(NoAnswerYet):
                return answer.result(_GLANCE_S)
            if not self._thread.is_alive() and not answer.done():
                raise self._error or RendezvousFailed("the rendezvous has ended")
            if deadline is not None and time.monotonic() > deadline:
                raise RendezvousFailed("the rendezvous store does not answer")

    def _run(self) -> None:
        answer: Future[Round] | None = None
        try:
            store, self.serves = self._open_store()
            self._open(store)
            while True:
                self._keep_alive(store)
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
        except (RuntimeError, ValueError, OSError, RendezvousFailed) as error:
            self._error = error if isinstance(error, RendezvousFailed) else _lost(error, self.is_open)
            if answer is not None:
                answer.set_exception(self._error)

    def _open(self, store: Store) -> None:
        store.add(self._beat(self._node), 1)
        self._document = Document(store, self._key)
        self._hear(self._document.round)

    def _apply(self, change: Callable[[Round], Round] | None) -> Round:
        assert self._document is not None
        return self._hear(self._document.refresh() if change is None else self._document.amend(change))

    def _hear(self, now: Round) -> Round:
        self._round, self._answers = now, self._answers + 1
        return now

    def _poll_s(self) -> float:
        return min(self._timing.beat_s, max(_LOOK_EVERY_S, len(self._round.members) / _LOOKS_PER_S))

    def _keep_alive(self, store: Store) -> None:
        """Once a heartbeat's time: beat, and drop whoever has been silent for too long."""
        now_s = time.monotonic()
        since_s = now_s - self._listened_s
        if since_s < self._timing.beat_s:
            return
        was_away = self._timing.silence_s / 2 < since_s < float("inf")  # then it was we who were silent
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
        silent = {node for node, (_, since) in heard.items() if now_s - since > self._timing.silence_s}
        if not rounds.can_do_without(self._round, silent, self._limits):
            silent = {node for node in silent if now_s - heard[node][1] > self._timing.patience_s}
        if silent:
            self._apply(partial(rounds.drop, nodes=silent))

    def _beat(self, node: str) -> str:
        return f"{self._key}/beat/{node}"


def open_store(host: str, port: int, serves: bool | None, timing: Timing) -> tuple[Store, bool]:
    """Serve the store at HOST:PORT, or connect to it; the store, and whether it is served here.

    Raises RendezvousFailed.
    """
    if serves or (serves is None and is_here(host)):
        try:
            return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_limit(timing)), True
        except RuntimeError as error:
            taken = "EADDRINUSE" in str(error) or "already in use" in str(error)
            if serves or not taken:
                raise _explain(host, port, str(error)) from error
    await_store(host, port, timing.read_s)
    try:
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_limit(timing))
    except RuntimeError as error:
        raise _explain(host, port, str(error)) from error
    give_up_on_silence(port)
    return store, False


def await_store(host: str, port: int, timeout_s: float) -> None:
    """Wait until somebody listens there. Raises RendezvousFailed."""
    clock, patient = AwakeClock(2 * _PROBE_S), _Patience(f"waiting for the rendezvous store at {host}:{port}")
    while (cause := _probe(host, port)) is not None:
        patient.tell()
        if clock.now_s() > timeout_s:
            raise _explain(host, port, f"{cause}, waited {timeout_s:.0f} s")
        time.sleep(_PROBE_EVERY_S)


def give_up_on_silence(port: int) -> None:
    """Let the connections to the store at `port` fail once its node has been silent for _SILENT_STORE_S.

    TCP by itself would try for a quarter of an hour. A store whose process is stopped is not silent: its kernel
    answers.
    """
    # Sockets only: of anything else, socket() would fail and leave the copy open.
    for descriptor in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] == port:
                for option, value in _KEEP_ALIVE.items():
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def is_here(host: str) -> bool:
    """Whether a name or address is this machine's: a socket can be bound to it."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    return False


def find_address(host: str, port: int) -> str:
    """This node's address for other nodes: `host` where that is this node, else the local address of a route to it."""
    if is_here(host):
        return host
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:
                way.connect(address)
                return str(way.getsockname()[0])
    return socket.getfqdn()


def known_generation(record: Record) -> int:
    """The highest generation of this attempt that left a trace: a term in the fence or a folder of this replica."""
    terms = (parse_term(path.name) for path in _listed(fence_dir(record.job_dir)))
    begun = [term.generation for term in terms if term is not None and term.attempt == record.attempt]
    folders = replica_dir(record.job_dir, record.attempt, record.replica).glob("*/g*")
    return max([0, *begun, *(int(folder.name[1:]) for folder in folders if folder.name[1:].isdecimal())])


def _explain(host: str, port: int, cause: str) -> RendezvousFailed:
    """One line that names the port, for a store that can be neither bound nor reached."""
    if "EADDRINUSE" in cause or "already in use" in cause:
        return RendezvousFailed(
            f"port {port} is already in use on this machine (rendezvous endpoint {host}:{port}, EADDRINUSE)"
        )
    return RendezvousFailed(f"no rendezvous store answers at {host}:{port}: {' '.join(cause.split())[:200]}")


def _lost(error: Exception, was_member: bool) -> RendezvousFailed:
    said = " ".join(str(error).split())[:200]
    return RendezvousFailed(f"the rendezvous store is lost: {type(error).__name__}: {said}", was_member=was_member)


def _probe(host: str, port: int) -> str | None:
    """None when the port answers, else why not."""
    try:
        socket.create_connection((host, port), timeout=_PROBE_S).close()
    except OSError as error:
        return str(error)
    return None


def _limit(timing: Timing) -> timedelta:
    return timedelta(seconds=max(1.0, timing.read_s))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
