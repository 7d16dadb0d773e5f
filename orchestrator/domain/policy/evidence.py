"""What each source says of an attempt, three-valued, and what may be concluded from it.

| source    | alive                          | dead                                | unknown                       |
|-----------|--------------------------------|-------------------------------------|-------------------------------|
| scheduler | it holds the attempt           | it saw it end, or never got it      | it does not answer or is lost |
| agents    | a process was seen             | each was seen gone or left a record | any is out of sight           |
| progress  | a rank told of it in time      | none did, while we listened         | none ever did                 |
| exits     | some replicas ended, not all   | every replica left its record       | there is no record            |

A new attempt needs the end of the one before, and an end needs a source that says dead and no agent that is alive:
the record of a first cause, agents seen gone without one, or a scheduler that never got the attempt. Stalled progress
permits a stop, which then has to be seen. Unknown permits nothing. The policy keeps to this by its rules; the actor
asks once more before it ends an attempt (`permits_end`).
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
    """What every source says of the live attempt; empty without one."""
    if s.live is None:
        return {}
    return {
        Source.SCHEDULER: _OF_PRESENCE[s.live.presence],
        Source.AGENTS: _agents(s.live),
        Source.PROGRESS: _progress(s, s.live),
        Source.EXITS: _exits(s.live),
    }


def permits_end(evidence: dict[Source, Liveness]) -> bool:
    """Whether an attempt may be called ended: a source says dead, and no agent is alive. Never without evidence."""
    conclusive = (Source.SCHEDULER, Source.AGENTS, Source.EXITS)
    says_dead = any(evidence.get(source) is Liveness.DEAD for source in conclusive)
    return says_dead and evidence.get(Source.AGENTS) is not Liveness.ALIVE


def _agents(live: Watched) -> Liveness:
    exits = live.seen.exits
    said = {
        Liveness.DEAD if seen.liveness is Liveness.UNKNOWN and seen.replica in exits else seen.liveness
        for seen in live.seen.sighting.replicas
    }
    if Liveness.ALIVE in said:
        return Liveness.ALIVE
    return Liveness.DEAD if said == {Liveness.DEAD} else Liveness.UNKNOWN


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
