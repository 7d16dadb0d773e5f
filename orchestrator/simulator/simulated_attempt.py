"""The life of a simulated attempt: it is placed, loads, forms a group, trains, and ends in one of many ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.accounting.restarts import Source
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.observation import ReplicaSighting, Sighting
from orchestrator.ports.journals import JournalBatch
from orchestrator.simulator import sightings
from orchestrator.simulator.agent_log import AgentLog
from orchestrator.simulator.simulated_job import SimulatedJob
from orchestrator.simulator.training_run import Run, Split
from orchestrator.simulator.virtual_clock import SECOND, VirtualClock, us
from orchestrator.simulator.workload import FAILS, HEARTBEAT_S
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind, ExitRecord, JournalEvent, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.progress import Phase, Progress
from trainer.contract.restart_policy import RestartSituation, Setback, decide_restart

_PENDING_SHARE = 10  # agents start after 1/10 of a restart
_AGENT_STOP_US = 5 * SECOND  # until an agent kills workers that ignore a stop
_REPORT_US = us(HEARTBEAT_S / 4)  # between two reports of a training group


class Stage(StrEnum):
    WAITING = "waiting"  # for nodes
    PENDING = "pending"  # it has nodes, but nothing runs yet
    LOADING = "loading"  # agents run, but workers do not train yet
    TRAINING = "training"
    HUNG = "hung"
    CUT_OFF = "cut off"  # its last node is unreachable, and the others wait for it
    STOPPING = "stopping"  # it takes its last snapshot
    GONE = "gone"
    VANISHED = "vanished"  # the cluster accepted it but no longer knows it


class SimulatedAttempt:
    """The true state of one attempt.

    The attempt calls `changed` when an observation would differ, and `release` to return its nodes.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        job: SimulatedJob,
        clock: VirtualClock,
        *,
        changed: Callable[[], None],
        release: Callable[[Sequence[str]], None],
    ) -> None:
        self.plan = plan
        self.job = job
        self.stage = Stage.WAITING
        self.nodes: Sequence[str] = ()
        self.deaf = False  # it ignores a request to stop
        self.never_forms = False
        self._clock = clock
        self._changed = changed
        self._release = release
        self._log = AgentLog(plan.key)
        self._dead: set[int] = set()
        self._generation = 0
        self._run: Run | None = None
        self._setbacks: list[Setback] = []
        self._loaded_us: int | None = None
        self._reported_us = 0
        self._epoch = 0  # events scheduled in an earlier epoch do not happen
        self._sighting: Sighting | None = None
        self._replicas: tuple[ReplicaSighting, ...] | None = None  # cached, because there may be thousands

    @property
    def runs(self) -> bool:
        return self.stage in (Stage.LOADING, Stage.TRAINING, Stage.HUNG, Stage.CUT_OFF, Stage.STOPPING)

    @property
    def trains(self) -> bool:
        return self._run is not None and self.stage is Stage.TRAINING

    @property
    def began(self) -> bool:
        """Whether an agent has claimed it."""
        return self._loaded_us is not None

    @property
    def over(self) -> bool:
        return self.stage in (Stage.GONE, Stage.VANISHED)

    # Its start

    def place(self, nodes: Sequence[str]) -> None:
        self.nodes = nodes
        self._enter(Stage.PENDING)
        self._next(self._restart_us // _PENDING_SHARE, self._load)

    def _load(self) -> None:
        self._log_start()
        self._enter(Stage.LOADING)
        self._loaded_us = self._clock.now_us
        restart_us = self._restart_us
        if not self.never_forms:
            self._next(restart_us - restart_us // _PENDING_SHARE, self._form)

    def _form(self) -> None:
        self._generation += 1
        self._log_event(EventKind.GENERATION_STARTED, self._generation, world_size=self._devices)
        if self.job.restored:
            self._log_event(EventKind.RESTORED, self._generation, name="its newest snapshot")
        if self._generation > 1 or self.plan.key.number > 1:
            self.job.sources[self.job.source.value] += 1
        self._enter(Stage.TRAINING)
        self._train()

    def _train(self) -> None:
        job, now_us = self.job, self._clock.now_us
        job.device_time.enter(now_us, Bin.PRODUCTIVE)
        needed_us = -(-(job.work - job.restored) // self._devices)
        self._run = run = Run(now_us, self._devices, job.restored, needed_us, job.cadence, job.unkept_us)
        self._report(Phase.STEP)
        self._next(run.ends_us - now_us, self._finish)
        fails = job.fails_at is not None and FAILS in self.plan.shared_environment
        fails_us = run.reaches_us(job.fails_at) if fails and job.fails_at is not None else None
        if fails_us is not None:
            self._next(fails_us - now_us, self._fail)

    # Its end

    def _finish(self) -> None:
        self._settle(Bin.IDLE, keeps=True)
        alive = [replica for replica in range(self.plan.max_nodes) if replica not in self._dead]
        self._log_exit(Outcome.SUCCEEDED, alive)
        self._end("its workers have finished")

    def _fail(self) -> None:
        message = "ValueError: the loss is computed from a batch without samples"
        self.fail_worker(Failure(kind=FailureKind.APPLICATION, message=message, rank=0, exit_code=1, step=self._step()))

    def fail_worker(self, failure: Failure) -> None:
        """Let a worker fail. The agents' real restart policy decides whether they restart in place."""
        if self.stage not in (Stage.LOADING, Stage.TRAINING):
            return
        self.job.faults["worker"] += 1
        now_us, step = self._clock.now_us, self._step()
        self._report(Phase.STEP)
        self._settle(Bin.RECOVERING, source=self._find_source())
        self._setbacks.append(Setback(failure=failure, step=step, ran_s=(now_us - (self._loaded_us or 0)) / SECOND))
        policy = self.plan.policy
        situation = RestartSituation(
            setbacks=self._setbacks, max_restarts=policy.max_restarts, refund_after_s=policy.refund_after_s
        )
        decision = decide_restart(situation)
        if decision.restart:
            self.job.restarts_in_place += 1
            self._form_again(EventKind.RESTARTED_IN_PLACE)
        else:
            self.job.lose_memory()
            self._log_exit(Outcome.FAILED, range(1), replace(failure, repeated=decision.repeated))
            self._end("its agents gave up")

    def lose(self, replicas: Sequence[int], evidence: str) -> None:
        """Let the nodes of these replicas fail. The group ends if too few are left."""
        if self.over:
            return
        self.job.faults["node"] += 1
        self._dead.update(replicas)
        self._replicas = None
        alive = self.plan.max_nodes - len(self._dead)
        continues = self.runs and self.stage is not Stage.STOPPING and alive >= self.plan.min_nodes
        self._settle(Bin.RECOVERING, source=self._find_source(replicas))
        if continues:
            self._form_again(EventKind.GROUP_SHRUNK)
        else:
            self._end(evidence, dead=replicas)

    def hang(self, *, deaf: bool) -> None:
        """Let all ranks wait for the first rank of the second node."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["hang"] += 1
        self.deaf = deaf
        self._report(Phase.WAITING)
        self._report(Phase.STEP, rank=self.plan.workers_per_node, replica=1)
        self._settle(Bin.STALLED)
        self._enter(Stage.HUNG)

    def cut_off(self) -> None:
        """Make the last node unreachable. The scheduler and the other agents report that."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["node"] += 1
        self._report(Phase.STEP)
        self._log_event(EventKind.PEER_LOST, self._generation, replicas=[self.plan.max_nodes - 1])
        self._settle(Bin.RECOVERING)
        self._enter(Stage.CUT_OFF)

    def orphan(self) -> None:
        """Kill the agents. Their workers keep running."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["agent"] += 1
        self._report(Phase.STEP)
        self._settle(Bin.RECOVERING)
        self._see_gone("its agent is gone", (0,), leftovers=True)

    def preempt(self, notice_us: int, why: str) -> None:
        """Preempt the attempt after a notice."""
        if self.stage not in (Stage.LOADING, Stage.TRAINING):
            return
        self.job.faults["preempted"] += 1
        cause = Failure(kind=FailureKind.PREEMPTED, message=why)
        in_time = self._run is not None and self.job.cadence.stall_us <= notice_us
        self._stop(Outcome.PREEMPTED, keeps=in_time, cause=cause)

    def vanish(self) -> None:
        self.job.faults["vanished"] += 1
        self._enter(Stage.VANISHED)

    def stop(self) -> None:
        """Stop at the service's request. Idempotent."""
        if self.over or self.stage is Stage.STOPPING or self.deaf:
            return
        if self.runs:
            self._stop(Outcome.CANCELLED, keeps=self._run is not None)
        else:
            self._settle(Bin.RECOVERING)
            self._end("was taken out of the cluster's queue")

    def kill(self) -> None:
        """Kill the attempt and its leftovers."""
        if self.stage is Stage.VANISHED or (self.stage is Stage.GONE and not self.sight().leftovers):
            return
        if self.stage is not Stage.GONE:
            self._settle(Bin.RECOVERING)
        self._end("was killed")

    def snapshot(self) -> None:
        """Take a snapshot now, at the owner's request."""
        if self.stage is not Stage.TRAINING or self._run is None:
            return
        self._settle(Bin.SNAPSHOT_STALL, keeps=True)
        self._epoch += 1
        self._next(self.job.cadence.stall_us, self._train)

    def close(self) -> None:
        """End with the simulation. Work that neither a snapshot nor a copy in memory has kept is lost."""
        self._settle(Bin.IDLE, source=self._find_source())

    # Its observation

    def sight(self) -> Sighting:
        if self._sighting is None:
            self._sighting = self._look()
        return self._sighting

    def read_log(self) -> list[JournalBatch]:
        """Return what the agents reported since the last call."""
        if self.stage is Stage.TRAINING and self._clock.now_us - self._reported_us >= _REPORT_US:
            self._report(Phase.STEP)
        return self._log.read()

    def _look(self) -> Sighting:
        key = self.plan.key
        match self.stage:
            case Stage.VANISHED:
                return sightings.absent(key)
            case Stage.WAITING:
                return sightings.pending(key, f"waits for {self.plan.max_nodes} nodes")
            case Stage.PENDING:
                return sightings.pending(key, "is being started on its nodes")
            case Stage.CUT_OFF:
                return sightings.last_node_unreachable(key, self._look_at_replicas())
            case _:
                return sightings.running(key, self._look_at_replicas())

    def _look_at_replicas(self) -> tuple[ReplicaSighting, ...]:
        if self._replicas is None:
            self._replicas = sightings.replicas_on(self.nodes, self._dead)
        return self._replicas

    def _see_gone(
        self, evidence: str, dead: Sequence[int], *, cause: Failure | None = None, leftovers: bool = False
    ) -> None:
        """Show the attempt as gone, with the replicas whose end the cluster knows."""
        self._enter(Stage.GONE)
        nodes: Sequence[str | None] = self.nodes or [None] * (max(dead) + 1)
        replicas = tuple(sightings.dead_replica(each, nodes[each], evidence, leftovers=leftovers) for each in dead)
        self._sighting = sightings.gone(self.plan.key, evidence, replicas, cause)

    # From one stage to the next

    @property
    def _devices(self) -> int:
        return (self.plan.max_nodes - len(self._dead)) * self.plan.workers_per_node

    def _stop(self, outcome: Outcome, *, keeps: bool, cause: Failure | None = None) -> None:
        """Stop, after a last snapshot if `keeps`."""
        stopped_us = self._clock.now_us
        pause_us = self.job.cadence.stall_us if keeps else _AGENT_STOP_US if self.stage is Stage.HUNG else 0

        def leave() -> None:
            if keeps:
                self._settle(Bin.SNAPSHOT_STALL, keeps=True, at_us=stopped_us)
            self._settle(Bin.RECOVERING)
            self._log_exit(outcome, range(1))
            self._end("stopped on request", cause=cause)

        self._report(Phase.SNAPSHOT if keeps else Phase.STEP)
        self._enter(Stage.STOPPING)
        self._next(pause_us, leave)

    def _form_again(self, how: EventKind) -> None:
        self._log_event(how, self._generation + 1)
        self._enter(Stage.LOADING)
        self._loaded_us = self._clock.now_us
        self._next(self.job.restart_after_us(self.job.restart_in_place_us), self._form)

    @property
    def _restart_us(self) -> int:
        """The time from the submission to the first step."""
        return self.job.restart_after_us(self.job.restart_us)

    def _find_source(self, lost: Sequence[int] = ()) -> Source:
        """Find where the state is after the loss of these replicas, or else of a worker.

        Call it before the run is settled.
        """
        copies, run = self.job.copies, self._run
        if copies is None:
            return Source.DISK
        parts = None if run is None else run.split(self._clock.now_us)
        if parts is not None and parts.copied_us:
            copies.renew()
        if lost:
            copies.lose_nodes(lost, self.nodes)
        elif copies.tier.survivors and parts is not None and parts.work_us >= self.job.step_us:
            copies.renew()  # the survivors hand over the whole state
            return Source.SURVIVOR
        return Source.MEMORY if copies.whole else Source.DISK

    def _settle(
        self, following: Bin, *, keeps: bool = False, at_us: int | None = None, source: Source = Source.DISK
    ) -> None:
        """Account for the time since the last call, and end the current run if there is one.

        `source` is where the next generation finds its state.
        """
        at_us = self._clock.now_us if at_us is None else at_us
        run, self._run = self._run, None
        if run is None:
            self.job.device_time.enter(at_us, following)
            self._continue_from(source)
            return
        parts = run.split(at_us).kept() if keeps else run.split(at_us)
        if keeps or parts.kept_us:
            self.job.kept = run.base + parts.kept_us * run.devices
        if parts.kept_us:
            self._report_snapshot(at_us if keeps else run.kept_at_us(at_us))
        held_us = self._held_us(parts, source)
        self.job.restored = run.base + held_us * run.devices
        self.job.device_time.add_training(at_us, parts.with_kept(held_us), run.devices, following)
        self._continue_from(source)

    def _held_us(self, parts: Split, source: Source) -> int:
        """Return the work of a run that is not lost."""
        match source:
            case Source.SURVIVOR:
                return max(parts.kept_us, parts.work_us // self.job.step_us * self.job.step_us)
            case Source.MEMORY:
                return max(parts.kept_us, parts.copied_us)
            case _:
                return parts.kept_us

    def _continue_from(self, source: Source) -> None:
        if source is Source.DISK:
            self.job.lose_memory()
        self.job.source = source

    def _end(self, evidence: str, *, dead: Sequence[int] = (0,), cause: Failure | None = None) -> None:
        self._see_gone(evidence, dead, cause=cause)
        nodes, self.nodes = self.nodes, ()
        self._release(nodes)

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._epoch += 1
        self._sighting = None
        self._changed()

    def _next(self, pause_us: int, event: Callable[[], None]) -> None:
        """Schedule an event that is dropped if the stage changes before."""
        epoch = self._epoch

        def happen() -> None:
            if self._epoch == epoch:
                event()
                self._changed()

        self._clock.after(pause_us, happen)

    # Its reports

    def _step(self) -> int:
        done = self.job.restored if self._run is None else self._run.done(self._clock.now_us)
        return done // (self.job.devices * self.job.step_us)

    def _report_snapshot(self, at_us: int) -> None:
        """Report the newest snapshot of a run. One report is enough: the service counts the training that is kept."""
        step = self.job.kept // (self.job.devices * self.job.step_us)
        self._log_event(EventKind.SNAPSHOT_COMMITTED, self._generation, at_us=at_us, step=step)

    def _log_event(self, kind: EventKind, generation: int, *, at_us: int | None = None, **evidence: object) -> None:
        at = self._clock.moment(self._clock.now_us if at_us is None else at_us)
        self._log.add_event(_journaled(kind, render_time(at), generation, evidence))

    def _log_start(self) -> None:
        """Let the agents report. The service looks for lost replicas only in an elastic group."""
        elastic = self.plan.min_nodes < self.plan.max_nodes
        replicas = range(self.plan.max_nodes if elastic else 1)
        self._log.add_event(_journaled(EventKind.AGENT_STARTED, self._now(), 0, {}), replicas=replicas)

    def _log_exit(self, outcome: Outcome, replicas: Sequence[int], failure: Failure | None = None) -> None:
        restarts = 0 if failure is None else len(self._setbacks) - 1
        record = ExitRecord(
            outcome=outcome, at=self._now(), generation=self._generation, restarts=restarts, failure=failure
        )
        self._log.add_exit(record, replicas=replicas)

    def _report(self, phase: Phase, *, rank: int = 0, replica: int = 0) -> None:
        self._reported_us = self._clock.now_us
        line = Progress(
            at=self._now(),
            rank=rank,
            local_rank=0,
            world_size=self._devices,
            generation=self._generation,
            pid=4711,
            phase=phase,
            step=self._step(),
            metrics={"step_s": self.job.step_us / SECOND},
        )
        self._log.add_progress(line, replica=replica)

    def _now(self) -> str:
        return render_time(self._clock.now())


def _journaled(kind: EventKind, at: str, generation: int, evidence: dict[str, object]) -> JournalEvent:
    return JournalEvent(at=at, kind=kind.value, sentence=kind.value, generation=generation, evidence=evidence)
