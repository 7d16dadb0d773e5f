"""One agent's link to one peer: what was heard of it, and whether its kernel refuses heartbeats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trainer.elastic.rendezvous.link_socket import Address
from trainer.elastic.rendezvous.suspicion import Arrivals, Detector, Heartbeat

_APART = 0.9  # of a beat: two refusals that are a beat apart arrive a little closer together or farther apart


# Heartbeats. Of 12 at 30 % loss, at least three are lost with a probability of 75 %, at 5 % loss with one of 2 %.
_POOR_OF, _POOR_LOST, _POOR_HOLES, _UNSTEADY_LOST = 12, 3, 2, 2
# At 30 % loss, at most one of 50 is lost in one look of two million. The first member looks once a second.
_GOOD_OF, _GOOD_LOST = 50, 1
_LATELY_S = 1.0


class Quality(Enum):
    """How many heartbeats of a peer are lost."""

    GOOD = "hardly any of the last fifty"
    FAIR = "few, or few have been sent"
    UNSTEADY = "more than one of the last twelve"
    POOR = "a quarter of the last twelve, not all in a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What an agent knows of a peer.

    `silent_s` is the time since the last heartbeat, without pauses of this agent. `refused` is evidence that the peer's
    process is gone: its kernel reported twice, a beat apart, that nobody listens, and nothing was heard since. A peer
    that was never heard is neither suspected nor refused, because a firewall can be the cause.
    """

    heard: bool = False
    silent_s: float = 0.0
    suspected: bool = False
    refused: bool = False


class Link:
    """A link to one peer. All times are from one clock.

    `place` is a host and a port. `address` is None while the host's name is not resolved. `link_id` is sent with each
    heartbeat. Numbering restarts with each link.
    """

    def __init__(
        self, place: tuple[str, int], address: Address | None, link_id: int, beat_s: float, now_s: float
    ) -> None:
        self.place, self.address, self.link_id = place, address, link_id
        self.sent = 0  # heartbeats
        self._beat_s = beat_s
        self._detector = Detector(now_s)
        self._refused_s: float | None = None  # the first refusal since the last heartbeat
        self._is_refused = False

    def hear(self, heartbeat: Heartbeat, now_s: float) -> None:
        if self._detector.hear(heartbeat, now_s):
            self._refused_s, self._is_refused = None, False

    def refuse(self, now_s: float) -> bool:
        """Note a refusal. Returns whether another heartbeat must confirm it."""
        if not self._detector.heard or self._is_refused:
            return False
        if self._refused_s is None:
            self._refused_s = now_s
        self._is_refused = now_s - self._refused_s >= _APART * self._beat_s
        return not self._is_refused

    def skip(self, now_s: float) -> None:
        """This agent was paused until `now_s`."""
        self._detector.skip(now_s)

    def silence(self, now_s: float) -> Silence:
        """`now_s` is the time until which this agent has read all that arrived."""
        silent_s = self._detector.silent_s(now_s)
        return Silence(
            heard=self._detector.heard,
            silent_s=silent_s,
            suspected=self._detector.suspects(silent_s),
            refused=self._is_refused,
        )

    def is_heard_badly(self, now_s: float) -> bool:
        """Whether a heartbeat has arrived lately, and more than one before it was lost."""
        is_heard = self._detector.heard and self._detector.silent_s(now_s) < _LATELY_S
        return is_heard and self.quality() in (Quality.UNSTEADY, Quality.POOR)

    def quality(self) -> Quality:
        lately, long = self._detector.losses(_POOR_OF), self._detector.losses(_GOOD_OF)
        if lately.lost >= _POOR_LOST and lately.holes >= _POOR_HOLES:
            return Quality.POOR
        if lately.lost >= _UNSTEADY_LOST:
            return Quality.UNSTEADY
        return Quality.GOOD if long.sent >= _GOOD_OF and long.lost <= _GOOD_LOST else Quality.FAIR

    def arrivals(self) -> Arrivals:
        return self._detector.arrivals()
