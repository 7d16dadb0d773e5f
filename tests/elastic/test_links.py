"""Heartbeats between real links on loopback, and the messages between them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import count_descriptors
from tests.elastic.harness import ROOT, wait_for
from trainer.elastic.rendezvous import link_socket
from trainer.elastic.rendezvous.inquiries import Asked, PendingAnswers
from trainer.elastic.rendezvous.link_messages import Kind, Message, Verdict, parse_message, render_message
from trainer.elastic.rendezvous.link_socket import Address
from trainer.elastic.rendezvous.links import Links, find_interval_s
from trainer.elastic.rendezvous.suspicion import FLOOR_S, Gap

A, B, C, D = ("a" * 12, "b" * 12, "c" * 12, "d" * 12)
ADDRESS = Address("::1", 1)
SOON_S = 20.0  # of a busy machine

nodes = st.binary(min_size=6, max_size=6).map(bytes.hex)
numbers = st.integers(0, 2**64 - 1)


class Group:
    """Links on loopback, by their names. `end` closes them."""

    def __init__(self) -> None:
        self.links: dict[str, Links] = {}

    def add(self, *names: str) -> None:
        for name in names:
            self.links[name] = Links(name)

    def places(self, host: str = "127.0.0.1") -> dict[str, tuple[str, int]]:
        return {name: (host, links.port) for name, links in self.links.items()}

    def meet(self, host: str = "127.0.0.1") -> None:
        for links in self.links.values():
            links.follow(self.places(host))
        for name, peer in itertools.permutations(self.links, 2):
            wait_for(lambda name=name, peer=peer: self.links[name].silence(peer).heard, f"{peer} at {name}")

    def end(self) -> None:
        for links in self.links.values():
            links.close()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.end()


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind(("::1", 0))
        return True
    return False


HOSTS = ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6")), "localhost"]


@pytest.mark.parametrize("host", HOSTS)
def test_peers_are_heard_and_a_closed_one_is_refused(group: Group, host: str) -> None:
    group.add(A, B)
    group.meet(host)
    assert not group.links[A].silence(B).refused
    group.links[B].close()
    closed_s = time.monotonic()
    wait_for(lambda: group.links[A].silence(B).refused, "refusal", SOON_S)
    assert time.monotonic() - closed_s >= 0.15  # two refusals that are a beat apart
    assert group.links[A].silence(B).heard


def test_a_machine_without_ipv6_has_links(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_socket.socket, "has_ipv6", False)
    group.add(A, B, C)
    group.meet()
    group.links[B].close()
    wait_for(lambda: group.links[A].silence(B).refused, "refusal", SOON_S)
    group.links[A].ask(B, [C])
    wait_for(lambda: C in group.links[A].answers(B), "answer", SOON_S)


def test_no_heartbeat_is_lost_on_loopback(group: Group) -> None:
    group.add(A, B)
    group.meet()
    wait_for(lambda: len(gaps(group.links[A], B)) > 5, "heartbeats")
    assert {steps for _, steps in gaps(group.links[A], B)} == {1}


def gaps(links: Links, node: str) -> tuple[tuple[float, int], ...]:
    arrivals = links.arrivals(node)
    assert arrivals is not None
    return arrivals.gaps


def test_a_peer_without_a_port_has_no_link(group: Group) -> None:
    group.add(A, B)
    group.links[A].follow({B: ("127.0.0.1", 0), C: ("127.0.0.1", group.links[B].port)})
    assert group.links[A].arrivals(B) is None
    assert group.links[A].arrivals(C) is not None
    silence = group.links[A].silence(B)
    assert (silence.heard, silence.suspected, silence.refused) == (False, False, False)


@pytest.mark.parametrize(("node", "port"), [("node-1", 5), ("A" * 12, 5), (B, -1), (B, 65536)])
def test_a_malformed_peer_is_an_error(group: Group, node: str, port: int) -> None:
    group.add(A)
    with pytest.raises(ValueError, match="must be"):
        group.links[A].follow({node: ("127.0.0.1", port)})


def test_a_peer_on_a_new_port_is_heard_and_no_longer_refused(group: Group) -> None:
    group.add(A, B)
    group.meet()
    group.links[B].close()
    wait_for(lambda: group.links[A].silence(B).refused, "refusal", SOON_S)
    group.add(B)
    group.meet()
    assert not group.links[A].silence(B).refused
    assert group.links[A].silence(B).silent_s < FLOOR_S


def test_a_peer_that_is_dropped_and_followed_again_is_heard(group: Group) -> None:
    """The numbers of the heartbeats to B start again, which B must not take for old ones."""
    group.add(A, B)
    group.meet()
    wait_for(lambda: len(gaps(group.links[B], A)) > 5, "heartbeats")
    group.links[A].follow({})
    wait_for(lambda: group.links[B].silence(A).silent_s > 0.5, "silence")
    group.links[A].follow(group.places())
    wait_for(lambda: group.links[B].silence(A).silent_s < 0.2, "heartbeat", 1.5)


STOPPED = """
import select, sys, time
from trainer.elastic.rendezvous.links import Links
links, peer = Links("bbbbbbbbbbbb"), "aaaaaaaaaaaa"
print(links.port, flush=True)
links.follow({peer: ("127.0.0.1", int(sys.stdin.readline()))})
while not links.silence(peer).heard:
    time.sleep(0.001)
