"""When silence is a hang: a deadline for each phase, learned from the job's own times. Pure.

Silence counts only while the service listens (Observation.heard_since), and only if the attempt has reported before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.observation.observation import Observation, RankReport, Training
from orchestrator.domain.specs.spec import Supervise
from trainer.contract.progress import Phase
from trainer.contract.silence import SHORTEST_S, limit_s

# The agent restarts in place by the same limits. This is its time to do so and to report it.
AGENT_ACTS_FIRST_S = 10.0
_MOST_RANKS = 8  # named in a sentence
_PHASES = {phase.value: phase for phase in Phase}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """No rank has reported anything for `silent_s` seconds, which is more than `limit_s`."""

    silent_s: float
    limit_s: float
    phase: Phase
    step: int | None
    stopped_first: tuple[RankReport, ...] = ()  # empty if the ranks cannot be told apart

    @property
    def sentence(self) -> str:
        after = "" if self.step is None else f" after step {self.step}"
        silence = f"no rank reported anything for {self.silent_s:.0f} s in phase {self.phase.value}{after}"
        return f"{silence} (limit {self.limit_s:.0f} s); {_name([word.rank for word in self.stopped_first])}"


def deadline_s(training: Training, supervise: Supervise) -> float | None:
    """Return how long the attempt may be silent in its phase, in seconds. None once the workers are done."""
    wanted = supervise.heartbeat_timeout_s
    limit = limit_s(
        _phase(training),
        training.phase_times,
        startup_timeout_s=supervise.startup_timeout_s,
        heartbeat_timeout_s=None if wanted == "auto" else wanted,
    )
    return None if limit is None else limit + AGENT_ACTS_FIRST_S


def shortest_deadline_s(supervise: Supervise) -> float:
    """Return the shortest time that `deadline_s` may return, whatever times the job reports."""
    wanted = supervise.heartbeat_timeout_s
    limits = (SHORTEST_S if wanted == "auto" else wanted, supervise.startup_timeout_s)
    return min(limits) + AGENT_ACTS_FIRST_S


def suspect(training: Training, supervise: Supervise, *, heard_since: datetime, now: datetime) -> Hang | None:
    """Return the hang without the ranks that stopped first. None if there is no hang or no report yet."""
    phase, limit = _phase(training), deadline_s(training, supervise)
    if training.progress_at is None or limit is None:
        return None
    # A report from the future is older than the moment at which the clock was set back.
    reported_at = training.progress_at if training.progress_at <= now else heard_since
    silent_s = (now - max(reported_at, heard_since)).total_seconds()
    if silent_s <= limit:
        return None
    return Hang(silent_s=silent_s, limit_s=limit, phase=phase, step=training.step)


def find_hang(observation: Observation, supervise: Supervise, now: datetime) -> Hang | None:
    """Return the hang with the ranks that stopped first. A waiting rank has as long as its peer's phase may take."""
    training = observation.training
    hang = suspect(training, supervise, heard_since=observation.heard_since, now=now)
    if hang is None:
        return None
    first = stopped_first(observation.ranks)
    if hang.phase is Phase.WAITING:
        peers = [deadline_s(replace(training, phase=word.phase), supervise) or 0.0 for word in first]
        hang = replace(hang, limit_s=max([hang.limit_s, *peers]))
    return replace(hang, stopped_first=first) if hang.silent_s > hang.limit_s else None


def stopped_first(words: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """Return the newest reports of the ranks that the others wait for. Empty if all stopped at the same place.

    In the newest generation, these are the ranks that are behind in steps, else those that do not wait in a collective
    while others do, else those in another phase than most.
    """
    newest = max((word.generation for word in words), default=0)
    words = [word for word in words if word.generation == newest and word.phase != Phase.DONE]
    for behind in (_behind_in_steps, _not_waiting, _in_another_phase):
        found = behind(words)
        if found and len(found) < len(words):
            return tuple(sorted(found, key=lambda word: word.rank))
    return ()


def _behind_in_steps(words: Sequence[RankReport]) -> list[RankReport]:
    farthest = max((_step(word) for word in words), default=0)
    return [word for word in words if _step(word) < farthest]


def _not_waiting(words: Sequence[RankReport]) -> list[RankReport]:
    return [word for word in words if word.phase != Phase.WAITING]


def _in_another_phase(words: Sequence[RankReport]) -> list[RankReport]:
    counts = Counter(word.phase for word in words)
    usual = [phase for phase, count in counts.items() if count * 2 > len(words)]
    return [word for word in words if word.phase not in usual] if usual else []


def _step(word: RankReport) -> int:
    return -1 if word.step is None else word.step


def _phase(training: Training) -> Phase:
    """Return the phase. An unknown one, of a newer worker, counts as a step."""
    return _PHASES.get(training.phase or "", Phase.STEP)


def _name(ranks: Sequence[int]) -> str:
    if not ranks:
        return "all ranks stopped together"
    named = ", ".join(map(str, ranks[:_MOST_RANKS])) + (", ..." if len(ranks) > _MOST_RANKS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named} stopped first"
