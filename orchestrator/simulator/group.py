"""A fake attempt: the agents of all its submissions, and the worker group that they form."""

from __future__ import annotations

from pathlib import Path

from orchestrator.domain.launch import LaunchPlan
from orchestrator.domain.observation import Liveness, Presence, ReplicaSighting, Sighting
from orchestrator.ports import Clock
from orchestrator.simulator.agents import AgentState, FakeAgent
from trainer.contract.exit_record import EventKind, Outcome


class FakeAttempt:
    """What the cluster really has of one attempt."""

    def __init__(self, plan: LaunchPlan, clock: Clock) -> None:
        self.plan = plan
        self.agents: list[FakeAgent] = []
        self.delayed: list[str] = []  # tokens of submissions that will start later
        self.generation = 0
        self.step = 0
        self.restarts = 0
        self.stalled = False
        self.polite_words = 0
        self.partial = False  # not all of its replicas were started
        self._clock = clock

    def spawn(self, token: str, replicas: range) -> None:
        job_dir = Path(self.plan.job_dir)
        self.agents += [FakeAgent(job_dir, self.plan.key, replica, token, self._clock) for replica in replicas]

    @property
    def working(self) -> list[FakeAgent]:
        return [agent for agent in self.agents if agent.state is AgentState.WORKING]

    @property
    def _finished(self) -> int:
        """Agents whose workers are through: the others can do without them."""
        records = [agent.exit_record for agent in self.agents]
        return sum(record is not None and record.outcome is Outcome.SUCCEEDED for record in records)

    @property
    def formed(self) -> bool:
        return self.generation > 0

    @property
    def runs(self) -> bool:
        """Whether any process of it runs or will."""
        return bool(self.delayed) or any(agent.running or agent.orphans for agent in self.agents)

    @property
    def starts(self) -> int:
        """How many submissions got to train."""
        return len({agent.token for agent in self.agents if agent.claimed})

    def work(self) -> None:
        """One stage: agents obey, claim, form the group, or train a step."""
        for token in self.delayed:
            self.spawn(token, range(self.plan.max_nodes))
        self.delayed = []
        for agent in self.working:
            agent.heed()
        starting = [agent for agent in self.agents if agent.state is AgentState.STARTING]
        for agent in starting:
            agent.claim()
        if starting or self.stalled or len(self.working) + self._finished < self.plan.min_nodes:
            return
        if not self.formed:
            self._begin_generation()
        else:
            self.step += 1
            for agent in self.working:
                agent.tell_step(self.step, self.generation, len(self.working))

    def restart_in_place(self) -> None:
        """The agents answer a worker's failure by themselves, while the policy lets them."""
        if self.formed and self.working and self.restarts < self.plan.policy.max_restarts:
            self.restarts += 1
            for agent in self.working:
                agent.journal(EventKind.RESTARTED_IN_PLACE, self.generation + 1)
            self._begin_generation()

    def end_all(self) -> None:
        """By force: every process of it."""
        self.delayed = []
        for agent in self.agents:
            if agent.running:
                agent.die(orphans=False)
            agent.orphans = False

    def sight(self, hidden: frozenset[int]) -> Sighting:
        """The truth, but for the replicas of which nothing is to be seen."""
        key = self.plan.key
        if self.delayed:
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence="a submission is under way")
        if not any(agent.running or agent.orphans or agent.claimed for agent in self.agents):
            return Sighting(key=key, presence=Presence.ABSENT, evidence="nobody claimed the attempt")
        replicas = tuple(self._sight_replica(replica, hidden) for replica in range(self.plan.max_nodes))
        seen = {replica.liveness for replica in replicas}
        gone = Presence.UNKNOWN if Liveness.UNKNOWN in seen else Presence.GONE
        presence = Presence.RUNNING if Liveness.ALIVE in seen else gone
        return Sighting(key=key, presence=presence, evidence=f"{key} is {presence.value}", replicas=replicas)

    def _sight_replica(self, replica: int, hidden: frozenset[int]) -> ReplicaSighting:
        mine = [agent for agent in self.agents if agent.replica == replica]
        liveness = Liveness.ALIVE if any(agent.running for agent in mine) else Liveness.DEAD
        if replica in hidden:
            liveness = Liveness.UNKNOWN
        leftovers = liveness is Liveness.DEAD and any(agent.orphans for agent in mine)
        evidence = f"replica {replica} is {liveness.value}"
        return ReplicaSighting(replica=replica, liveness=liveness, evidence=evidence, leftovers=leftovers)

    def _begin_generation(self) -> None:
        self.generation += 1
        for agent in self.working:
            agent.journal(EventKind.GENERATION_STARTED, self.generation)
