"""The real supervisor in a world where everything may go wrong at any moment.

Hypothesis strikes cluster, agents, store, run directory and the service itself in any order; after each step nothing
that the architecture promises may be broken, and when the faults stop every job comes to its end.
HYPOTHESIS_PROFILE=long searches for minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import Conflict
from orchestrator.simulator.agents import FakeAgent
from orchestrator.simulator.cluster import Fate
from orchestrator.simulator.faults import Fault
from orchestrator.simulator.group import FakeAttempt
from orchestrator.wire import RetryRequest
from tests.builders import make_event, make_job, make_spec
from tests.property.world import World
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
_EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "20000" if LONG else "800"))

which = st.integers(min_value=0, max_value=7)  # of what there is, modulo
budgets = st.fixed_dictionaries(
    {
        "application": st.sampled_from([0, 1, 3, None]),
        "node": st.sampled_from([0, 2, 10]),
        "hang": st.sampled_from([0, 3]),
        "preemption": st.sampled_from([None, 1]),
    }
)
topologies = st.sampled_from(["1", "1", "2", "1:2", "2:3", "4"])
pauses_s = st.sampled_from([1.0, 1.0, 5.0, 20.0, 130.0, 700.0])
failures = st.builds(
    Failure,
    kind=st.sampled_from(list(FailureKind)),
    message=st.sampled_from(["it broke", "EADDRINUSE: address in use", "Connection closed by peer"]),
)


class SupervisorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.jobs = 0

    def teardown(self) -> None:
        try:
            self._come_to_rest()
        finally:
            self.world.close()

    # The owners

    @initialize(topology=topologies, budgets=budgets)
    def first_job(self, topology: str, budgets: dict[str, int | None]) -> None:
        self.submit(topology, 0, budgets)
        self.world.run_pass()
        self.world.cluster.work()

    @precondition(lambda self: self.jobs < 4 and self.world.store.available)
    @rule(topology=topologies, priority=st.sampled_from([-1, 0, 1]), budgets=budgets)
    def submit(self, topology: str, priority: int, budgets: dict[str, int | None]) -> None:
        self.jobs += 1
        # A budget that is given back by long attempts is the unit tests' affair: here every failure is to be counted.
        supervise = {"budgets": budgets, "refund_after_s": 1e8, "startup_timeout_s": 200, "backoff_s": [5, 60]}
        spec = make_spec(
            topology={"nodes": topology}, priority=priority, supervise=supervise, run={"command": ["t"], "workdir": "/"}
        )
        job = make_job(f"job-{self.jobs}", spec=spec, created_at=self.world.clock.now())
        self.world.store.add(job, idempotency_key=None, digest="", event=make_event("job.submitted"))

    @rule(which=which)
    def cancel(self, which: int) -> None:
        job = self.world.jobs()[which % self.jobs]
        self._wish(lambda: self.world.commands.cancel(job.id))

    @rule(which=which)
    def retry(self, which: int) -> None:
        job = self.world.jobs()[which % self.jobs]
        if self._wish(lambda: self.world.commands.retry(job.id, RetryRequest())):
            self.world.retries[job.id] += 1

    def _wish(self, wish: Callable[[], object]) -> bool:
        if not self.world.store.available:
            return False
        try:
            wish()
        except Conflict:
            return False
        return True

    # The service

    @rule()
    def look(self) -> None:
        self.world.run_pass()

    @rule(pause_s=pauses_s)
    def time_passes(self, pause_s: float) -> None:
        self._live_on(pause_s)

    @rule(pause_s=pauses_s)
    def time_passes_under_supervision(self, pause_s: float) -> None:
        self._live_on(pause_s)
        self.world.run_pass()

    @rule()
    def restart_service(self) -> None:
        self.world.restart_service()

    @rule(countdown=st.integers(min_value=1, max_value=6), after=st.booleans(), crash=st.booleans())
    def strike_an_effect(self, countdown: int, after: bool, crash: bool) -> None:
        self.world.faults.schedule(Fault(countdown=countdown, after=after, crash=crash))

    @rule(available=st.booleans())
    def store_answers(self, available: bool) -> None:
        self.world.store.available = available

    # The cluster

    @rule(silent=st.booleans())
    def cluster_is_silent(self, silent: bool) -> None:
        self.world.cluster.silent = silent

    @rule(fate=st.sampled_from(list(Fate)))
    def next_submission(self, fate: Fate) -> None:
        self.world.cluster.fate = fate

    @rule(which=which)
    def attempt_becomes_unknown(self, which: int) -> None:
        self.world.cluster.unknown |= {key for key, _ in self._attempts(which)}

    @rule(which=which)
    def agent_is_out_of_sight(self, which: int) -> None:
        self.world.cluster.hidden |= {(key, agent.replica) for key, agent in self._agents(which)}

    @rule()
    def everything_is_seen_again(self) -> None:
        self.world.cluster.unknown.clear()
        self.world.cluster.hidden.clear()

    @rule()
    def look_at_an_old_answer(self) -> None:
        """Of a submission that it did not acknowledge, the cluster may show nothing yet: it is then submitted again.

        Not while a stop is wished: what the cluster denies nobody can stop, and the port forbids such a lie.
        """
        jobs = self.world.jobs()
        if not any(job.desired.cancelled or job.desired.retry_number > job.retries_done for job in jobs):
            self.world.cluster.stale = True
            self.world.run_pass()
            self.world.cluster.stale = False

    # The agents

    @rule()
    def agents_work(self) -> None:
        self.world.cluster.work()

    @rule(which=which, orphans=st.booleans())
    def agent_dies(self, which: int, orphans: bool) -> None:
        for key, attempt in self._attempts(which):
            for agent in [agent for agent in attempt.agents if agent.running][-1:]:
                agent.die(orphans=orphans and agent.claimed)
                lost = sum(each.claimed and not each.running and each.exit_record is None for each in attempt.agents)
                if lost > attempt.plan.max_nodes - attempt.plan.min_nodes or not attempt.working:
                    self._harm(key)

    @rule(which=which, failure=failures, everyone=st.booleans())
    def agents_fail(self, which: int, failure: Failure, everyone: bool) -> None:
        for key, attempt in self._attempts(which):
            self._harm(key)
            for agent in attempt.working if everyone else attempt.working[-1:]:
                agent.exit(Outcome.FAILED, failure)

    @rule(which=which)
    def group_is_preempted(self, which: int) -> None:
        for key, attempt in self._attempts(which):
            self._harm(key)
            for agent in attempt.working:
                agent.exit(Outcome.PREEMPTED)

    @rule(which=which)
    def group_succeeds_while_we_look(self, which: int) -> None:
        self.world.cluster.before_look = lambda: self.group_succeeds(which)
        self.world.run_pass()

    @rule(which=which, peers_unseen=st.booleans())
    def agent_succeeds(self, which: int, peers_unseen: bool) -> None:
        for key, agent in self._agents(which):
            attempt = self.world.cluster.attempts[key]
            if attempt.formed:
                agent.exit(Outcome.SUCCEEDED)
                if peers_unseen:
                    self.world.cluster.hidden |= {(key, peer.replica) for peer in attempt.working}

    @rule(which=which)
    def group_succeeds(self, which: int) -> None:
        for _, attempt in self._attempts(which):
            if attempt.formed:
                for agent in attempt.working:
                    agent.exit(Outcome.SUCCEEDED)

    @rule(which=which)
    def group_restarts_in_place(self, which: int) -> None:
        for _, attempt in self._attempts(which):
            attempt.restart_in_place()

    @rule(which=which, deaf=st.booleans())
    def group_stalls(self, which: int, deaf: bool) -> None:
        for key, attempt in self._attempts(which):
            # A group that stalls between forming and its first step is not told from a program that tells no steps.
            if not attempt.stalled and (attempt.step or not attempt.formed):
                self._harm(key)
                attempt.stalled = True
                for agent in attempt.agents:
                    agent.deaf = deaf

    @rule(which=which)
    def agent_becomes_deaf(self, which: int) -> None:
        for _, agent in self._agents(which):
            agent.deaf = True

    @invariant()
    def promises_are_kept(self) -> None:
        self.world.check()

    # Helpers

    def _attempts(self, which: int) -> list[tuple[AttemptKey, FakeAttempt]]:
        """One attempt of which something runs, if there is any."""
        running = [(key, attempt) for key, attempt in self.world.cluster.attempts.items() if attempt.runs]
        return [running[which % len(running)]] if running else []

    def _agents(self, which: int) -> list[tuple[AttemptKey, FakeAgent]]:
        """One agent at work, if there is any."""
        working = [(key, each) for key, attempt in self.world.cluster.attempts.items() for each in attempt.working]
        return [working[which % len(working)]] if working else []

    def _harm(self, key: AttemptKey) -> None:
        self.world.harm[key.job_id] += 1

    def _live_on(self, pause_s: float) -> None:
        """Healthy agents get as far as they can in the time."""
        for _ in range(1 if pause_s < 10 else 4):
            self.world.cluster.work()
        self.world.clock.advance(pause_s)
        self.world.cluster.work()

    def _come_to_rest(self) -> None:
        """All faults stop; what trains may finish."""
        cluster = self.world.cluster
        self.world.faults.schedule(None)
        self.world.store.available = True
        cluster.silent, cluster.fate = False, Fate.STARTS
        cluster.unknown.clear()
        cluster.hidden.clear()
        for _ in range(20 + 12 * self.jobs):
            if self.world.at_rest():
                break
            self._live_on(130)
            self.world.run_pass()
            self.world.check()
            for attempt in list(cluster.attempts.values()):
                if attempt.step >= 3 and not attempt.stalled:
                    for agent in attempt.working:
                        agent.exit(Outcome.SUCCEEDED)
        self.world.run_pass()
        self.world.check()
        self.world.check_rest()


TestTheSupervisorKeepsItsPromises = SupervisorMachine.TestCase
TestTheSupervisorKeepsItsPromises.settings = settings(
    max_examples=_EXAMPLES,
    stateful_step_count=60 if LONG else 50,
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
if LONG:
    TestTheSupervisorKeepsItsPromises = pytest.mark.timeout(7200)(TestTheSupervisorKeepsItsPromises)