print("heard", flush=True)
suspicions = 0
while True:
    suspicions += links.silence(peer).suspected
    if select.select([sys.stdin], [], [], 0.001)[0]:
        break
print(suspicions, flush=True)
sys.stdin.read()
"""


class Peer:
    """Node B in a process of its own, which counts how often it suspects node A."""

    def __init__(self, links: Links) -> None:
        command = [sys.executable, "-c", STOPPED]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.place = {B: ("127.0.0.1", int(self.read()))}
        links.follow(self.place)
        self.write(str(links.port))
        assert self.read() == "heard\n"
        wait_for(lambda: len(gaps(links, B)) > 10, "heartbeats", SOON_S)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")


def test_a_stopped_process_is_suspected_until_it_continues_and_suspects_nobody(group: Group) -> None:
    group.add(A)
    links = group.links[A]
    with Peer(links) as peer:
        peer.signal(signal.SIGSTOP)
        wait_for(lambda: links.silence(B).suspected, "suspicion", SOON_S)
        assert not links.silence(B).refused
        peer.signal(signal.SIGCONT)
        wait_for(lambda: not links.silence(B).suspected, "heartbeat", SOON_S)
        heard = len(gaps(links, B))
        wait_for(lambda: len(gaps(links, B)) > heard + 5, "heartbeats", SOON_S)
        peer.write("report")
        assert peer.read() == "0\n"


def test_a_process_that_was_paused_suspects_nobody_although_no_heartbeat_has_arrived_meanwhile(group: Group) -> None:
    """As if the whole machine was paused: nothing waits in the socket."""
    group.add(A)
    links = group.links[A]
    with Peer(links) as peer:
        links.follow({})
        peer.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        wait_for(lambda: time.monotonic() - stopped_s > 2 * FLOOR_S, "end of the pause")
        peer.signal(signal.SIGCONT)
        peer_wakes_s = time.monotonic()
        wait_for(lambda: time.monotonic() - peer_wakes_s > 0.5, "first turns of the peer")
        links.follow(peer.place)
        wait_for(lambda: links.silence(B).heard, "heartbeat", SOON_S)
        peer.write("report")
        assert peer.read() == "0\n"


def test_peers_answer_whether_they_hear_a_node(group: Group) -> None:
    group.add(A, B, C, D)
    group.meet()
    group.links[A].ask(B, [C, D])
    wait_for(lambda: group.links[A].answers(B) == {C: Verdict.HEARD, D: Verdict.HEARD}, "answers", SOON_S)
    group.links[B].close()
    wait_for(lambda: group.links[A].silence(B).silent_s > 1.5, "silence")
    group.links[A].ask(B, [C, D])
    assert group.links[A].answers(B) == {}
    wait_for(lambda: group.links[A].answers(B) == {C: Verdict.NOT_HEARD, D: Verdict.NOT_HEARD}, "answers", SOON_S)


def test_a_peer_without_a_link_probes_the_address_in_the_question(group: Group) -> None:
    group.add(A, B, C)
    group.links[A].follow(group.places())
    group.links[C].follow({})
    group.links[A].ask(B, [C])
    wait_for(lambda: group.links[A].answers(B) == {C: Verdict.HEARD}, "answer", SOON_S)
    group.links[B].close()
    group.links[A].ask(B, [C])
    wait_for(lambda: group.links[A].answers(B) == {C: Verdict.NOT_HEARD}, "answer", SOON_S)


class Stranger:
    """A socket that sends messages of its own to some links."""

    def __init__(self, links: Links) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(SOON_S)
        self._to = "127.0.0.1", links.port

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendto(data, self._to)

    def receive(self) -> Message | None:
        return parse_message(self._socket.recv(2048))


@pytest.mark.parametrize(
    ("kind", "about", "answer", "verdict"),
    [
        (Kind.PROBE, None, Kind.ECHO, Verdict.NONE),
        (Kind.QUESTION, C, Kind.ANSWER, Verdict.NO_LINK),
        (Kind.QUESTION, A, Kind.ANSWER, Verdict.HEARD),
    ],
)
def test_questions_and_probes_of_strangers_are_answered_if_they_name_this_node(
    group: Group, kind: Kind, about: str | None, answer: Kind, verdict: Verdict
) -> None:
    group.add(A)
    asked = Message(kind=kind, sender=B, receiver=A, sequence=7, about=about)
    with Stranger(group.links[A]) as stranger:
        stranger.send(render_message(replace(asked, receiver=C, sequence=6)))
        stranger.send(render_message(asked))
        assert stranger.receive() == Message(
            kind=answer, sender=A, receiver=B, sequence=7, about=about, verdict=verdict, every_s=0.01
        )


def test_messages_for_other_nodes_and_garbage_are_ignored(group: Group) -> None:
    group.add(A, B)
    group.meet()
    rng, links = random.Random(1), group.links[A]
    beat = Message(kind=Kind.HEARTBEAT, sender=B, receiver=A, link_id=1, sequence=2**63, every_s=60.0)
    valid = render_message(beat)
    with Stranger(links) as stranger:
        for _ in range(2000):
            stranger.send(rng.randbytes(rng.choice([0, 1, 5, len(valid), len(valid), 1400])))
            stranger.send(valid[: rng.randrange(len(valid))])
            stranger.send(valid + rng.randbytes(rng.randrange(1, 9)))
            stranger.send(b"eRl\x02" + valid[4:])
            stranger.send(render_message(replace(beat, receiver=C)))
            stranger.send(render_message(replace(beat, sender=D)))
            stranger.send(render_message(replace(beat, kind=Kind.ANSWER, about=B, verdict=Verdict.HEARD)))
            stranger.send(render_message(replace(beat, kind=Kind.ECHO)))
        stranger.send(render_message(Message(kind=Kind.PROBE, sender=B, receiver=A, sequence=9)))
        wait_for(lambda: not links.silence(D).heard and links.silence(B).silent_s < 0.1, "heartbeat")
    heard = links.arrivals(B)
    wait_for(lambda: links.arrivals(B) != heard, "heartbeat")
    assert not links.silence(B).suspected
    assert links.answers(B) == {}
    assert max(steps for _, steps in gaps(links, B)) < 2**32


def test_hosts_that_cannot_be_reached_do_not_end_the_thread(group: Group) -> None:
    group.add(A, B)
    unreachable = {C: ("240.0.0.1", 9), D: ("255.255.255.255", 9), "e" * 12: ("::2", 9), "f" * 12: ("fe80::1", 9)}
    bad_names = {"0" * 12: ("x" * 100, 9), "1" * 12: ("", 9), "2" * 12: ("a\0b", 9)}
    group.links[B].follow(group.places())
    group.links[A].follow(group.places() | unreachable | bad_names)
    for of, peer in ((A, B), (B, A)):
        wait_for(lambda of=of, peer=peer: len(gaps(group.links[of], peer)) > 5, "heartbeats")


def test_a_slow_name_server_delays_no_heartbeat(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, port: int, **options: Any) -> Any:
        if host == "slow.example":
            if options["flags"] & socket.AI_NUMERICHOST:
                raise socket.gaierror
            assert answers.wait(150)
            host = "127.0.0.1"
        return real(host, port, **options)

    monkeypatch.setattr(link_socket.socket, "getaddrinfo", look_up)
    group.add(A, B, C)
    group.links[A].follow({B: group.places()[B], C: ("slow.example", group.links[C].port)})
    for name in (B, C):
        group.links[name].follow(group.places())
    wait_for(lambda: len(gaps(group.links[B], A)) > 5, "heartbeats")
    assert not group.links[C].silence(A).heard
    answers.set()
    wait_for(lambda: group.links[C].silence(A).heard, "heartbeat", SOON_S)


def test_no_thread_and_no_descriptor_is_left() -> None:
    before = threads(), count_descriptors()
    opened = Group()
    opened.add(A, B)
    opened.meet("localhost")
    opened.end()
    opened.end()
    opened.links[A].follow({})
    assert (threads(), count_descriptors()) == before


def threads() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate()}


@given(st.integers(0, 60_000))
def test_an_agent_sends_and_receives_at_most_2000_heartbeats_a_second(peers: int) -> None:
    interval_s = find_interval_s(0.2, peers)
    assert interval_s >= 0.2
    assert 2 * peers / interval_s <= 2000.01


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes_are_parsed_without_an_error(data: bytes, begins_well: bool) -> None:
    whole = len(render_message(Message(kind=Kind.PROBE, sender=A, receiver=B)))
    parse_message((b"eRl\x01" + data).ljust(whole, b"\1")[:whole] if begins_well else data)


@given(
    st.builds(
        Message,
        kind=st.sampled_from(Kind),
        sender=nodes,
        receiver=nodes,
        link_id=numbers,
        sequence=numbers,
        every_s=st.integers(10, 60_000).map(lambda ms: ms / 1000),
        about=st.none() | nodes.filter(lambda node: node != "0" * 12),
        ip=st.none() | st.binary(min_size=16, max_size=16).filter(any),
        port=st.integers(0, 65535),
        verdict=st.sampled_from(Verdict),
    )
)
def test_a_message_is_parsed_as_it_was_rendered(message: Message) -> None:
    assert parse_message(render_message(message)) == message


def test_an_agent_that_loses_heartbeats_of_a_node_says_so_when_asked(group: Group) -> None:
    group.add(A, B, C)
    group.meet()
    asker, witness = group.links[A], group.links[C]

    def is_heard_badly() -> bool:
        with witness._lock:
            witness._links[B]._detector._gaps.extend([Gap(0.4, 2)] * 3)
        if Verdict.HEARD in asker.answers(B).values():
            asker.ask(B, [C])
        return asker.answers(B) == {C: Verdict.HEARD_BADLY}

    asker.ask(B, [C])
    wait_for(is_heard_badly, "answer", SOON_S)


def test_a_question_is_repeated_until_it_is_answered_or_three_seconds_have_passed() -> None:
    questions = Asked(0.2)
    questions.ask(B, [A, B, C])
    sent = [list(questions.due(n * 0.1)) for n in range(2)]
    assert {peer for _, _, peer in sent[0]} == {A, C}
    assert sent[1] == []
    number = sent[0][0][1]
    questions.note(B, number + 1, A, Verdict.HEARD)
    questions.note(B, number, D, Verdict.HEARD)
    questions.note(C, number, A, Verdict.HEARD)
    assert questions.answers(B) == {}
    questions.note(B, number, A, Verdict.NO_LINK)
    questions.note(B, number, A, Verdict.HEARD)
    assert questions.answers(B) == {}
    rest = [peer for n in range(1, 100) for _, _, peer in questions.due(n * 0.21)]
    assert rest == [C] * 14
    questions.note(B, number, C, Verdict.NOT_HEARD)
    assert questions.answers(B) == {C: Verdict.NOT_HEARD}
    questions.ask(B, [C])
    assert questions.answers(B) == {}


def test_one_probe_answers_all_who_ask_and_a_pause_gives_it_its_time_again() -> None:
    inquiries = PendingAnswers()
    assert inquiries.add(B, ADDRESS, (A, ADDRESS, 1), 0.0)
    assert not inquiries.add(B, ADDRESS, (C, ADDRESS, 5), 0.5)
    assert not inquiries.add(B, ADDRESS, (C, ADDRESS, 6), 0.6)
    assert inquiries.expired(0.9) == []
    inquiries.skip(30.0)
    assert inquiries.expired(30.5) == []
    assert inquiries.expired(31.0) == [B]
    replies = list(inquiries.end(B, Verdict.NOT_HEARD))
    assert [(reply.asker, reply.number, reply.verdict) for reply in replies] == [
        (A, 1, Verdict.NOT_HEARD),
        (C, 6, Verdict.NOT_HEARD),
    ]
    assert list(inquiries.end(B, Verdict.HEARD)) == []


def test_a_flood_of_questions_does_not_fill_the_memory() -> None:
    questions, inquiries = Asked(0.2), PendingAnswers()
    for number in range(1000):
        questions.ask(f"{number:012x}", [A])
        inquiries.add(f"{number:012x}", ADDRESS, (A, ADDRESS, 1), 0.0)
    assert len(list(questions.due(0.0))) == len(list(inquiries.targets())) == 256
    for number in range(10_000):
        inquiries.add("0" * 12, ADDRESS, (f"{number:012x}", ADDRESS, 1), 0.0)
    assert len(list(inquiries.end("0" * 12, Verdict.HEARD))) == 8192
