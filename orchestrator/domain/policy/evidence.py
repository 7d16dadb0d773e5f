"""What each source says of an attempt, and whether that permits to end it.

| source    | alive                          | dead                                | unknown                       |
|-----------|--------------------------------|-------------------------------------|-------------------------------|
| scheduler | it lists the attempt           | the attempt ended or never arrived  | no answer                     |
| agents    | a process was seen             | each is gone or left a record       | at least one cannot be seen   |
| progress  | a rank reported in time        | none did while we listened          | no rank has ever reported     |
| exits     | some replicas left a record    | every replica left its record       | there is no record            |

A new attempt needs the end of the one before. An end needs a source that says dead, and no agent that is alive. Stalled
progress permits a stop, but the end after it has to be seen. Unknown permits nothing. The rules follow this, and the
actor checks it again before it ends an attempt (`permits_end`).
"""

from __future__ import annotations

from enum import StrEnum

from orchestrator.domain.observation.hang import suspect
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.situation import Situation


class Source(StrEnum):
    SCHEDULER = "scheduler"
    AGENTS = "agents"
    PROGRESS = "progress"
    EXITS = "exits"


_OF_PRESENCE = {
    Presence.ABSENT: Liveness.DEAD,
    Presence.PENDING: Liveness.ALIVE,
    Presence.RUNNING: Liveness.ALIVE,
    Presence.GONE: Liveness.DEAD,
    Presence.UNKNOWN: Liveness.UNKNOWN,
}


def weigh(s: Situation) -> dict[Source, Liveness]:
    """Return what each source says of the live attempt. Empty if there is none."""
    if s.live is None:
        return {}
    return {
        Source.SCHEDULER: _OF_PRESENCE[s.live.presence],
        Source.AGENTS: _agents(s.live),
        Source.PROGRESS: _progress(s, s.live),
        Source.EXITS: _exits(s.live),
    }


def permits_end(evidence: dict[Source, Liveness]) -> bool:
    """Whether an attempt may be ended: a source says dead, and no agent is alive."""
    conclusive = (Source.SCHEDULER, Source.AGENTS, Source.EXITS)
    says_dead = any(evidence.get(source) is Liveness.DEAD for source in conclusive)
    return says_dead and evidence.get(Source.AGENTS) is not Liveness.ALIVE


def _agents(live: Watched) -> Liveness:
    exits = live.seen.exits
    states = {
        Liveness.DEAD if seen.liveness is Liveness.UNKNOWN and seen.replica in exits else seen.liveness
        for seen in live.seen.sighting.replicas
    }
    if Liveness.ALIVE in states:
        return Liveness.ALIVE
    return Liveness.DEAD if states == {Liveness.DEAD} else Liveness.UNKNOWN


def _progress(s: Situation, live: Watched) -> Liveness:
    training, since = live.seen.training, live.seen.heard_since
    if training.progress_at is None:
        return Liveness.UNKNOWN
    hang = suspect(training, s.job.spec.supervise, heard_since=since, now=s.now)
    return Liveness.DEAD if hang else Liveness.ALIVE


def _exits(live: Watched) -> Liveness:
    ended = len(live.exits())
    if ended == 0:
        return Liveness.UNKNOWN
    return Liveness.DEAD if ended >= live.nodes else Liveness.ALIVE
