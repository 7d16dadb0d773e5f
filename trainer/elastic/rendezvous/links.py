"""Heartbeats by UDP between the agents of a group, and questions whether a peer hears another. Standard library only.

One thread owns the socket. It reads everything that has arrived before it judges, so a pause of this process is no
silence of others. What it does not understand, and what is not for this agent, it ignores.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from trainer.elastic.rendezvous.inquiries import Asked, PendingAnswers, Reply
from trainer.elastic.rendezvous.link import Link, Quality, Silence
from trainer.elastic.rendezvous.link_messages import (
    Kind,
    Message,
    Verdict,
    check_node,
    parse_message,
    render_message,
)
from trainer.elastic.rendezvous.link_socket import MOST_AT_ONCE, Address, LinkSocket
from trainer.elastic.rendezvous.name_lookup import NameLookup
from trainer.elastic.rendezvous.suspicion import FLOOR_S, Arrivals, Heartbeat

_MESSAGES_PER_S = 2000  # the most heartbeats that one agent sends and receives
_AWAY_S = FLOOR_S / 2  # between two turns of the thread: then this agent was paused
_LONGEST_PASS_S = 0.25
_RETRY_NAMES_S = 5.0
_PARTING_S = 2.0


def find_interval_s(beat_s: float, peers: int) -> float:
    """The time between two heartbeats to each of `peers`: `beat_s`, but at least a millisecond for each peer.

    A heartbeat carries it, and a silence of fewer than five of them is never suspicious (suspicion.py). So the floor
    stays at 2 s up to 400 peers.
    """
    return max(beat_s, 2 * peers / _MESSAGES_PER_S)


class Links:
    """This agent's links. All methods are thread-safe, and none waits for the network or a name server but `close`.

    `node` names this agent with 12 hexadecimal digits. Raises ValueError, and OSError if there is no socket.
    """

    def __init__(self, node: str, beat_s: float = 0.2) -> None:
        self._node, self._beat_s = check_node(node), beat_s
        self._token = _draw_number()  # of this agent's probes
        self._socket = LinkSocket()
        self.port = self._socket.port
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # guards all below
        self._links: dict[str, Link] = {}
        self._questions, self._inquiries = Asked(beat_s), PendingAnswers()
        self._read_s = time.monotonic()  # all that arrived until then has been read
        self._beat_due_s = self._tick_due_s = self._names_due_s = self._turn_s = self._read_s
        self._soon: set[str] = set()  # peers that get a heartbeat at the next tick
        self._looking_up: set[tuple[str, int]] = set()
        self._is_closed = False
        self._names = NameLookup(self._look_up)
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None:
        """Send heartbeats to these nodes, and listen to theirs. A node whose port is 0 has no link.

        A node whose host or port has changed begins a new link. Raises ValueError for a malformed name or port.
        """
        wanted = {check_node(node): place for node, place in peers.items() if node != self._node}
        for node, (_, port) in wanted.items():
            if not 0 <= port <= 65535:
                raise ValueError(f"the port of node {node} is {port}, must be from 0 to 65535")
        with self._lock:
            now_s, before = time.monotonic(), self._links
            self._links = {}
            for node, (host, port) in wanted.items():
                link = before.get(node)
                if link is not None and link.place == (host, port):
                    self._links[node] = link
                elif port:
                    address = self._socket.resolve(host, port, is_numeric=True)
                    self._links[node] = Link((host, port), address, _draw_number(), self._beat_s, now_s)
                    self._soon.add(node)
            self._names_due_s = now_s
            self._wake()

    def silence(self, node: str) -> Silence:
        """What is known of a node. A node without a link counts as never heard."""
        with self._lock:
            link = self._links.get(node)
            return Silence() if link is None else link.silence(self._read_s)

    def quality(self, node: str) -> Quality:
        """How many heartbeats of a node are lost. FAIR for a node without a link."""
        with self._lock:
            link = self._links.get(node)
            return Quality.FAIR if link is None else link.quality()

    def arrivals(self, node: str) -> Arrivals | None:
        """How the last heartbeats of a node arrived. None if it has no link."""
        with self._lock:
            link = self._links.get(node)
            return None if link is None else link.arrivals()

    def ask(self, about: str, whom: Collection[str]) -> None:
        """Ask peers whether they hear a node. Earlier answers about it are forgotten.

        A peer probes the node, and answers within about a second. The question is repeated for three seconds.
        """
        check_node(about)
        with self._lock:
            self._questions.ask(about, whom)
            self._wake()

    def answers(self, about: str) -> Mapping[str, Verdict]:
        """How each peer hears the node, of the peers that have answered and have a way to it."""
        with self._lock:
            return self._questions.answers(about)

    def close(self) -> None:
        """End the threads and close the socket. Idempotent. Takes at most four seconds."""
        with self._lock:
            self._wake()
            self._is_closed = True
        self._names.close(_PARTING_S)
        self._thread.join(_PARTING_S)

    def _wake(self) -> None:
        if not self._is_closed:
            self._tick_due_s = self._turn_s
            os.eventfd_write(self._wakeup, 1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            with self._lock:
                if self._is_closed:
                    self._socket.close()
                    os.close(self._wakeup)
                    return
                wait_s = min(_LONGEST_PASS_S, max(0.0, min(self._tick_due_s, self._beat_due_s) - time.monotonic()))
            ready = poll.poll(wait_s * 1000)
            with self._lock:
                if any(descriptor == self._wakeup for descriptor, _ in ready):
                    os.eventfd_read(self._wakeup)
                self._take_turn(time.monotonic())

    def _take_turn(self, now_s: float) -> None:
        if now_s - self._turn_s > _AWAY_S:
            self._inquiries.skip(now_s)
            for link in self._links.values():
                link.skip(now_s)
        self._turn_s = now_s
        self._read(now_s)
        if now_s >= self._beat_due_s:
            self._beat_due_s = now_s + self._every_s()
            self._beat(self._links)
        if now_s >= self._tick_due_s:
            self._tick_due_s = now_s + self._beat_s
            self._beat(self._soon)
            self._soon.clear()
            self._repeat(now_s)
            self._start_lookups(now_s)

    def _read(self, now_s: float) -> None:
        refused = set(self._socket.refusals())
        if refused:
            for node, link in self._links.items():
                if link.address in refused and link.refuse(now_s):
                    self._soon.add(node)
        arrived = list(self._socket.receive())
        for data, sender in arrived:
            message = parse_message(data)
            if message is not None and message.receiver == self._node != message.sender:
                self._take(message, sender, now_s)
        if len(arrived) < MOST_AT_ONCE:
            self._read_s = now_s

    def _take(self, message: Message, sender: Address, now_s: float) -> None:
        match message.kind:
            case Kind.HEARTBEAT:
                if (link := self._links.get(message.sender)) is not None:
                    link.hear(Heartbeat(message.link_id, message.sequence, message.every_s), now_s)
            case Kind.PROBE:
                self._send(self._to(message.sender, Kind.ECHO, sequence=message.sequence), sender)
            case Kind.ECHO:
                if message.sequence == self._token:
                    self._reply(self._inquiries.end(message.sender, Verdict.HEARD))
            case Kind.QUESTION:
                if message.about is not None:
                    self._answer(message, message.about, sender, now_s)
            case Kind.ANSWER:
                if message.about is not None and message.sender in self._links:
                    self._questions.note(message.about, message.sequence, message.sender, message.verdict)

    def _answer(self, question: Message, about: str, sender: Address, now_s: float) -> None:
        link = self._links.get(about)
        if about == self._node:
            self._reply([Reply(sender, question.sender, about, question.sequence, Verdict.HEARD)])
            return
        if link is not None and link.is_heard_badly(self._read_s):
            self._reply([Reply(sender, question.sender, about, question.sequence, Verdict.HEARD_BADLY)])
            return
        target = None if link is None else link.address
        if target is None and question.ip is not None:
            target = self._socket.unpack(question.ip, question.port)
        if target is None:
            self._reply([Reply(sender, question.sender, about, question.sequence, Verdict.NO_LINK)])
        elif self._inquiries.add(about, target, (question.sender, sender, question.sequence), now_s):
            self._probe(about, target)

    def _beat(self, nodes: Collection[str]) -> None:
        for node in nodes:
            link = self._links.get(node)
            if link is not None and link.address is not None:
                link.sent += 1
                beat = self._to(node, Kind.HEARTBEAT, sequence=link.sent)
                self._send(replace(beat, link_id=link.link_id, every_s=self._every_s()), link.address)

    def _repeat(self, now_s: float) -> None:
        """Send again what has no answer yet, and answer what got no echo."""
        for about in self._inquiries.expired(now_s):
            self._reply(self._inquiries.end(about, Verdict.NOT_HEARD))
        for about, target in self._inquiries.targets():
            self._probe(about, target)
        for about, number, peer in self._questions.due(now_s):
            link = self._links.get(peer)
            if link is not None and link.address is not None:
                self._send(self._question(about, number, peer), link.address)

    def _question(self, about: str, number: int, peer: str) -> Message:
        question = replace(self._to(peer, Kind.QUESTION, sequence=number), about=about)
        link = self._links.get(about)
        # A scope is the number of an interface, which others do not know.
        if link is None or link.address is None or link.address.scope:
            return question
        return replace(question, ip=self._socket.pack(link.address), port=link.address.port)

    def _probe(self, node: str, target: Address) -> None:
        self._send(self._to(node, Kind.PROBE, sequence=self._token), target)

    def _reply(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            answer = self._to(reply.asker, Kind.ANSWER, sequence=reply.number)
            self._send(replace(answer, about=reply.about, verdict=reply.verdict), reply.to)

    def _to(self, node: str, kind: Kind, sequence: int) -> Message:
        return Message(kind=kind, sender=self._node, receiver=node, sequence=sequence)

    def _send(self, message: Message, to: Address) -> None:
        self._socket.send(render_message(message), to)

    def _every_s(self) -> float:
        return find_interval_s(self._beat_s, len(self._links))

    def _start_lookups(self, now_s: float) -> None:
        if now_s < self._names_due_s:
            return
        self._names_due_s = now_s + _RETRY_NAMES_S
        for link in self._links.values():
            if link.address is None and link.place not in self._looking_up:
                self._looking_up.add(link.place)
                self._names.add(*link.place)

    def _look_up(self, host: str, port: int) -> None:
        address = self._socket.resolve(host, port, is_numeric=False)
        with self._lock:
            self._looking_up.discard((host, port))
            for node, link in self._links.items():
                if link.place == (host, port):
                    link.address = address
                    self._soon.add(node)
            if address is not None:
                self._wake()


def _draw_number() -> int:
    return int.from_bytes(os.urandom(8), "big")
