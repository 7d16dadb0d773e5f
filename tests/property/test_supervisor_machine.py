"""The real supervisor in a simulated world where everything may fail at any time.

Hypothesis injects faults into the cluster, agents, store, run directories, clocks and two service processes, in any
order. After each step, every promise of the architecture must hold. Once the faults stop, every job must end.
HYPOTHESIS_PROFILE=long searches for a long time.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.domain.job.job import Job
from orchestrator.domain.queueing.admission import Limits
from tests.examples import LONG, examples
from tests.fakes.cluster import Fate
from tests.fakes.group import Stall
from tests.property import drawn, promises
from tests.property.misfortunes import Misfortunes
from tests.property.owners import Owners
from tests.property.rest import come_to_rest
from tests.property.service_faults import Fault, FaultKind
from tests.property.world import World
from trainer.contract.failure import Failure


class SupervisorMachine(RuleBasedStateMachine):
    """The rules that both searches share."""

    @initialize(
        limits=drawn.limits,
        lease_s=st.sampled_from([15.0, 40.0]),
        agents_skew_s=st.sampled_from([0.0, -300.0, 300.0]),
        topology=drawn.topologies,
        supervise=drawn.supervise,
        fate=drawn.fates,
        never_forms=drawn.rarely,
    )
    def a_world_with_one_job(
        self,
        limits: Limits,
        lease_s: float,
        agents_skew_s: float,
        topology: str,
        supervise: dict[str, object],
        fate: Fate,
        never_forms: bool,
    ) -> None:
        self.world = World(limits=limits, lease_s=lease_s, agents_skew_s=agents_skew_s)
        self.owners, self.misfortunes = Owners(self.world), Misfortunes(self.world)
        self.world.cluster.fate, self.world.cluster.never_forms = fate, never_forms and fate is Fate.STARTS
        self.world.add_job(topology={"nodes": topology}, supervise=supervise)
        self.world.look()
        for _ in range(4):
            self.world.cluster.work()
        self.world.look()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.misfortunes.stop()
            come_to_rest(self.world, self.owners)
        finally:
            self.world.close()

    @invariant()
    def promises_are_kept(self) -> None:
        if hasattr(self, "world"):
            promises.check(self.world)

    # Owners

    @precondition(lambda self: len(self.world.jobs()) < 5 and self.world.store.available)
    @rule(
        topology=drawn.topologies,
        priority=st.sampled_from([-1, 0, 1]),
        supervise=drawn.supervise,
        after=st.sampled_from([False, False, True]),
    )
    def submit(self, topology: str, priority: int, supervise: dict[str, object], after: bool) -> None:
        waits_for = [self.world.jobs()[-1].id] if after else []
        self.world.add_job(topology={"nodes": topology}, priority=priority, supervise=supervise, after=waits_for)

    @rule(which=drawn.which, back=st.sampled_from([None, None, 0, 1]), then_s=drawn.then_s)
    def owner_retries(self, which: int, back: int | None, then_s: float | None) -> None:
        self.owners.retry(self._job(which), back=back)
        self._then(then_s)

    @rule(which=drawn.which, sure=drawn.rarely, then_s=drawn.then_s)
    def owner_cancels(self, which: int, sure: bool, then_s: float | None) -> None:
        if sure:
            self.owners.cancel(self._job(which))
        self._then(then_s)

    # Time and the service

    @rule()
    def look(self) -> None:
        self.world.look()

    @rule(pause_s=drawn.pauses_s)
    def time_passes(self, pause_s: float) -> None:
        self.world.live_on(pause_s)

    @rule(pause_s=st.sampled_from([20.0, 75.0, 130.0]))
    def time_passes_under_supervision(self, pause_s: float) -> None:
        self.world.watch(pause_s)

    @rule()
    def agents_work(self) -> None:
        self.world.cluster.work()

    @rule(fault=drawn.faults, who=st.booleans())
    def an_effect_fails(self, fault: Fault, who: bool) -> None:
        self.world.services[who].faults.schedule(fault)

    @rule(fate=drawn.fates, never_forms=drawn.rarely)
    def next_submission(self, fate: Fate, never_forms: bool) -> None:
        self.world.cluster.fate, self.world.cluster.never_forms = fate, never_forms

    # Agents

    @rule(which=drawn.which, orphans=st.booleans(), then_s=drawn.then_s)
    def agent_dies(self, which: int, orphans: bool, then_s: float | None) -> None:
        self.misfortunes.kill_agent(which, orphans=orphans)
        self._then(then_s)

    @rule(which=drawn.which, failure=drawn.failures, everyone=st.booleans(), then_s=drawn.then_s)
    def agents_fail(self, which: int, failure: Failure, everyone: bool, then_s: float | None) -> None:
        self.misfortunes.fail_agents(which, failure, everyone=everyone)
        self._then(then_s)

    @rule(which=drawn.which, stall=drawn.stalls, deaf=st.booleans())
    def group_stalls(self, which: int, stall: Stall, deaf: bool) -> None:
        self.misfortunes.stall_group(which, stall, deaf=deaf)
        self.world.watch(130)

    @rule(which=drawn.which, sure=drawn.rarely, then_s=drawn.then_s)
    def group_succeeds(self, which: int, sure: bool, then_s: float | None) -> None:
        if sure:
            self.misfortunes.finish_group(which)
        self._then(then_s)

    @rule(which=drawn.which, then_s=drawn.then_s)
    def group_restarts_in_place(self, which: int, then_s: float | None) -> None:
        self.misfortunes.restart_in_place(which)
        self._then(then_s)

    def _then(self, then_s: float | None) -> None:
        if then_s is not None:
            self.world.watch(then_s)

    def _job(self, which: int) -> Job:
        jobs = self.world.jobs()
        return jobs[which % len(jobs)]


class EverythingFails(SupervisorMachine):
    """Faults of cluster, agents and observations."""

    @rule(silent=st.booleans())
    def cluster_is_silent(self, silent: bool) -> None:
        self.world.cluster.silent = silent

    @rule(available=st.booleans())
    def store_answers(self, available: bool) -> None:
        self.world.store.available = available

    @rule(which=drawn.which)
    def attempt_becomes_unknown(self, which: int) -> None:
        self.misfortunes.make_unknown(which)

    @rule(which=drawn.which)
    def agent_is_out_of_sight(self, which: int) -> None:
        self.misfortunes.hide_agent(which)

    @rule(which=drawn.which, then_s=drawn.then_s)
    def node_is_out_of_reach(self, which: int, then_s: float | None) -> None:
        self.misfortunes.miss_replica(which)
        self._then(then_s)

    @rule(which=drawn.which)
    def run_directory_is_unreadable(self, which: int) -> None:
        self.world.unreadable.add(self._job(which).id)

    @rule()
    def everything_is_seen_again(self) -> None:
        self.misfortunes.show_everything()

    @rule()
    def look_at_an_old_answer(self) -> None:
        self.misfortunes.show_old_answer()

    @rule(forgets=st.booleans())
    def cluster_forgets(self, forgets: bool) -> None:
        self.world.cluster.forgets = forgets

    @rule(which=drawn.which)
    def cluster_lets_it_start(self, which: int) -> None:
        self.misfortunes.end_queueing(which)

    @rule(which=drawn.which, cause=drawn.causes, records=st.booleans(), then_s=drawn.then_s)
    def cluster_ends_it(self, which: int, cause: Failure, records: bool, then_s: float | None) -> None:
        self.misfortunes.end_by_cluster(which, cause, records=records)
        self._then(then_s)

    @rule(which=drawn.which, then_s=drawn.then_s)
    def machines_are_cut_off(self, which: int, then_s: float | None) -> None:
        self.misfortunes.cut_off(which)
        self._then(then_s)

    @rule(which=drawn.which, then_s=drawn.then_s)
    def dead_agent_comes_back(self, which: int, then_s: float | None) -> None:
        self.misfortunes.revive_agent(which)
        self._then(then_s)

    @rule(which=drawn.which)
    def group_is_slow(self, which: int) -> None:
        self.misfortunes.slow_group(which)

    @rule(which=drawn.which, sure=drawn.rarely)
    def group_succeeds_during_an_observation(self, which: int, sure: bool) -> None:
        if not sure:
            return
        self.world.cluster.before_look = lambda: self.misfortunes.finish_group(which)
        self.world.look()

    @rule(which=drawn.which, peers_unseen=st.booleans(), then_s=drawn.then_s)
    def agent_succeeds(self, which: int, peers_unseen: bool, then_s: float | None) -> None:
        self.misfortunes.finish_agent(which, peers_unseen=peers_unseen)
        self._then(then_s)

    @rule(which=drawn.which)
    def agent_becomes_deaf(self, which: int) -> None:
        self.misfortunes.deafen_agent(which)

    @rule(which=drawn.which, again=st.booleans())
    def agent_reports(self, which: int, again: bool) -> None:
        self.misfortunes.report(which, again=again)

    @rule(which=drawn.which)
    def journal_is_cut(self, which: int) -> None:
        self.misfortunes.cut_journal(which)


class EveryoneActs(SupervisorMachine):
    """Requests of owners, and two service processes that crash, pause and have wrong clocks."""

    @rule(which=drawn.which, then_s=drawn.then_s)
    def owner_suspends(self, which: int, then_s: float | None) -> None:
        self.owners.suspend(self._job(which))
        self._then(then_s)

    @rule(which=drawn.which, then_s=drawn.then_s)
    def owner_resumes(self, which: int, then_s: float | None) -> None:
        self.owners.resume(self._job(which))
        self._then(then_s)

    @rule(which=drawn.which, then_s=drawn.then_s)
    def owner_wants_a_snapshot(self, which: int, then_s: float | None) -> None:
        self.owners.snapshot(self._job(which))
        self._then(then_s)

    @rule(which=drawn.which, topology=drawn.topologies, then_s=drawn.then_s)
    def owner_scales(self, which: int, topology: str, then_s: float | None) -> None:
        self.owners.scale(self._job(which), topology)
        self._then(then_s)

    @rule(which=drawn.which, topology=drawn.topologies, then_s=drawn.then_s)
    def owner_retries_changed(self, which: int, topology: str, then_s: float | None) -> None:
        self.owners.retry(self._job(which), nodes=topology)
        self._then(then_s)

    @rule(who=st.booleans())
    def service_restarts(self, who: bool) -> None:
        self.world.services[who].restart()

    @rule(who=st.booleans())
    def service_retires(self, who: bool) -> None:
        self.world.services[who].retire()

    @rule(
        who=st.booleans(),
        countdown=st.integers(min_value=1, max_value=6),
        after=st.booleans(),
        pause_s=st.sampled_from([5.0, 50.0, 200.0]),
        meanwhile=st.sampled_from(["nothing", "cancel", "suspend", "retry", "die", "succeed"]),
        which=drawn.which,
    )
    def service_sleeps(
        self, who: bool, countdown: int, after: bool, pause_s: float, meanwhile: str, which: int
    ) -> None:
        """Pause the service before or after an effect, perhaps for longer than its lease, within a call."""
        world, job = self.world, self._job(which)
        happens = {
            "nothing": lambda: None,
            "cancel": lambda: self.owners.cancel(job),
            "suspend": lambda: self.owners.suspend(job),
            "retry": lambda: self.owners.retry(job),
            "die": lambda: self.misfortunes.kill_agent(which, orphans=False),
            "succeed": lambda: self.misfortunes.finish_group(which),
        }
        world.pause_s, world.meanwhile = pause_s, happens[meanwhile]
        world.services[who].faults.schedule(Fault(countdown=countdown, after=after, kind=FaultKind.PAUSE))
        world.look()

    @rule(who=st.booleans(), skew_s=st.sampled_from([-8.0, 0.0, 8.0]))
    def clock_is_corrected(self, who: bool, skew_s: float) -> None:
        self.world.services[who].clock.skew_s = skew_s

    @rule(who=st.booleans(), skew_s=st.sampled_from([-3600.0, 3600.0]))
    def clock_jumps(self, who: bool, skew_s: float) -> None:
        self.misfortunes.jump_clock(self.world.services[who], skew_s)


SETTINGS = settings(
    max_examples=examples(40, 10_000),
    stateful_step_count=60 if LONG else 40,
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestEverythingFails = EverythingFails.TestCase
TestEverythingFails.settings = SETTINGS
TestEveryoneActs = EveryoneActs.TestCase
TestEveryoneActs.settings = SETTINGS
if LONG:
    TestEverythingFails = pytest.mark.timeout(7200)(TestEverythingFails)
    TestEveryoneActs = pytest.mark.timeout(7200)(TestEveryoneActs)
