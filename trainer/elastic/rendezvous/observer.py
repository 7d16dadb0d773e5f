"""Judge which other agents are silent, from UDP heartbeats, counts in the store, and answers of other agents.

Also find agents that lose so many packets that no group can train with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from trainer.elastic.rendezvous import round_queries
from trainer.elastic.rendezvous.link import Quality, Silence
from trainer.elastic.rendezvous.link_messages import Verdict
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.round_document import Limits, Round

_ASK_AFTER_S = 1.0  # of silence, so that the others have answered when it becomes suspicious
_ANSWER_S = 1.2  # in which others answer: they probe for a second
_ASK_AGAIN_S = 1.5
_ASK_ABOUT_LOSSES_AGAIN_S = 0.4  # a peer that loses heartbeats of the node answers at once
_ASKED = 3  # agents
_HEARD_S = 0.5  # a heartbeat that is younger shows that its sender lives
_REPLACED_S = 0.8  # an agent that dies alone is replaced within this time (keeper.py)
_COUNTS_BEATS = 1.5  # a count in the store that rose within so many intervals is a sign of life


class LinksToPeers(Protocol):
    """The part of Links that an observer uses."""

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None: ...
    def silence(self, node: str) -> Silence: ...
    def quality(self, node: str) -> Quality: ...
    def ask(self, about: str, whom: Collection[str]) -> None: ...
    def answers(self, about: str) -> Mapping[str, Verdict]: ...
    def close(self) -> None: ...


@dataclass
class _Question:
    asked_s: float
    is_vouched_for: bool = False  # as far as the answers to earlier questions tell


class Observer:
    """What one agent knows of the others. Thread-safe, and never waits."""

    def __init__(self, links: LinksToPeers, node: str, timing: Timing, limits: Limits) -> None:
        self._links, self._node, self._timing, self._limits = links, node, timing, limits
        self._places: dict[str, tuple[str, int]] = {}
        self._linked: frozenset[str] = frozenset()
        self._round, self._host = Round(), ""
        self.is_stalled = False
        self._lock = threading.Lock()
        self._lossy: set[str] = set()
        self._losses_asked_s: dict[str, float] = {}
        self._questions: dict[str, _Question] = {}  # about silent agents

    def close(self) -> None:
        self._links.close()

    def follow(self, round_: Round, host: str) -> None:
        """Link to the agents of the document. `host` serves the store."""
        members = {each.node: (each.address, each.beats_port) for each in (*round_.members, *round_.waiting)}
        with self._lock:
            self._lossy -= round_.nodes - self._round.nodes  # the group has taken them in again
        self._round, self._host = round_, host
        linked = frozenset(round_queries.linked_to(round_, self._node, host) & (self._places | members).keys())
        if linked != self._linked or any(self._places.get(node) != members[node] for node in members):
            self._places |= members
            self._linked = linked
            with suppress(ValueError):  # a malformed document of another agent
                self._links.follow({node: self._places[node] for node in linked})

    def is_linked_to(self, nodes: Collection[str]) -> bool:
        """Whether this agent exchanges heartbeats with all these agents. It may be one of them."""
        return self._linked >= set(nodes) - {self._node}

    def hears(self, node: str) -> bool:
        """Whether a heartbeat has arrived a moment ago."""
        silence = self._links.silence(node)
        return silence.heard and not silence.refused and silence.silent_s < _HEARD_S

    def suspects(self, node: str) -> bool:
        """Whether heartbeats arrived and stopped for suspiciously long, and nothing says that the agent has ended."""
        silence = self._links.silence(node)
        return silence.suspected and not silence.refused

    def is_gone(self, node: str) -> bool:
        """Whether the agent's process has ended, and no other agent has soon taken its place."""
        silence = self._links.silence(node)
        return silence.refused and silence.silent_s > _REPLACED_S

    def note_stall(self, is_stalled: bool) -> None:
        """Note whether the workers of this agent make no step for suspiciously long."""
        self.is_stalled = is_stalled

    def is_lossy(self, node: str) -> bool:
        """Whether the group should go on without the agent. Asks other agents if that is needed, so call it again.

        It should if the workers here stall, too many of its heartbeats are lost, no other peer is heard badly, and
        another agent confirms the loss. Of two agents, the one that serves the store decides. The answer stays True
        until the link is good, or until the group has taken the agent in again.
        """
        with self._lock:
            if not self.is_stalled and node not in self._lossy:
                return False
            quality = self._links.quality(node)
            if quality is Quality.GOOD:
                self._lossy.discard(node)
            if node in self._lossy:
                return True
        if quality is not Quality.POOR or not self._may_leave_out(node) or not self._is_confirmed(node):
            return False
        with self._lock:
            self._lossy.add(node)
        return True

    def _may_leave_out(self, node: str) -> bool:
        """Whether the group can do without the agent, and no other link is so bad that this agent may be the cause."""
        others = self._linked - {node}
        is_cause_clear = all(self._links.quality(other) is not Quality.POOR for other in others)
        return is_cause_clear and round_queries.can_drop_lossy(self._round, node, self._limits)

    def _is_confirmed(self, node: str) -> bool:
        return self._is_heard_badly(node) if self._linked - {node} else node != self._host

    def _is_heard_badly(self, node: str) -> bool:
        """Whether another agent loses heartbeats of this one. Asks again if none has said so."""
        since_s = time.monotonic() - self._losses_asked_s.get(node, float("-inf"))
        if since_s < _ASK_AGAIN_S and Verdict.HEARD_BADLY in self._links.answers(node).values():
            return True
        if since_s > _ASK_ABOUT_LOSSES_AGAIN_S:
            self._losses_asked_s[node] = time.monotonic()
            self._links.ask(node, self._witnesses(node))
        return False

    def grade(self, nodes: Collection[str]) -> tuple[set[str], set[str]]:
        """Returns the badly and the well connected nodes.

        Both are empty if the link to a member is poor: this agent's own link may be the cause.
        """
        graded = {node: self._links.quality(node) for node in nodes}
        members = self._round.nodes & self._linked if graded else frozenset[str]()
        if any(self._links.quality(node) is Quality.POOR for node in members):
            return set(), set()
        poor = {node for node, quality in graded.items() if quality is Quality.POOR}
        return poor, {node for node, quality in graded.items() if quality is Quality.GOOD}

    def is_silent(self, node: str, unanswered_s: float) -> bool:
        """Whether the agent has been silent for too long. Asks other agents if that is needed, so call it again.

        `unanswered_s`: since its last sign of life in the store. True also for an agent that sends heartbeats but has
        not counted in the store for `patience`.
        """
        silence = self._links.silence(node)
        if silence.refused:
            return self.is_gone(node)
        if not silence.heard:  # UDP may be blocked
            return unanswered_s > self._timing.silence_s
        if silence.silent_s < _ASK_AFTER_S:
            with self._lock:
                self._questions.pop(node, None)
            return unanswered_s > self._timing.patience_s  # it sends heartbeats, and does nothing else
        self.ask(node)
        if not silence.suspected or unanswered_s < _COUNTS_BEATS * self._timing.beat_s:
            return False
        if self.is_vouched_for(node):
            return unanswered_s > self._timing.silence_s
        return self.is_answered(node)

    def ask(self, node: str) -> None:
        """Ask other agents whether they hear this one, unless they were asked lately."""
        now_s = time.monotonic()
        with self._lock:
            before = self._questions.get(node)
            if before is not None and now_s - before.asked_s < _ASK_AGAIN_S:
                return
            is_vouched_for = before is not None and self._judge(node, before)
            self._questions[node] = _Question(now_s, is_vouched_for)
            with suppress(ValueError):
                self._links.ask(node, self._witnesses(node))

    def is_vouched_for(self, node: str) -> bool:
        """Whether an agent that was asked hears this one."""
        with self._lock:
            question = self._questions.get(node)
            return question is not None and self._judge(node, question)

    def _judge(self, node: str, question: _Question) -> bool:
        answers = self._links.answers(node)
        heard = {Verdict.HEARD, Verdict.HEARD_BADLY}
        return bool(heard & set(answers.values())) if answers else question.is_vouched_for

    def is_answered(self, node: str) -> bool:
        """Whether the agents that were asked about this one have answered, or had the time to."""
        with self._lock:
            question = self._questions.get(node)
            waited_s = 0.0 if question is None else time.monotonic() - question.asked_s
            return waited_s > _ANSWER_S or len(self._links.answers(node)) == len(self._witnesses(node))

    def _witnesses(self, node: str) -> list[str]:
        """Up to three agents to ask. Those that exchange heartbeats with the node come first."""
        linked = round_queries.linked_to(self._round, node, self._host)
        return sorted(self._linked - {node}, key=lambda other: (other not in linked, other))[:_ASKED]
