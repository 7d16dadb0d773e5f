"""A fake attempt: the agents of all its submissions, and their worker group."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from orchestrator.ports.clock import Clock
from tests.fakes.agents import AgentState, FakeAgent
from tests.fakes.lineage import FakeLineage, StaleTerm
from trainer.contract import env
from trainer.contract.exit_record import EventKind, Outcome
from trainer.contract.failure import Failure
from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName
from trainer.contract.progress import Phase

_STEPS_PER_SNAPSHOT = 3


@dataclass(frozen=True, slots=True)
class Stall:
    """From `phase` on, the group stalls because of one replica. `reported`: the others report that they wait for it."""

    phase: Phase  # START: it never forms
    culprit: int  # its index among the members
    reported: bool = False


class FakeAttempt:
    """The true state of one attempt."""

    def __init__(self, plan: LaunchPlan, clock: Clock, lineage: FakeLineage) -> None:
        self.plan = plan
        self.lineage = lineage
        self.agents: list[FakeAgent] = []
        self.delayed: list[tuple[datetime, str, list[str]]] = []  # submissions that start later: when, token, nodes
        self.queued: str | None = None  # why it waits in the cluster's own queue
        self.cause: Failure | None = None  # why it ended according to the cluster
        self.ended_in_queue = False
        self.cut_off = False  # its nodes are unreachable: they count as dead but continue
        self.missed: set[int] = set()  # replicas that neither the cluster nor other agents reach; they may still work
        self.generation = 0
        self.members: list[FakeAgent] = []
        self.phase = Phase.START
        self.step = 0
        self.saved = 0  # the step of the newest snapshot
        self.saves_on_request = 0
        self.checked: SnapshotName | None = None  # a snapshot that has passed its check and is not renamed yet
        self.stale = False
        self.restarts = 0
        self.deaths = 0  # agents that died without a record and without the service
        self.stall: Stall | None = None
        self.stalled: Stall | None = None  # `stall`, once it is in effect
        self.quiet_until: datetime | None = None  # slow, not stalled
        self.stop_requests = 0
        self.partial = False  # not all of its replicas were started
        self._clock = clock

    def spawn(self, token: str, nodes: list[str], *, most: int | None = None) -> None:
        job_dir = Path(self.plan.job_dir)
        self.agents += [
            FakeAgent(job_dir, self.plan.key, replica, token, self._clock, node=node)
            for replica, node in enumerate(nodes[:most])
        ]

    def come_back(self, agent: FakeAgent) -> None:
        """The cluster starts the next incarnation of a dead replica, from the same submission."""
        job_dir = Path(self.plan.job_dir)
        self.agents.append(FakeAgent(job_dir, self.plan.key, agent.replica, agent.token, self._clock, node=agent.node))

    @property
    def working(self) -> list[FakeAgent]:
        return [agent for agent in self.agents if agent.state is AgentState.WORKING]

    @property
    def lost(self) -> int:
        """The number of replicas that died without a record and were not started again."""
        mine = [[agent for agent in self.agents if agent.replica == replica] for replica in range(self.plan.max_nodes)]
        gone = [all(not agent.running and agent.exit_record is None for agent in lives) for lives in mine if lives]
        return sum(gone)

    @property
    def _finished(self) -> int:
        """The number of agents whose workers have finished. The others continue without them."""
        records = [agent.exit_record for agent in self.agents]
        return sum(record is not None and record.outcome is Outcome.SUCCEEDED for record in records)

    @property
    def formed(self) -> bool:
        return self.generation > 0

    @property
    def training(self) -> bool:
        """Whether its term has begun: it restored a snapshot or started at step 0."""
        return self.formed and self.phase not in (Phase.START, Phase.RESTORE) and not self.stale

    @property
    def runs(self) -> bool:
        """Whether any process of it that the cluster reaches runs or will run."""
        present = any(agent.running or agent.orphans for agent in self.agents)
        return bool(self.delayed or self.queued) or (present and not self.cut_off)

    @property
    def starts(self) -> int:
        """The number of submissions whose agents claimed the attempt."""
        return len({agent.token for agent in self.agents if agent.claimed})

    def work(self) -> None:
        """Do one thing: stop, claim, form the group, or train a step."""
        now = self._clock.now()
        for due, token, nodes in [each for each in self.delayed if each[0] <= now]:
            self.delayed.remove((due, token, nodes))
            self.spawn(token, nodes)
        self._stop_as_requested()
        starting = [agent for agent in self.agents if agent.state is AgentState.STARTING]
        for agent in starting:
            agent.claim()
        quiet = self.quiet_until is not None and now < self.quiet_until
        if starting or quiet or self.stalled or self.missed or len(self.working) + self._finished < self.plan.min_nodes:
            return
        self.quiet_until = None
        if {*self.members} - {agent for agent in self.members if agent.exit_record} != {*self.working}:
            self._form_again()
        elif self.working:
            self._advance()

    def be_quiet(self, seconds: float) -> None:
        """Stay healthy but report nothing for this long."""
        self.quiet_until = self._clock.now() + timedelta(seconds=seconds)

    def miss(self, replica: int) -> None:
        """The other agents lose this replica, report that, and wait for it."""
        self.missed.add(replica)
        for agent in self.working:
            if agent.replica != replica:
                agent.journal(EventKind.PEER_LOST, self.generation, replicas=[replica])

    def restart_in_place(self) -> None:
        """The agents restart after a worker's failure, if their policy allows it."""
        if (
            self.formed
            and self.working
            and self.restarts < self.plan.policy.max_restarts
            and not (self.stalled or self.missed)
        ):
            self.restarts += 1
            self._begin_generation(EventKind.RESTARTED_IN_PLACE)

    def succeed(self) -> None:
        for agent in self.working:
            agent.exit(Outcome.SUCCEEDED, generation=self.generation)

    @property
    def at_work(self) -> bool:
        """Whether any process that holds the claim and that the cluster reaches runs."""
        return not self.cut_off and any(agent.claimed and (agent.running or agent.orphans) for agent in self.agents)

    def leave_queue_for_good(self) -> None:
        self.ended_in_queue, self.queued = self.queued is not None, None

    def end_all(self) -> None:
        """Kill every process of it that can be reached."""
        for agent in [] if self.cut_off else self.agents:
            if agent.running:
                agent.die(orphans=False)
            agent.orphans = False

    def sight(self, hidden: frozenset[int]) -> Sighting:
        """The true state, except for hidden replicas."""
        key = self.plan.key
        if self.queued is not None:
            return Sighting(key=key, presence=Presence.PENDING, evidence=self.queued)
        if not self.ended_in_queue and not any(
            agent.running or agent.orphans or agent.claimed for agent in self.agents
        ):
            return Sighting(key=key, presence=Presence.ABSENT, evidence="nobody claimed the attempt")
        replicas = tuple(self._sight_replica(replica, hidden) for replica in range(self.plan.max_nodes))
        seen = {replica.liveness for replica in replicas}
        gone = Presence.UNKNOWN if Liveness.UNKNOWN in seen else Presence.GONE
        presence = Presence.RUNNING if Liveness.ALIVE in seen else gone
        cause = self.cause if presence is Presence.GONE else None
        return Sighting(
            key=key, presence=presence, evidence=f"{key} is {presence.value}", replicas=replicas, cause=cause
        )

    def _sight_replica(self, replica: int, hidden: frozenset[int]) -> ReplicaSighting:
        mine = [agent for agent in self.agents if agent.replica == replica]
        running = any(agent.running for agent in mine) and not self.cut_off
        liveness = Liveness.ALIVE if running else Liveness.DEAD
        unreachable = running and replica in self.missed
        if replica in hidden or unreachable:
            liveness = Liveness.UNKNOWN
        leftovers = liveness is Liveness.DEAD and any(agent.orphans for agent in mine) and not self.cut_off
        evidence = f"replica {replica} is {liveness.value}"
        node = next((agent.node for agent in reversed(mine) if agent.claimed), None)
        return ReplicaSighting(
            replica=replica,
            liveness=liveness,
            evidence=evidence,
            leftovers=leftovers,
            node=node,
            node_unreachable=unreachable,
        )

    def _stop_as_requested(self) -> None:
        """Agents that are asked to stop save a snapshot and end."""
        stopping = [agent for agent in self.working if agent.read_desired()]
        if stopping and self.training and self.step > self.saved and not (self.stalled or self.missed):
            self._save()
            self._rename()
        for agent in stopping:
            agent.stop_as_requested(self.generation)

    def _form_again(self) -> None:
        """Form the group again after its members have changed."""
        change = None
        if self.formed:
            before, now = len(self.members), len(self.working)
            change = EventKind.GROUP_SHRUNK if now < before else EventKind.RESTARTED_IN_PLACE
            change = EventKind.GROUP_GREW if now > before else change
        elif self.stall is not None and self.stall.phase is Phase.START:
            self.stalled = self.stall
            return
        self._begin_generation(change)

    def _begin_generation(self, change: EventKind | None) -> None:
        self.generation += 1
        self.members, self.phase, self.checked = self.working, Phase.START, None
        for agent in self.members:
            if change is not None:
                agent.journal(change, self.generation)
            agent.journal(EventKind.GENERATION_STARTED, self.generation, world_size=len(self.members))

    def _advance(self) -> None:
        """Do what a healthy group does next. Every member reports it."""
        if self.stale:
            return
        if self.phase is Phase.START:
            self._enter(Phase.RESTORE, None)
        elif self.phase is Phase.RESTORE:
            self._restore()
        elif self.phase is Phase.SNAPSHOT:
            self._rename()
            self._enter(Phase.STEP, self.step)
        elif self.step - self.saved >= _STEPS_PER_SNAPSHOT or self._snapshot_requested():
            self.saves_on_request = max(agent.desired.snapshot for agent in self.members)
            self._enter(Phase.SNAPSHOT, self.step)
            self._save()
        else:
            self.step += 1
            self._enter(Phase.STEP, self.step)

    def _snapshot_requested(self) -> bool:
        requested = max((agent.desired.snapshot for agent in self.members), default=0)
        return requested > self.saves_on_request and self.step > self.saved

    def _enter(self, phase: Phase, step: int | None) -> None:
        self.phase = phase
        if self.stall is not None and self.stall.phase is phase and step != 0:
            self.stalled = self.stall
        for rank, agent in enumerate(self.members):
            if not agent.running:
                continue
            culprit = self.stalled is not None and rank == self.stalled.culprit % len(self.members)
            waits = self.stalled is not None and self.stalled.reported and not culprit
            if not (culprit and self.stalled and self.stalled.reported):
                agent.tell(
                    Phase.WAITING if waits else phase,
                    step,
                    rank=rank,
                    generation=self.generation,
                    world_size=len(self.members),
                )

    def _restore(self) -> None:
        environment = self.plan.shared_environment
        try:
            restored = self.lineage.begin(
                Term(self.plan.key.number, self.generation),
                retry=int(environment[env.RETRY]),
                restore_from=environment.get(env.RESTORE_FROM),
            )
        except StaleTerm:
            self.stale = True
            return
        self.step = self.saved = 0 if restored is None else restored.step
        if restored is not None:
            self._journal(EventKind.RESTORED, restored)
        self._enter(Phase.STEP, self.step or None)

    def _save(self) -> None:
        """Write a snapshot and check whether it may be committed. It is not renamed yet."""
        term = Term(self.plan.key.number, self.generation)
        with suppress(StaleTerm):
            self.lineage.check(term)
            self.checked = SnapshotName(self.step, term)

    def _rename(self) -> None:
        if self.checked is not None:
            self.lineage.commit(self.checked)
            self.saved = self.checked.step
            self._journal(EventKind.SNAPSHOT_COMMITTED, self.checked)
        self.checked = None

    def _journal(self, kind: EventKind, name: SnapshotName) -> None:
        if self.members and self.members[0].running:
            self.members[0].journal(kind, self.generation, name=str(name), step=name.step)
