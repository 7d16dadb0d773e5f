"""A fake cluster: it starts fake agents, tells what it sees of them, and misbehaves as told.

What no cluster may ever be asked (a second attempt beside a living one, a submission without a fence) is written down
in `breaches`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.launch import LaunchPlan, NativeRequest
from orchestrator.domain.observation import Presence, Sighting
from orchestrator.ports import Clock
from orchestrator.simulator.group import FakeAttempt
from trainer.contract import layout
from trainer.contract.fence import Term


class Fate(StrEnum):
    """What becomes of a submission."""

    STARTS = "starts"
    REFUSED = "refused"  # it can never start
    LOST = "lost"  # no answer, and nothing started
    UNHEARD = "unheard"  # no answer, but it started
    LATE = "late"  # no answer, and it starts after a while
    PARTLY = "partly"  # no answer, and only the first replica started


class FakeCluster:
    """Implements ports.Backend. Agents act when `work` is called."""

    def __init__(self, clock: Clock, *, slots: int) -> None:
        self.attempts: dict[AttemptKey, FakeAttempt] = {}
        self.breaches: list[str] = []
        self.fate = Fate.STARTS  # of the next submission
        self.silent = False  # it answers nothing
        self.unknown: set[AttemptKey] = set()  # attempts that it cannot judge now
        self.hidden: set[tuple[AttemptKey, int]] = set()  # replicas of which it sees nothing now
        self.stale = False  # the next look shows what the last one showed
        self.before_look: Callable[[], None] = lambda: None  # what happens just before it looks
        self._slots = slots
        self._clock = clock
        self._submissions = 0
        self._answers: dict[AttemptKey, Sighting] = {}
        self._acknowledged: set[AttemptKey] = set()

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return NativeRequest(kind="simulated", text=plan.name)

    def submit(self, plan: LaunchPlan) -> str:
        self._require_answer()
        self._check(plan)
        fate, self.fate = self.fate, Fate.STARTS
        if fate is Fate.REFUSED and plan.key not in self.attempts:  # what could start once is not refused later
            raise LaunchRefused(f"{plan.workdir} is no folder on this cluster")
        attempt = self.attempts.setdefault(plan.key, FakeAttempt(plan, self._clock))
        self._submissions += 1
        token = f"submission-{self._submissions}"
        match fate:
            case Fate.LATE:
                attempt.delayed.append(token)
            case Fate.PARTLY:
                attempt.spawn(token, range(1))
                attempt.partial = plan.max_nodes > 1
            case Fate.STARTS | Fate.UNHEARD | Fate.REFUSED:
                attempt.spawn(token, range(plan.max_nodes))
            case Fate.LOST:
                pass
        if fate not in (Fate.STARTS, Fate.REFUSED):
            raise BackendUnavailable(f"no answer to the submission of {plan.key}")
        self._acknowledged.add(plan.key)
        return token

    def observe(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Sighting]:
        self._require_answer()
        happens, self.before_look = self.before_look, lambda: None
        happens()
        stale, self.stale = self.stale, False
        seen = {key: self._stale(key) if stale else self._sight(key) for key in keys}
        self._answers |= seen
        return seen

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        self._require_answer()
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if force:
            attempt.end_all()
            return
        attempt.polite_words += 1
        for agent in attempt.agents:
            agent.told_to_stop = agent.running

    def slots(self) -> int | None:
        self._require_answer()
        return self._slots

    def work(self) -> None:
        """Let every agent act once."""
        for attempt in self.attempts.values():
            attempt.work()

    def used_slots(self) -> int:
        """By processes that really run."""
        running = [attempt for attempt in self.attempts.values() if attempt.runs]
        return sum(attempt.plan.max_nodes * attempt.plan.workers_per_node for attempt in running)

    def _require_answer(self) -> None:
        if self.silent:
            raise BackendUnavailable("the cluster does not answer")

    def _sight(self, key: AttemptKey) -> Sighting:
        attempt = self.attempts.get(key)
        if key in self.unknown:
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence="the cluster cannot tell")
        if attempt is None:
            return Sighting(key=key, presence=Presence.ABSENT, evidence="it was never submitted")
        return attempt.sight(frozenset(replica for of, replica in self.hidden if of == key))

    def _stale(self, key: AttemptKey) -> Sighting:
        """An old answer. Once a submission was acknowledged, no cluster may say that there never was one."""
        before = Sighting(key=key, presence=Presence.ABSENT, evidence="it was never submitted")
        old = self._answers.get(key, before)
        return self._sight(key) if old.presence is Presence.ABSENT and key in self._acknowledged else old

    def _check(self, plan: LaunchPlan) -> None:
        job_dir, key = Path(plan.job_dir), plan.key
        if not (layout.fence_dir(job_dir) / Term(key.number, 0).file_name).exists():
            self.breaches.append(f"{key} is submitted without a fence")
        for other, attempt in self.attempts.items():
            if other == key or not attempt.runs:
                continue
            if other.job_id == key.job_id:
                self.breaches.append(f"{key} is submitted while {other} still runs")
            if attempt.plan.port == plan.port:
                self.breaches.append(f"{key} is submitted with the port of {other}")
