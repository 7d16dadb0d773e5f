"""Messages between an agent and its fork server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trainer.elastic.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


def receive(channel: Channel, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        messages = channel.receive()
        assert messages is not None
        found += messages
    return found


def test_messages_arrive_complete_and_in_order(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    sent: list[dict[str, Any]] = [{"text": "first\nsecond\r\u2028"}, {}, {"number": 7, "names": ["a", ""]}]
    for message in sent:
        assert one.send(message)
    assert receive(other, 3) == sent


def test_a_message_may_be_longer_than_any_packet(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    sent = {"command": ["x" * 100_000] * 40}
    sender = threading.Thread(target=one.send, args=(sent,), daemon=True)
    sender.start()
    assert receive(other, 1) == [sent]
    sender.join(300)
    assert not sender.is_alive()


def test_a_closed_end_is_reported_after_its_last_message(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send({"last": True})
    one.close()
    assert receive(other, 1) == [{"last": True}]
    assert other.receive() is None
    assert not other.send({})


def test_an_end_that_is_closed_with_unread_messages_is_closed(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    other.send({"unread": True})
    one.close()
    assert other.receive() is None
