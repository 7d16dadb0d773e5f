"""A fake cluster: it starts fake agents, tells what it sees of them, and misbehaves as told.

What no cluster may ever be asked (a second attempt beside a living one, a submission without a fence) is written down
in `breaches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused, NotPermitted
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan, NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.ports.clock import Clock
from tests.fakes.group import FakeAttempt, Stall
from tests.fakes.lineage import FakeLineage
from trainer.contract import layout
from trainer.contract.fence import Term
from trainer.contract.progress import Phase

LATE_S = 30.0  # from a submission that was not answered to its start, at the most
_OLDEST_ANSWER = timedelta(seconds=20)  # of what a stale look may show


class Fate(StrEnum):
    """What becomes of a submission."""

    STARTS = "starts"
    QUEUED = "queued"  # the cluster holds it in a queue of its own
    BUSY = "busy"  # the cluster takes no more for now
    REFUSED = "refused"  # it can never start
    FORBIDDEN = "forbidden"  # the service has no right to it for now, and nothing was made
    LOST = "lost"  # no answer, and nothing started
    UNHEARD = "unheard"  # no answer, but it started
    LATE = "late"  # no answer, and it starts after a while
    PARTLY = "partly"  # no answer, and only the first replica started


class FakeCluster:
    """Implements ports.Backend. Agents act when `work` is called."""

    def __init__(self, clock: Clock, *, slots: int | None, nodes: int = 8, agents_clock: Clock | None = None) -> None:
        self.attempts: dict[AttemptKey, FakeAttempt] = {}
        self.lineages: dict[str, FakeLineage] = {}
        self.breaches: list[str] = []
        self.fate = Fate.STARTS  # of the next submission
        self.never_forms = False  # the group of the next new attempt
        self.silent = False  # it answers nothing
        self.unknown: set[AttemptKey] = set()  # attempts that it cannot judge now
        self.hidden: set[tuple[AttemptKey, int]] = set()  # replicas of which it sees nothing now
        self.forgets = False  # what has ended is as if it had never been submitted
        self.stale = False  # the next look shows what the last one showed
        self.before_look: Callable[[], None] = lambda: None  # what happens just before it looks
        self.nodes = [f"node-{number}" for number in range(nodes)]
        self._slots = slots
        self._clock = clock
        self._agents_clock = agents_clock or clock
        self._submissions = 0
        self._answers: dict[AttemptKey, tuple[datetime, Sighting]] = {}
        self._acknowledged: set[AttemptKey] = set()

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return NativeRequest(kind="simulated", text=plan.name)

    def submit(self, plan: LaunchPlan) -> str:
        self._require_answer()
        self._check(plan)
        fate, self.fate = self.fate, Fate.STARTS
        if fate is Fate.BUSY:
            raise BackendBusy("the queue of the cluster is full")
        if fate is Fate.FORBIDDEN:
            raise NotPermitted("the service has no right to submit")
        known = plan.key in self.attempts
        if fate is Fate.REFUSED and not known:  # what could start once is not refused later
            raise LaunchRefused(f"{plan.workdir} is no folder on this cluster")
        lineage = self.lineages.setdefault(plan.key.job_id, FakeLineage(Path(plan.job_dir)))
        attempt = self.attempts.setdefault(plan.key, FakeAttempt(plan, self._agents_clock, lineage))
        if self.never_forms and not known:
            self.never_forms, attempt.stall = False, Stall(Phase.START, 0)
        self._submissions += 1
        token, nodes = f"submission-{self._submissions}", self._place(plan)
        match fate:
            case Fate.LATE:
                attempt.delayed.append((self._agents_clock.now() + timedelta(seconds=LATE_S), token, nodes))
            case Fate.PARTLY:
                attempt.spawn(token, nodes, most=1)
                attempt.partial = plan.max_nodes > 1
            case Fate.QUEUED if not known:
                attempt.queued = "waits in the cluster's queue: Priority"
            case Fate.LOST:
                pass
            case _:
                attempt.spawn(token, nodes)
        if fate in (Fate.LATE, Fate.PARTLY, Fate.LOST, Fate.UNHEARD):
            raise BackendUnavailable(f"no answer to the submission of {plan.key}")
        self._acknowledged.add(plan.key)
        return token

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        self._require_answer()
        happens, self.before_look = self.before_look, lambda: None
        happens()
        stale, self.stale = self.stale, False
        seen = {key: self._stale(key) if stale else self._sight(key) for key in launched}
        self._answers |= {key: (self._clock.now(), sighting) for key, sighting in seen.items()}
        return seen

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        self._require_answer()
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        attempt.leave_queue_for_good()
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
            before = attempt.at_work
            attempt.work()
            if attempt.at_work and not before:
                self._check_start(attempt)

    def leave_queue(self, attempt: FakeAttempt) -> None:
        """What waits in the cluster's own queue gets its place."""
        if attempt.queued is not None:
            attempt.queued = None
            self._submissions += 1
            attempt.spawn(f"submission-{self._submissions}", self._place(attempt.plan))

    def used_slots(self) -> int:
        """By agents that really work, one to a replica."""
        return sum(
            attempt.plan.workers_per_node * len({agent.replica for agent in attempt.working})
            for attempt in self.attempts.values()
            if attempt.at_work
        )

    def _place(self, plan: LaunchPlan) -> list[str]:
        """A node for each replica: free and not to be avoided, then free, then any."""
        busy = {agent.node for attempt in self.attempts.values() for agent in attempt.agents if agent.running}
        return sorted(self.nodes, key=lambda node: (node in busy, node in plan.excluded_nodes))[: plan.max_nodes]

    def _require_answer(self) -> None:
        if self.silent:
            raise BackendUnavailable("the cluster does not answer")

    def _sight(self, key: AttemptKey) -> Sighting:
        attempt = self.attempts.get(key)
        if key in self.unknown:
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence="the cluster cannot tell")
        if attempt is None:
            return Sighting(key=key, presence=Presence.ABSENT, evidence="it was never submitted")
        if self.forgets and key in self._acknowledged and not attempt.runs:
            return Sighting(key=key, presence=Presence.ABSENT, evidence="the cluster knows of no such attempt")
        return attempt.sight(frozenset(replica for of, replica in self.hidden if of == key))

    def _stale(self, key: AttemptKey) -> Sighting:
        """An old answer. Once a submission was acknowledged, no cluster may say that there never was one."""
        before = Sighting(key=key, presence=Presence.ABSENT, evidence="it was never submitted")
        at, old = self._answers.get(key, (self._clock.now(), before))
        if self._clock.now() - at > _OLDEST_ANSWER:
            return self._sight(key)
        return self._sight(key) if old.presence is Presence.ABSENT and key in self._acknowledged else old

    def _check(self, plan: LaunchPlan) -> None:
        job_dir, key = Path(plan.job_dir), plan.key
        if not (layout.fence_dir(job_dir) / Term(key.number, 0).file_name).exists():
            self.breaches.append(f"{key} is submitted without a fence")

    def _check_start(self, started: FakeAttempt) -> None:
        key = started.plan.key
        for other in [each for each in self.attempts.values() if each is not started and each.at_work]:
            if other.plan.key.job_id == key.job_id:
                self.breaches.append(f"{key} starts while {other.plan.key} still runs")
            if other.plan.port == started.plan.port:
                self.breaches.append(f"{key} starts with the port of {other.plan.key}")
