"""Which other agents are silent, by three observers: heartbeats over UDP, counts in the store, and other agents."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Protocol

from trainer.elastic.rendezvous import rounds
from trainer.elastic.rendezvous.link import Silence
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.rounds import Round

_ASK_AFTER_S = 1.0  # of silence, so that the others have answered when it becomes suspicious
_ANSWER_S = 1.3  # in which others answer: they may probe for a second
_ASKED = 3  # agents
_REPLACED_S = 0.8  # an agent that dies alone is replaced within this time (keeper.py)
_COUNTS_BEATS = 1.5  # a count in the store that rose within so many intervals is a sign of life


class LinksToPeers(Protocol):
    """The part of Links that an observer uses."""

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None: ...
    def silence(self, node: str) -> Silence: ...
    def ask(self, about: str, whom: Collection[str]) -> None: ...
    def answers(self, about: str) -> Mapping[str, bool]: ...
    def close(self) -> None: ...


class Observer:
    """What one agent knows of the others. Thread-safe, and never waits."""

    def __init__(self, links: LinksToPeers, node: str, timing: Timing) -> None:
        self._links, self._node, self._timing = links, node, timing
        self._places: dict[str, tuple[str, int]] = {}
        self._linked: frozenset[str] = frozenset()
        self._asked_s: dict[str, float] = {}

    def follow(self, round_: Round, host: str) -> None:
        """Link to the agents of the document. `host` serves the store."""
        self._places |= {each.node: (each.address, each.beats_port) for each in (*round_.members, *round_.waiting)}
        linked = frozenset(rounds.linked_to(round_, self._node, host) & self._places.keys())
        if linked != self._linked:
            self._linked = linked
            with suppress(ValueError):  # a malformed document of another agent
                self._links.follow({node: self._places[node] for node in linked})

    def is_gone(self, node: str) -> bool:
        """Whether the agent's process has ended, and no other agent has soon taken its place."""
        silence = self._links.silence(node)
        return silence.refused and silence.silent_s > _REPLACED_S

    def is_silent(self, node: str, counted_s: float) -> bool:
        """Whether the agent has been silent for too long. `counted_s`: since its last sign of life in the store."""
        silence = self._links.silence(node)
        if silence.refused:
            return self.is_gone(node)
        if not silence.heard:  # UDP may be blocked
            return counted_s > self._timing.silence_s
        if silence.silent_s < _ASK_AFTER_S:
            self._asked_s.pop(node, None)
            return False
        self.ask(node)
        if not silence.suspected or counted_s < _COUNTS_BEATS * self._timing.beat_s:
            return False
        if self.is_vouched_for(node):
            return counted_s > self._timing.silence_s
        waited_s = time.monotonic() - self._asked_s[node]
        return waited_s > _ANSWER_S or len(self._links.answers(node)) == len(self._witnesses(node))

    def ask(self, node: str) -> None:
        """Ask other agents whether they hear this one. Idempotent until it is heard again."""
        if node not in self._asked_s:
            self._asked_s[node] = time.monotonic()
            with suppress(ValueError):
                self._links.ask(node, self._witnesses(node))

    def is_vouched_for(self, node: str) -> bool:
        """Whether another agent has answered that it hears this one."""
        return any(self._links.answers(node).values())

    def is_missed_by_most(self, node: str, group: int) -> bool:
        """Whether this agent and those that answered that they do not hear `node` are more than half of `group`."""
        return 2 * (1 + sum(not hears for hears in self._links.answers(node).values())) > group

    def close(self) -> None:
        self._links.close()

    def _witnesses(self, node: str) -> list[str]:
        return sorted(self._linked - {node})[:_ASKED]
