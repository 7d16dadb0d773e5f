"""The life of a simulated attempt: it is placed, loads, forms, trains, and ends in many ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.observation import Sighting
from orchestrator.ports.journals import JournalBatch
from orchestrator.simulator.rehearsal.agenda import SECOND, Agenda
from orchestrator.simulator.rehearsal.books import Books
from orchestrator.simulator.rehearsal.goodput import Bin
from orchestrator.simulator.rehearsal.job import SimulatedJob
from orchestrator.simulator.rehearsal.look import Looks
from orchestrator.simulator.rehearsal.scenario import CRASHES
from orchestrator.simulator.rehearsal.training import Run
from trainer.contract.exit_record import EventKind, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.progress import Phase
from trainer.contract.restart_policy import RestartSituation, Setback, decide_restart

_PENDING_SHARE = 10  # of a restart, one part in so many passes before the agents run
_AGENT_STOP_US = 5 * SECOND  # in which an agent ends workers that do not obey


class Stage(StrEnum):
    WAITING = "waiting"  # for nodes
    PENDING = "pending"  # it has nodes, and nothing runs there yet
    LOADING = "loading"  # agents run, the workers do not train yet
    TRAINING = "training"
    HUNG = "hung"
    CUT_OFF = "cut off"  # its last node is out of reach, and the others wait for it
    STOPPING = "stopping"  # it was told to end, and writes its snapshot
    GONE = "gone"
    VANISHED = "vanished"  # the cluster took it and has never heard of it


class SimulatedAttempt:
    """What the cluster really has of one attempt. `changed` is called when a look at it would show another thing."""

    def __init__(
        self,
        plan: LaunchPlan,
        job: SimulatedJob,
        agenda: Agenda,
        *,
        changed: Callable[[], None],
        release: Callable[[Sequence[str]], None],
    ) -> None:
        self.plan = plan
        self.job = job
        self.stage = Stage.WAITING
        self.nodes: Sequence[str] = ()
        self.deaf = False  # it heeds no polite word
        self.never_forms = False
        self._agenda = agenda
        self._changed = changed
        self._release = release
        self._books = Books(plan.key)
        self._dead: set[int] = set()
        self._generation = 0
        self._run: Run | None = None
        self._setbacks: list[Setback] = []
        self._loaded_us: int | None = None
        self._told_us = 0
        self._epoch = 0  # what was to happen in an earlier one does not happen any more
        self._sighting: Sighting | None = None
        self._looks = Looks(plan.key, job.seen)

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

    # How it begins

    def place(self, nodes: Sequence[str]) -> None:
        self.nodes = nodes
        self._enter(Stage.PENDING)
        self._next(self.job.timing.restart_us // _PENDING_SHARE, self._load)

    def _load(self) -> None:
        self._books.journal(self._agenda.now_us, EventKind.AGENT_STARTED, 0)
        self._enter(Stage.LOADING)
        self._loaded_us = self._agenda.now_us
        restart_us = self.job.timing.restart_us
        if not self.never_forms:
            self._next(restart_us - restart_us // _PENDING_SHARE, self._form)

    def _form(self) -> None:
        self._generation += 1
        now_us, world_size = self._agenda.now_us, self._devices
        self._books.journal(now_us, EventKind.GENERATION_STARTED, self._generation, world_size=world_size)
        if self.job.kept:
            self._books.journal(now_us, EventKind.RESTORED, self._generation, name="its newest snapshot")
        self._enter(Stage.TRAINING)
        self._train()

    def _train(self) -> None:
        job, now_us = self.job, self._agenda.now_us
        job.ledger.enter(now_us, Bin.PRODUCTIVE)
        needed_us = -(-(job.work - job.kept) // self._devices)
        self._run = run = Run(now_us, self._devices, job.kept, needed_us, job.cadence)
        self._tell(Phase.STEP)
        self._next(run.ends_us - now_us, self._finish)
        crashes = job.crash_at is not None and CRASHES in self.plan.environments[0]
        crash_us = run.reaches_us(job.crash_at) if crashes and job.crash_at is not None else None
        if crash_us is not None:
            self._next(crash_us - now_us, self._crash)

    # How it ends

    def _finish(self) -> None:
        self._settle(Bin.IDLE, keeps=True)
        alive = [replica for replica in range(self.plan.max_nodes) if replica not in self._dead]
        self._books.leave(self._agenda.now_us, Outcome.SUCCEEDED, self._generation, alive)
        self._end("its workers are through")

    def _crash(self) -> None:
        step = self._step()
        message = "ValueError: the loss is computed from a batch without samples"
        failure = Failure(kind=FailureKind.APPLICATION, message=message, rank=0, exit_code=1, step=step)
        self.fail_worker(failure)

    def fail_worker(self, failure: Failure) -> None:
        """A worker ends; the agents' own policy says whether they start again in place."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["worker"] += 1
        now_us, step = self._agenda.now_us, self._step()
        self._tell(Phase.STEP)
        self._settle(Bin.RECOVERING)
        self._setbacks.append(Setback(failure=failure, step=step, ran_s=(now_us - (self._loaded_us or 0)) / SECOND))
        policy = self.plan.policy
        situation = RestartSituation(
            setbacks=self._setbacks, max_restarts=policy.max_restarts, refund_after_s=policy.refund_after_s
        )
        decision = decide_restart(situation)
        if decision.restart:
            self.job.in_place += 1
            self._form_again(EventKind.RESTARTED_IN_PLACE)
        else:
            failure = replace(failure, repeated=decision.repeated)
            self._books.leave(now_us, Outcome.FAILED, self._generation, range(1), failure, len(self._setbacks) - 1)
            self._end("its agents gave up")

    def lose(self, replicas: Sequence[int], evidence: str) -> None:
        """The machines of these replicas are gone, and with too many of them the whole group."""
        if self.over:
            return
        self.job.faults["node"] += 1
        was_running = self.runs
        self._dead.update(replicas)
        alive = self.plan.max_nodes - len(self._dead)
        if was_running and self.stage is not Stage.STOPPING and alive >= self.plan.min_nodes:
            self._settle(Bin.RECOVERING)
            self._form_again(EventKind.GROUP_SHRUNK)
            return
        self._settle(Bin.RECOVERING)
        self._end(evidence, dead=replicas)

    def hang(self, *, deaf: bool, slow_rank: int) -> None:
        """No rank makes a step any more. `slow_rank` waits for nobody, the others wait for it."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["hang"] += 1
        self.deaf = deaf
        self._tell(Phase.WAITING)
        per_node = self.plan.workers_per_node
        self._tell(Phase.STEP, rank=slow_rank, replica=slow_rank // per_node)
        self._settle(Bin.STALLED)
        self._enter(Stage.HUNG)

    def cut_off(self) -> None:
        """Neither the scheduler nor its peers reach the last node any more; both say so."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["node"] += 1
        self._tell(Phase.STEP)
        lost = self.plan.max_nodes - 1
        self._books.journal(self._agenda.now_us, EventKind.PEER_LOST, self._generation, replicas=[lost])
        self._settle(Bin.RECOVERING)
        self._enter(Stage.CUT_OFF)

    def orphan(self) -> None:
        """The agents die, their workers stay behind and train on for nobody."""
        if self.stage is not Stage.TRAINING:
            return
        self.job.faults["agent"] += 1
        self._tell(Phase.STEP)
        self._settle(Bin.RECOVERING)
        self._enter(Stage.GONE)
        self._sighting = self._looks.gone("its agent is gone", nodes=self.nodes, dead=(0,), leftovers=True)

    def preempt(self, notice_us: int, why: str) -> None:
        """The cluster wants the nodes back, and gives notice."""
        if self.stage not in (Stage.LOADING, Stage.TRAINING):
            return
        self.job.faults["preempted"] += 1
        cause = Failure(kind=FailureKind.PREEMPTED, message=why)
        in_time = self._run is not None and self.job.cadence.stall_us <= notice_us
        self._leave_politely(Outcome.PREEMPTED, keeps=in_time, cause=cause)

    def vanish(self) -> None:
        self.job.faults["vanished"] += 1
        self._enter(Stage.VANISHED)

    def stop(self) -> None:
        """The service's polite word, by whatever road; said again it changes nothing."""
        if self.over or self.stage is Stage.STOPPING or self.deaf:
            return
        if not self.runs:
            self._settle(Bin.RECOVERING)
            self._end("was taken out of the cluster's queue", dead=(0,))
            return
        self._leave_politely(Outcome.CANCELLED, keeps=self._run is not None)

    def kill(self) -> None:
        """By force; what was left of it ends too."""
        if self.stage is Stage.VANISHED or (self.stage is Stage.GONE and not self.sight().leftovers):
            return
        if self.stage is not Stage.GONE:
            self._settle(Bin.RECOVERING)
        self._end("was ended by force", dead=(0,))

    def snapshot(self) -> None:
        """Out of turn, because the owner requested it."""
        if self.stage is not Stage.TRAINING or self._run is None:
            return
        self._settle(Bin.SNAPSHOT_STALL, keeps=True)
        self._epoch += 1
        self._next(self.job.cadence.stall_us, self._train)

    # What is seen of it

    def sight(self) -> Sighting:
        if self._sighting is None:
            self._sighting = self._look()
        return self._sighting

    def _look(self) -> Sighting:
        match self.stage:
            case Stage.VANISHED:
                return self._looks.absent()
            case Stage.WAITING:
                return self._looks.pending(f"waits for {self.plan.max_nodes} nodes")
            case Stage.PENDING:
                return self._looks.pending("is being started on its nodes")
            case Stage.CUT_OFF:
                return self._looks.cut_off(self.nodes)
            case _:
                return self._looks.running(self.nodes, self._dead)

    def news(self) -> list[JournalBatch]:
        """What its agents have told since the last call."""
        if self.stage is Stage.TRAINING and self._agenda.now_us - self._told_us >= self.job.timing.tell_us:
            self._tell(Phase.STEP)
        return list(self._books.news())

    def close(self) -> None:
        """The rehearsal ends: what no snapshot has kept, nobody has."""
        self._settle(Bin.IDLE)

    @property
    def _devices(self) -> int:
        return (self.plan.max_nodes - len(self._dead)) * self.plan.workers_per_node

    def _leave_politely(self, outcome: Outcome, *, keeps: bool, cause: Failure | None = None) -> None:
        """With a last snapshot where there is something to keep: no more than one, and it takes its time."""
        stopped_us = self._agenda.now_us
        pause_us = self.job.cadence.stall_us if keeps else _AGENT_STOP_US if self.stage is Stage.HUNG else 0

        def leave() -> None:
            if keeps:
                self._settle(Bin.SNAPSHOT_STALL, keeps=True, at_us=stopped_us)
            self._settle(Bin.RECOVERING)
            self._books.leave(self._agenda.now_us, outcome, self._generation, range(1))
            self._end("ended as it was told", cause=cause)

        self._tell(Phase.SNAPSHOT if keeps else Phase.STEP)
        self._enter(Stage.STOPPING)
        self._next(pause_us, leave)

    def _form_again(self, how: EventKind) -> None:
        self._books.journal(self._agenda.now_us, how, self._generation + 1)
        self._enter(Stage.LOADING)
        self._loaded_us = self._agenda.now_us
        self._next(self.job.timing.in_place_us, self._form)

    def _settle(self, following: Bin, *, keeps: bool = False, at_us: int | None = None) -> None:
        """Book what has passed; a run that was on is over."""
        at_us = self._agenda.now_us if at_us is None else at_us
        run, self._run = self._run, None
        if run is None:
            self.job.ledger.enter(at_us, following)
            return
        parts = run.split(at_us).kept() if keeps else run.split(at_us)
        self.job.kept = run.base + parts.kept_us * run.devices
        self.job.ledger.book_training(at_us, parts, run.devices, following)

    def _end(self, evidence: str, *, dead: Sequence[int] = (), cause: Failure | None = None) -> None:
        self._enter(Stage.GONE)
        self._sighting = self._looks.gone(evidence, nodes=self.nodes, dead=dead or (0,), cause=cause)
        nodes, self.nodes = self.nodes, ()
        self._release(nodes)

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._epoch += 1
        self._sighting = None
        self._changed()

    def _next(self, pause_us: int, event: Callable[[], None]) -> None:
        """Unless something else comes in between."""
        epoch = self._epoch

        def happen() -> None:
            if self._epoch == epoch:
                event()
                self._changed()

        self._agenda.after(pause_us, happen)

    def _step(self) -> int:
        done = self.job.kept if self._run is None else self._run.done(self._agenda.now_us)
        return done // (self.job.devices * self.job.timing.step_us)

    def _tell(self, phase: Phase, *, rank: int = 0, replica: int = 0) -> None:
        timing, now_us = self.job.timing, self._agenda.now_us
        step_s = timing.step_us / SECOND
        self._told_us = now_us
        self._books.tell(
            now_us,
            phase,
            self._generation,
            step=self._step(),
            step_s=step_s,
            world_size=self._devices,
            rank=rank,
            replica=replica,
        )
