"""The messages between the agents of a group: datagrams of one length. Pure.

They are not authenticated, like the rendezvous store. A message of another length, magic, version or kind is ignored.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum

_MAGIC = b"eRl\x01"  # the last byte is the version
# Magic, kind, sender, receiver, link_id, sequence, interval in ms, about, its address and port, verdict.
_FORMAT = struct.Struct("!4sB6s6sQQI6s16sHB")
_NODE = re.compile(r"[0-9a-f]{12}", re.ASCII)
_SHORTEST_MS, _LONGEST_MS = 10, 60_000
_NOBODY, _NOWHERE = bytes(6), bytes(16)


class Kind(IntEnum):
    HEARTBEAT = 1
    PROBE = 2
    ECHO = 3  # answers a probe
    QUESTION = 4
    ANSWER = 5


class Verdict(IntEnum):
    """What a peer answers to a question."""

    NONE = 0  # in other messages
    HEARD = 1
    NOT_HEARD = 2
    NO_LINK = 3
    HEARD_BADLY = 4  # some of its heartbeats were lost


_KINDS, _VERDICTS = frozenset(Kind), frozenset(Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`sequence` counts heartbeats. An echo and an answer repeat that of their probe and question.

    `ip` is an IPv6 address in network order, in which IPv4 is mapped.
    """

    kind: Kind
    sender: str
    receiver: str
    link_id: int = 0
    sequence: int = 0
    every_s: float = 0.0
    about: str | None = None
    ip: bytes | None = None
    port: int = 0
    verdict: Verdict = Verdict.NONE


def check_node(node: str) -> str:
    """Return the name of a node. Raises ValueError if it is not 12 hexadecimal digits."""
    if not _NODE.fullmatch(node):
        raise ValueError(f"the node's name is {node!r}, must be 12 hexadecimal digits")
    return node


def render_message(message: Message) -> bytes:
    return _FORMAT.pack(
        _MAGIC,
        message.kind,
        bytes.fromhex(message.sender),
        bytes.fromhex(message.receiver),
        message.link_id,
        message.sequence,
        min(_LONGEST_MS, round(message.every_s * 1000)),
        _NOBODY if message.about is None else bytes.fromhex(message.about),
        message.ip or _NOWHERE,
        message.port,
        message.verdict,
    )


def parse_message(data: bytes) -> Message | None:
    """None if it is no message of this version."""
    if len(data) != _FORMAT.size or not data.startswith(_MAGIC):
        return None
    _, kind, sender, receiver, link_id, sequence, every_ms, about, ip, port, verdict = _FORMAT.unpack(data)
    if kind not in _KINDS or verdict not in _VERDICTS:
        return None
    return Message(
        kind=Kind(kind),
        sender=sender.hex(),
        receiver=receiver.hex(),
        link_id=link_id,
        sequence=sequence,
        every_s=min(_LONGEST_MS, max(_SHORTEST_MS, every_ms)) / 1000,
        about=None if about == _NOBODY else about.hex(),
        ip=None if ip == _NOWHERE else ip,
        port=port,
        verdict=Verdict(verdict),
    )
