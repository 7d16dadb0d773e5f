"""The detector of silent peers, under any order of arrivals."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trainer.elastic.rendezvous.suspicion import FLOOR_BEATS, FLOOR_S, Detector, Heartbeat

EVERY_S = 0.2

gaps = st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 20)), max_size=60)
silences = st.floats(0.0, 1e6)


class Listener:
    """A detector with its clock. `hear` lets time pass, then hears the heartbeat `steps` after the last."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.detector = Detector(self.now_s)
        self.sequence = 0
        self.link_id = 1

    def hear(self, after_s: float = EVERY_S, steps: int = 1, every_s: float = EVERY_S) -> None:
        self.now_s += after_s
        self.sequence += steps
        self.detector.hear(Heartbeat(self.link_id, self.sequence, every_s), self.now_s)

    def limit_s(self) -> float:
        """The shortest suspicious silence, to 10 ms."""
        return next(n / 100 for n in range(100_000) if self.detector.suspects(n / 100))


def listener(count: int, after_s: float = EVERY_S) -> Listener:
    made = Listener()
    for _ in range(count):
        made.hear(after_s)
    return made


def trained(history: list[tuple[float, int]]) -> Listener:
    made = Listener()
    made.hear()
    for after_s, steps in history:
        made.hear(after_s, steps)
    return made


@given(gaps, st.integers(0, 300))
def test_losses_are_those_of_the_last_heartbeats(history: list[tuple[float, int]], beats: int) -> None:
    found = trained(history).detector.losses(beats)
    sent = [step for _, steps in reversed(history) for step in (0, *[1] * (steps - 1))]  # 0: it arrived
    assert found.sent >= min(beats, len(sent))
    assert found.lost == sum(sent[: found.sent])
    assert found.holes == sum(before == 0 and here == 1 for before, here in pairwise(sent[: found.sent]))


@given(gaps, silences, silences)
def test_a_longer_silence_is_no_less_suspicious(history: list[tuple[float, int]], one_s: float, other_s: float) -> None:
    detector = trained(history).detector
    shorter_s, longer_s = sorted((one_s, other_s))
    assert 0 <= detector.phi(shorter_s) <= detector.phi(longer_s)
    assert detector.suspects(shorter_s) <= detector.suspects(longer_s)


@given(gaps, st.floats(0.0, FLOOR_S))
def test_no_silence_below_the_floor_is_suspicious(history: list[tuple[float, int]], silent_s: float) -> None:
    assert not trained(history).detector.suspects(silent_s)


@given(gaps)
def test_each_silence_is_suspicious_in_the_end(history: list[tuple[float, int]]) -> None:
    assert trained(history).detector.suspects(1e6)


@given(silences)
def test_a_peer_that_was_never_heard_is_not_suspected(silent_s: float) -> None:
    assert not Detector(0.0).suspects(silent_s)


def test_a_regular_peer_is_suspected_at_the_floor() -> None:
    assert FLOOR_S < listener(200).limit_s() <= FLOOR_S + 0.01


def test_a_new_link_is_suspected_late() -> None:
    limits = [listener(count).limit_s() for count in (1, 5, 20, 200)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] > 5.0
    assert limits[2] < 3.0


def test_the_floor_is_five_intervals_of_a_slow_peer() -> None:
    slow = Listener()
    for _ in range(200):
        slow.hear(2.0, every_s=2.0)
    assert slow.limit_s() >= FLOOR_BEATS * 2.0


def test_a_peer_that_announces_longer_intervals_is_given_their_time_at_once() -> None:
    peer = listener(200)
    peer.hear(every_s=3.0)
    assert not peer.detector.suspects(FLOOR_BEATS * 3.0)


@given(st.integers(0, 2**32))
def test_more_jitter_delays_the_suspicion(seed: int) -> None:
    """Heartbeats that arrive up to 2.4 s late: a normal distribution of their gaps reaches far beyond the floor."""
    rng, peer = random.Random(seed), Listener()
    for at_s, sequence in sorted((n * EVERY_S + rng.uniform(0.0, 2.4), n) for n in range(1, 200)):
        peer.detector.hear(Heartbeat(1, sequence, EVERY_S), 50.0 + at_s)
    assert peer.limit_s() > FLOOR_S + 0.5


@given(st.integers(0, 2**32))
def test_a_link_that_loses_datagrams_is_suspected_later(seed: int) -> None:
    rng, peer = random.Random(seed), Listener()
    steps = 1
    for _ in range(400):
        if rng.random() < 0.3:
            steps += 1
        else:
            peer.hear(steps * EVERY_S, steps)
            steps = 1
    assert 3.5 < peer.limit_s() < 7.0


def test_a_gap_is_an_observation_with_the_number_of_heartbeats_that_it_lacks() -> None:
    peer = listener(2)
    peer.hear(0.6, steps=3)
    lengths = [round(gap.length_s, 6) for gap in peer.detector.arrivals().gaps]
    assert (lengths, [gap.steps for gap in peer.detector.arrivals().gaps]) == ([0.2, 0.6], [1, 3])


def test_only_the_last_200_gaps_count() -> None:
    peer = trained([(30.0, 20)] * 200)
    assert peer.limit_s() > 60.0
    for _ in range(200):
        peer.hear()
    assert peer.limit_s() == listener(201).limit_s()
    assert peer.detector.arrivals().heard == 401


@given(gaps, st.integers(0, 3), st.floats(0.0, 5.0))
def test_duplicates_and_overtaken_heartbeats_change_nothing(
    history: list[tuple[float, int]], back: int, after_s: float
) -> None:
    peer = trained(history)
    before = peer.detector.arrivals(), peer.detector.silent_s(peer.now_s + after_s)
    old = Heartbeat(peer.link_id, max(0, peer.sequence - back), EVERY_S)
    assert not peer.detector.hear(old, peer.now_s + after_s)
    assert (peer.detector.arrivals(), peer.detector.silent_s(peer.now_s + after_s)) == before


def test_heartbeats_that_arrive_late_together_end_the_silence() -> None:
    peer = listener(100)
    peer.hear(1.8)
    for _ in range(8):
        peer.hear(0.0)
    assert peer.detector.silent_s(peer.now_s) == 0.0
    lengths = [gap.length_s for gap in peer.detector.arrivals().gaps[-9:]]
    assert abs(sum(lengths) - 9 * EVERY_S) < 1e-9


def test_a_sender_that_restarts_is_heard_at_once() -> None:
    peer = listener(100)
    gaps_before = peer.detector.arrivals().gaps
    peer.link_id, peer.sequence = 2, 0
    peer.hear(20.0)
    assert peer.detector.silent_s(peer.now_s) == 0.0
    assert peer.detector.arrivals().gaps == gaps_before


@given(gaps, st.floats(0.0, 1e5), st.integers(0, 20))
def test_a_pause_of_the_listener_is_no_silence_and_teaches_nothing(
    history: list[tuple[float, int]], pause_s: float, queued: int
) -> None:
    peer = trained(history)
    before = peer.detector.arrivals().gaps
    peer.now_s += pause_s
    peer.detector.skip(peer.now_s)
    assert peer.detector.silent_s(peer.now_s) == 0.0
    for _ in range(queued):
        peer.hear(0.0)
    assert peer.detector.arrivals().gaps == before
    peer.hear()
    assert peer.detector.arrivals().gaps == before
    peer.hear()
    assert len(peer.detector.arrivals().gaps) == len(before) + 1
