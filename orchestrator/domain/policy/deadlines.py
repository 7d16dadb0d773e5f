"""The earliest time at which a rule that reads the clock may decide differently."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.observation.hang import deadline_s
from orchestrator.domain.observation.observation import Observation, Presence
from orchestrator.domain.policy.situation import Situation

_BEHIND = timedelta(milliseconds=1)  # the rules compare with >


def next_deadline(s: Situation) -> datetime | None:
    """Return the next time at which some rule may decide differently although nothing else has changed."""
    if s.live is None:
        return None
    stopping_since = s.live.attempt.stopping_since
    if stopping_since is not None:
        moments = iter([stopping_since + timedelta(seconds=s.stop_timeout_s)])
    else:
        moments = _moments(s, s.live.attempt, s.live.seen)
    return min((moment + _BEHIND for moment in moments if moment + _BEHIND > s.now), default=None)


def _moments(s: Situation, live: Attempt, seen: Observation) -> Iterator[datetime]:
    supervise, training = s.job.spec.supervise, seen.training
    if seen.sighting.presence is Presence.ABSENT:
        yield s.look_up_at(live)
    if live.started_at is not None and supervise.max_runtime_s is not None:
        yield live.started_at + timedelta(seconds=supervise.max_runtime_s)
    if live.started_at is not None and training.formed_at is None:
        yield max(live.started_at, seen.heard_since) + timedelta(seconds=supervise.startup_timeout_s)
    limit_s = deadline_s(training, supervise)
    if training.progress_at is not None and limit_s is not None:
        yield max(training.progress_at, seen.heard_since) + timedelta(seconds=limit_s)
    if (
        live.started_at is not None
        and supervise.grow_back_after_s is not None
        and s.live is not None
        and s.room(s.live) is not None
    ):
        yield max(live.started_at, training.resized_at or live.started_at) + timedelta(
            seconds=supervise.grow_back_after_s
        )
