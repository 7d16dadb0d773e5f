"""Asked whether peers hear a node: those that this agent asks, and those that it answers. Pure.

A question is repeated until it is answered, because datagrams are lost. A peer that hears the node badly answers at
once. Every other peer first sends the node a probe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from trainer.elastic.rendezvous.link_messages import Verdict
from trainer.elastic.rendezvous.link_socket import Address

_PROBE_S = 1.0  # for an echo to return
_TRIES = 15  # of a question, a beat apart: three seconds by default
_MOST_NODES, _MOST_ASKERS = 256, 8192  # a flood of questions must not fill the memory


@dataclass
class _Question:
    number: int
    open: set[str]
    tries: int = 0
    due_s: float = float("-inf")
    answers: dict[str, Verdict] = field(default_factory=dict)


class Asked:
    """What this agent asks. Only the last question about a node counts."""

    def __init__(self, beat_s: float) -> None:
        self._beat_s, self._number = beat_s, 0
        self._questions: dict[str, _Question] = {}

    def ask(self, about: str, whom: Collection[str]) -> None:
        self._number += 1
        self._questions.pop(about, None)
        while len(self._questions) >= _MOST_NODES:
            self._questions.pop(next(iter(self._questions)))
        self._questions[about] = _Question(self._number, set(whom) - {about})

    def due(self, now_s: float) -> Iterator[tuple[str, int, str]]:
        """The questions to send now: about which node, the number, and to whom."""
        for about, question in self._questions.items():
            if question.tries < _TRIES and now_s >= question.due_s:
                question.tries, question.due_s = question.tries + 1, now_s + self._beat_s
                for peer in question.open:
                    yield about, question.number, peer

    def note(self, about: str, number: int, peer: str, verdict: Verdict) -> None:
        question = self._questions.get(about)
        if question is None or question.number != number or peer not in question.open:
            return
        question.open.discard(peer)
        if verdict not in (Verdict.NONE, Verdict.NO_LINK):
            question.answers[peer] = verdict

    def answers(self, about: str) -> Mapping[str, Verdict]:
        question = self._questions.get(about)
        return {} if question is None else dict(question.answers)


@dataclass(frozen=True)
class Reply:
    """An answer to send."""

    to: Address
    asker: str
    about: str
    number: int
    verdict: Verdict


@dataclass
class _Inquiry:
    target: Address
    until_s: float
    askers: dict[str, tuple[Address, int]] = field(default_factory=dict)


class PendingAnswers:
    """Asked of others that wait for an echo of the node that they are about."""

    def __init__(self) -> None:
        self._inquiries: dict[str, _Inquiry] = {}

    def add(self, about: str, target: Address, asker: tuple[str, Address, int], now_s: float) -> bool:
        """Returns whether the first probe must be sent now."""
        name, address, number = asker
        inquiry = self._inquiries.get(about)
        is_new = inquiry is None
        if inquiry is None:
            if len(self._inquiries) >= _MOST_NODES:
                return False
            inquiry = self._inquiries[about] = _Inquiry(target, now_s + _PROBE_S)
        if name in inquiry.askers or len(inquiry.askers) < _MOST_ASKERS:
            inquiry.askers[name] = address, number
        return is_new

    def end(self, about: str, verdict: Verdict) -> Iterator[Reply]:
        """The answers, now that the verdict is known."""
        inquiry = self._inquiries.pop(about, None)
        for asker, (to, number) in ({} if inquiry is None else inquiry.askers).items():
            yield Reply(to, asker, about, number, verdict)

    def expired(self, now_s: float) -> list[str]:
        return [about for about, inquiry in self._inquiries.items() if now_s >= inquiry.until_s]

    def targets(self) -> Iterator[tuple[str, Address]]:
        """What to probe again. Call it once a beat."""
        for about, inquiry in self._inquiries.items():
            yield about, inquiry.target

    def skip(self, now_s: float) -> None:
        """This agent was paused until `now_s`, so give the echoes their time again."""
        for inquiry in self._inquiries.values():
            inquiry.until_s = now_s + _PROBE_S
