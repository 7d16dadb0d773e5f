"""The earliest time at which a rule that reads the clock may decide differently."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.observation.hang import deadline_s, shortest_deadline_s
from orchestrator.domain.observation.observation import Observation, Presence
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.specs.spec import Supervise

_BEHIND = timedelta(milliseconds=1)  # the rules compare with >
_NEVER = datetime.max.replace(tzinfo=UTC)


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


def sleeps_until(s: Situation, look_again_at: datetime | None) -> datetime | None:
    """Return when to look again at a job with nothing to do if nothing wakes it. None if the next pass must look.

    `look_again_at` is the decision's. Lines of progress wake no job, although they can shorten the limit of the next
    silence. So a running job sleeps no longer than the shortest limit.
    """
    if not s.steady:
        return None
    moments = [look_again_at or _NEVER]
    if s.live is not None and s.live.presence is Presence.RUNNING:
        seen, supervise = s.live.seen, s.job.spec.supervise
        hangs_at = _hangs_at(seen, supervise)
        if hangs_at is not None and hangs_at <= s.now:
            return None  # the rule waits for another rank to report
        moments += [s.now + timedelta(seconds=shortest_deadline_s(supervise)), seen.listened_until or _NEVER]
    return min(moments)


def _hangs_at(seen: Observation, supervise: Supervise) -> datetime | None:
    """Return when silence becomes a hang. None before the first report, and once the workers are done."""
    limit_s = deadline_s(seen.training, supervise)
    if seen.training.progress_at is None or limit_s is None:
        return None
    return max(seen.training.progress_at, seen.heard_since) + timedelta(seconds=limit_s)


def _moments(s: Situation, live: Attempt, seen: Observation) -> Iterator[datetime]:
    supervise, training = s.job.spec.supervise, seen.training
    if seen.sighting.presence is Presence.ABSENT:
        yield s.look_up_at(live)
    if live.started_at is not None and supervise.max_runtime_s is not None:
        yield live.started_at + timedelta(seconds=supervise.max_runtime_s)
    if live.started_at is not None and training.formed_at is None:
        yield max(live.started_at, seen.heard_since) + timedelta(seconds=supervise.startup_timeout_s)
    hangs_at = _hangs_at(seen, supervise)
    if hangs_at is not None:
        yield hangs_at
    if (
        live.started_at is not None
        and supervise.grow_back_after_s is not None
        and s.live is not None
        and s.room(s.live) is not None
    ):
        yield max(live.started_at, training.resized_at or live.started_at) + timedelta(
            seconds=supervise.grow_back_after_s
        )
