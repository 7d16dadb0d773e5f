"""Compare every change of the store with the true state, and collect what is wrong.

The ledger computes budgets itself, from what the agents did, and does not use the rules under test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.membership import NOTES, Life, read_life
from orchestrator.domain.observation.node_record import GRAVE
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.policy.budget import budget_of
from orchestrator.ports.supervision import Change
from orchestrator.simulator.invariants import find_wrong_start, find_wrong_transitions
from orchestrator.simulator.memory_store import MemoryStore
from tests.fakes.cluster import FakeCluster
from tests.fakes.group import FakeAttempt
from tests.property.causes import explain_end, first_cause, ran_too_long
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import FailureKind

NODE_COOLDOWN_S = 600.0
LARGEST_SKEW_S = 20.0  # between two services


@dataclass
class Ledger:
    """`account` has the failures by budget since the last retry, less refunds."""

    store: MemoryStore
    cluster: FakeCluster
    wrong: list[str] = field(default_factory=list)
    account: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    kept: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # by job: the step of a snapshot, and seconds of training
    farthest: dict[str, int] = field(
        default_factory=dict
    )  # the step that any attempt since the last retry has reached, by job
    owed: set[str] = field(default_factory=set)  # jobs whose retry has started but has no attempt yet
    requested: Counter[str] = field(default_factory=Counter)  # owners' requests that may end an attempt, by job
    grown: Counter[str] = field(default_factory=Counter)
    succeeded: set[str] = field(default_factory=set)  # jobs that ever succeeded
    marks_before: set[object] = field(default_factory=set)  # failures in node records when the pass began
    noted: set[tuple[AttemptKey, str, Life]] = field(default_factory=set)  # recorded losses and returns of replicas
    surprised: bool = False  # whether the world has changed since the pass observed it

    def begin_pass(self) -> None:
        self.surprised = False
        self.marks_before = set(self.store.tables.node_failures)

    def check(self, job: Job, attempt: Attempt | None, change: Change) -> None:
        """Check a change. `job` and `attempt` are from before it."""
        self.wrong += find_wrong_transitions(job, attempt, change)
        self._check_job(job, change)
        if change.attempt is not None:
            self._check_attempt(job, attempt, change.attempt, change)
        for mark in change.node_failures:
            self._check_mark(mark.node, change)
        for event in change.events:
            if event.kind in NOTES:
                self._check_note(job, event)

    def _check_job(self, before: Job, change: Change) -> None:
        after = change.job
        if after.retries_done > before.retries_done:
            self.owed.add(before.id)
            self.account[before.id].clear()
            self.farthest.pop(before.id, None)
            self.kept.pop(before.id, None)
        if after.state is JobState.SUCCEEDED:
            self.succeeded.add(after.id)
        if before.state is after.state and before.reason == after.reason:
            return
        # A retry that is withdrawn at the moment in which it starts is cancelled next.
        if before.state.terminal and before.desired.retry_number <= before.retries_done and not self.surprised:
            self._note(f"{before.id} is at rest but changes to {after.state}")
        if before.state is after.state:
            return
        if after.state is JobState.FAILED:
            self._check_verdict(after)
        if after.state is JobState.CANCELLED and not self.surprised and not before.desired.cancelled:
            self._note(f"{after.id} became CANCELLED without a request")

    def _check_verdict(self, job: Job) -> None:
        """A job fails only because of the failure of its last attempt."""
        last = self.store.attempts_of(job.id)[-1]
        failure, limit_s = last.failure, job.spec.supervise.max_runtime_s
        if job.id in self.owed:
            self._note(f"{job.id} gives up before the requested retry")
        if failure is None:
            self._note(f"{job.id} failed without a failure")
        elif not (
            self._overspent(job)
            or failure.kind is FailureKind.LAUNCH
            or failure.repeated
            or (failure.kind is FailureKind.TIMEOUT and ran_too_long(last, limit_s))
        ):
            self._note(f"{job.id} gave up with budget left: {dict(self.account[job.id])}, {job.reason}")

    def _overspent(self, job: Job) -> list[str]:
        budgets = job.spec.supervise.budgets
        return [
            f"{count} {name} failures of {limit}"
            for name, count in self.account[job.id].items()
            if (limit := getattr(budgets, name)) is not None and count > limit
        ]

    def _check_attempt(self, job: Job, before: Attempt | None, after: Attempt, change: Change) -> None:
        if before is None:
            self._check_new(job, after)
        elif before.stopping_since is not None and after.stopping_since is None:
            self._note(f"{after.key} was being stopped and no longer is")
        if any(event.kind == EventKind.GREW_BACK for event in change.events):
            self._check_growth(job, after)
        if after.state.terminal and (before is None or before.state is not after.state):
            self._check_end(job, after, change)

    def _check_new(self, job: Job, after: Attempt) -> None:
        self.owed.discard(job.id)
        earlier = self.store.attempts_of(job.id)[: after.key.number - 1]
        self.wrong += find_wrong_start(earlier[-1] if earlier else None, after)
        if not self.surprised and (job.desired.cancelled or job.desired.suspended):
            self._note(f"{after.key} starts though the job is cancelled or suspended")
        if job.state is JobState.QUEUED and not {*job.spec.after} <= self.succeeded:
            self._note(f"{after.key} starts before {job.spec.after} succeeded")
        for overspent in self._overspent(job):
            failure = earlier[-1].failure if earlier else None
            if failure is not None and f" {budget_of(failure)} " in overspent:
                self._note(f"{after.key} starts after {overspent}")
        if not self.surprised:
            self._check_exclusions(job, after)

    def _check_exclusions(self, job: Job, after: Attempt) -> None:
        marks = [mark for key, mark in self.store.tables.node_failures.items() if key in self.marks_before]
        fresh = timedelta(seconds=NODE_COOLDOWN_S - LARGEST_SKEW_S)
        bad = {mark.node for mark in marks if mark.kind in GRAVE and after.created_at - mark.at < fresh}
        if job.spec.supervise.exclude_bad_nodes and not bad <= {*after.excluded_nodes}:
            self._note(f"{after.key} may run on {bad - {*after.excluded_nodes}}")
        if not {*after.excluded_nodes} <= {mark.node for mark in marks}:
            self._note(f"{after.key} avoids {after.excluded_nodes}, but some have no record")

    def _check_growth(self, job: Job, after: Attempt) -> None:
        self.grown[job.id] += 1
        real = self.cluster.attempts[after.key]
        if after.max_nodes >= job.spec.topology.max_nodes and not real.deaths and not real.partial:
            self._note(f"{after.key} is stopped to grow, but has all nodes that it could have")

    def _check_note(self, job: Job, event: Event) -> None:
        """A replica is recorded as lost or as back once for each of its agents, and only if that is true."""
        life, key = read_life(event), AttemptKey(job.id, event.attempt or 0)
        if life is None or (key, event.kind, life) in self.noted:
            self._note(f"{key} recorded twice: {event.sentence}")
            return
        self.noted.add((key, event.kind, life))
        real = self.cluster.attempts[key]
        agents = [agent for agent in real.agents if (agent.replica, agent.incarnation) == life]
        if not agents:
            self._note(f"{key} never had the agent of: {event.sentence}")
        away = real.cut_off or life[0] in real.missed or self.surprised
        if event.kind == EventKind.REPLICA_LOST and not away and any(agent.running for agent in agents):
            self._note(f"{key} recorded, though its agent runs: {event.sentence}")

    def _check_mark(self, node: str, change: Change) -> None:
        key = None if change.attempt is None else change.attempt.key
        real = None if key is None else self.cluster.attempts.get(key)
        if real is None or node not in {agent.node for agent in real.agents}:
            self._note(f"{node} was marked by {key}, which never ran there")
        if not any(event.kind == EventKind.NODE_MARKED for event in change.events):
            self._note(f"{node} was marked without an event")

    def _check_end(self, job: Job, after: Attempt, change: Change) -> None:
        self._charge(job, after)
        budgets = type(job.spec.supervise.budgets).model_fields
        spent = Counter({name: count for name, count in change.job.spent.items() if name in budgets})
        if not self.surprised and spent != self.account[job.id]:
            self._note(f"{after.key} leaves the account {change.job.spent}, not {dict(self.account[job.id])}")
        real = self.cluster.attempts.get(after.key)
        if real is not None:
            self.wrong += [f"{after.key} ended {after.state}: {what}" for what in self._judge(job, after, real)]

    def _judge(self, job: Job, after: Attempt, real: FakeAttempt) -> Iterator[str]:
        """Contradictions to the recorded end."""
        if real.runs:
            yield f"it still runs: {[(each.replica, each.state, each.orphans) for each in real.agents]} {real.delayed}"
        records = [agent.exit_record for agent in real.agents if agent.exit_record is not None]
        dead = [agent for agent in real.agents if not agent.running and agent.exit_record is None]
        if real.agents and not records and not dead and not real.cut_off:
            yield "all its agents are healthy"
        formed = self.store.tables.summaries[after.key].formed_at is not None
        if after.failure is not None and after.failure.at_launch and (formed or self.farthest.get(job.id) is not None):
            yield "it is called a failed launch, but workers of the job had started"
        outcomes = [record.outcome for record in records]
        if outcomes.count(Outcome.SUCCEEDED) == real.plan.max_nodes and after.state is not AttemptState.SUCCEEDED:
            yield "all its agents succeeded"
        if after.state is AttemptState.SUCCEEDED and outcomes.count(Outcome.SUCCEEDED) < real.plan.min_nodes:
            yield f"it has the records {outcomes}"
        by_request = bool(self.requested[job.id] or self.grown[job.id])
        overlong = ran_too_long(after, job.spec.supervise.max_runtime_s)
        if not explain_end(after, real, by_request=by_request, overlong=overlong):
            yield f"nothing that happened to it explains {after.failure}"
        cause, recorded = first_cause(real), after.failure
        unmixed = after.stopping_since is None and not real.lost and real.cause is None and not real.cut_off
        if recorded is not None and cause is not None and unmixed and recorded.message != cause.message:
            yield f"its first cause was {cause}, not {recorded}"

    def _charge(self, job: Job, after: Attempt) -> None:
        """Charge the budgets for the attempt, by its journals."""
        training = self.store.tables.summaries[after.key].training()
        ended_at, started_at = after.ended_at, after.started_at
        ran = timedelta() if started_at is None or ended_at is None else ended_at - started_at
        # It is not known how long a program without reported steps has hung.
        farther = after.failure is None or after.failure.kind is not FailureKind.HANG
        farthest = self.farthest.get(job.id)
        if started_at is not None and training.step_s is not None and training.progress_at is not None:
            ran = training.progress_at - started_at
            farther = farthest is None or (training.step or 0) > farthest
        account, refund_s = self.account[job.id], job.spec.supervise.refund_after_s
        keeps_s, kept_s = self._keep(job, after, training)
        if (farther and ran.total_seconds() >= refund_s) or kept_s >= refund_s:
            account.clear()
            self.kept[job.id] = (self.kept.get(job.id, (0, 0.0))[0], 0.0)
        if training.step is not None:
            self.farthest[job.id] = max(training.step, farthest or 0)
        lasted_s = 0.0 if started_at is None or ended_at is None else (ended_at - started_at).total_seconds()
        if keeps_s is not None and keeps_s >= max(lasted_s - keeps_s, refund_s / 10):
            return
        account.update(application=training.restarts, node=training.shrinks)
        # A cancelled or successful attempt costs nothing, even if it was being stopped for a failure.
        free = after.failure is None or after.state in (AttemptState.CANCELLED, AttemptState.SUCCEEDED)
        at_its_limit = after.failure is not None and after.failure.kind is FailureKind.TIMEOUT
        budget = None if free or (at_its_limit and keeps_s is not None) else budget_of(after.failure)
        if budget is not None:
            account[budget] += 1

    def _keep(self, job: Job, after: Attempt, training: Training) -> tuple[float | None, float]:
        """Seconds of training in snapshots that are newer than any before: of this attempt, and of all."""
        step, all_s = self.kept.get(job.id, (0, 0.0))
        if training.kept_step is None or training.kept_step <= max(step, training.began_step or 0):
            return None, all_s
        keeps_s, began_at, kept_at = 0.0, training.formed_at, training.kept_at
        if began_at and kept_at and after.started_at and after.ended_at:
            ran_s = (after.ended_at - after.started_at).total_seconds()
            keeps_s = min(max(0.0, (kept_at - began_at).total_seconds()), ran_s)
        self.kept[job.id] = (training.kept_step, all_s + keeps_s)
        return keeps_s, all_s + keeps_s

    def _note(self, what: str) -> None:
        self.wrong.append(what)
