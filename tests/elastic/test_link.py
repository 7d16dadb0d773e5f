"""One link: refusals of the peer's kernel, and how many heartbeats are lost."""

from __future__ import annotations

import random

import pytest

from trainer.elastic.rendezvous.link import Link, Quality
from trainer.elastic.rendezvous.link_socket import Address
from trainer.elastic.rendezvous.suspicion import Heartbeat

ADDRESS = Address("::1", 1)


def link(*, heard: bool = True) -> Link:
    made = Link(("::1", 1), ADDRESS, 1, 0.2, 0.0)
    if heard:
        made.hear(Heartbeat(1, 1, 0.2), 0.0)
    return made


def test_a_refusal_counts_if_another_comes_a_beat_later() -> None:
    peer = link()
    assert peer.refuse(1.0)
    assert peer.refuse(1.1)
    assert not peer.silence(1.1).refused
    assert not peer.refuse(1.2)
    assert peer.silence(1.2).refused


@pytest.mark.parametrize("new", [True, False])
def test_a_heartbeat_between_two_refusals_disproves_the_first_unless_it_is_old(new: bool) -> None:
    peer = link()
    peer.refuse(1.0)
    peer.hear(Heartbeat(1, 2 if new else 1, 0.2), 1.1)
    assert peer.refuse(1.2) is new
    assert peer.silence(1.2).refused is not new


def test_a_refusal_of_a_peer_that_was_never_heard_is_no_evidence() -> None:
    peer = link(heard=False)
    assert not peer.refuse(1.0)
    assert not peer.refuse(2.0)
    assert not peer.silence(2.0).refused


def heard(*steps: int) -> Link:
    """A link over which so many heartbeats were sent for each that arrived."""
    link, sequence = Link(("host", 1), ADDRESS, 1, 0.2, 0.0), 1
    link.hear(Heartbeat(1, 1, 0.2), 0.0)
    for each in steps:
        sequence += each
        link.hear(Heartbeat(1, sequence, 0.2), 0.2 * sequence)
    return link


@pytest.mark.parametrize(
    ("steps", "quality"),
    [
        ([], Quality.FAIR),
        ([1] * 49, Quality.FAIR),
        ([1] * 50, Quality.GOOD),
        ([1] * 20 + [2] + [1] * 28, Quality.GOOD),
        ([1] * 20 + [3] + [1] * 28, Quality.FAIR),
        ([1] * 50 + [3], Quality.UNSTEADY),
        ([1] * 50 + [16], Quality.UNSTEADY),  # the network was interrupted once
        ([1] * 50 + [3, 2], Quality.POOR),
        ([1] * 50 + [2, 1, 2, 1, 2, 1], Quality.POOR),
        ([1] * 50 + [2, 1, 2, 1, 2] + [1] * 9, Quality.FAIR),
        ([1, 1, 2, 1, 1, 3] * 30 + [1] * 48, Quality.FAIR),
        ([1, 1, 2, 1, 1, 3] * 30 + [1] * 50, Quality.GOOD),
    ],
)
def test_a_link_is_poor_while_heartbeats_are_lost_and_good_after_fifty(steps: list[int], quality: Quality) -> None:
    assert heard(*steps).quality() is quality


def test_a_peer_is_heard_badly_only_while_it_is_heard() -> None:
    link = heard(1, 2, 1, 3)
    arrived_s = 0.2 * 8
    assert [link.is_heard_badly(arrived_s + after_s) for after_s in (0.0, 0.9, 1.1)] == [True, True, False]


def test_at_thirty_percent_loss_a_link_is_poor_and_never_good_and_at_one_percent_the_reverse() -> None:
    draw = random.Random(7)
    shares = {}
    for percent in (1, 30):
        link, found = heard(), list[Quality]()
        for sequence in range(20_000):
            if draw.random() * 100 >= percent:
                link.hear(Heartbeat(1, sequence, 0.2), 0.2 * sequence)
                found.append(link.quality())
        shares[percent] = {quality: found.count(quality) / len(found) for quality in Quality}
    assert shares[30][Quality.POOR] > 0.6
    assert shares[30][Quality.GOOD] == 0
    assert shares[1][Quality.POOR] < 0.001
    assert shares[1][Quality.GOOD] > 0.6
