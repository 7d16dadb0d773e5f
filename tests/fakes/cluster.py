"""A fake cluster: it starts fake agents, reports them, and misbehaves as requested.

It records in `breaches` what the service must never do: start a second attempt beside a live one, or submit without a
fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused, NotPermitted
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.ports.clock import Clock
from tests.fakes.group import FakeAttempt, Stall
from tests.fakes.lineage import FakeLineage
from trainer.contract import layout
from trainer.contract.fence import Term
from trainer.contract.progress import Phase

LATE_S = 30.0  # after an unanswered submission, it starts at the latest after this time
_OLDEST_ANSWER = timedelta(seconds=20)  # the maximum age of a stale answer


class Fate(StrEnum):
    """The outcome of a submission."""

    STARTS = "starts"
    QUEUED = "queued"  # it waits in the cluster's own queue
    BUSY = "busy"  # the cluster takes no more for now
    REFUSED = "refused"  # it can never start
    FORBIDDEN = "forbidden"  # the service has no permission now, and nothing starts
    LOST = "lost"  # no answer, and nothing starts
    UNHEARD = "unheard"  # no answer, but it starts
    LATE = "late"  # no answer, but it starts later
    PARTLY = "partly"  # no answer, and only the first replica starts


class FakeCluster:
    """Implements ports.Backend. Agents act when `work` is called."""

    def __init__(self, clock: Clock, *, slots: int | None, nodes: int = 8, agents_clock: Clock | None = None) -> None:
        self.attempts: dict[AttemptKey, FakeAttempt] = {}
        self.lineages: dict[str, FakeLineage] = {}
        self.breaches: list[str] = []
        self.fate = Fate.STARTS  # of the next submission
        self.never_forms = False  # the group of the next new attempt
        self.silent = False  # whether it does not answer
        self.unknown: set[AttemptKey] = set()  # attempts that it cannot judge now
        self.hidden: set[tuple[AttemptKey, int]] = set()  # replicas that it cannot see now
        self.forgets = False  # whether it reports ended attempts as never submitted
        self.stale = False  # whether the next observation repeats the last one
        self.before_look: Callable[[], None] = lambda: None  # called just before the next observation
        self.nodes = [f"node-{number}" for number in range(nodes)]
        self._slots = slots
        self._clock = clock
        self._agents_clock = agents_clock or clock
        self._submissions = 0
        self._answers: dict[AttemptKey, tuple[datetime, Sighting]] = {}
        self._acknowledged: set[AttemptKey] = set()

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return NativeRequest(kind="simulated", text=plan.app.name)

    def submit(self, plan: LaunchPlan) -> str:
        self._require_answer()
        self._check(plan)
        fate, self.fate = self.fate, Fate.STARTS
        if fate is Fate.BUSY:
            raise BackendBusy("the queue of the cluster is full")
        if fate is Fate.FORBIDDEN:
            raise NotPermitted("the service has no right to submit")
        known = plan.key in self.attempts
        if fate is Fate.REFUSED and not known:  # a submission that was accepted once is not refused later
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
        attempt.stop_requests += 1
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
        """Start an attempt that waits in the cluster's own queue."""
        if attempt.queued is not None:
            attempt.queued = None
            self._submissions += 1
            attempt.spawn(f"submission-{self._submissions}", self._place(attempt.plan))

    def used_slots(self) -> int:
        """The slots of agents that really work, one for each replica."""
        return sum(
            attempt.plan.workers_per_node * len({agent.replica for agent in attempt.working})
            for attempt in self.attempts.values()
            if attempt.at_work
        )

    def _place(self, plan: LaunchPlan) -> list[str]:
        """A node for each replica: free and not avoided, else free, else any."""
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
        """An old answer. After a submission was acknowledged, it never is that there was none."""
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
