"""torch's elastic agent with a memory: it numbers generations, explains deaths, and restarts only what can recover."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs

from trainer.contract import env, layout
from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure, FailureKind, is_collateral, is_echo
from trainer.elastic.chaos import Worker
from trainer.elastic.devices import Devices
from trainer.elastic.ending import end_workers
from trainer.elastic.errands import Errands, Group
from trainer.elastic.files import say
from trainer.elastic.fitness import Unfit, await_fitness
from trainer.elastic.formation import Formation, name_ranks
from trainer.elastic.history import History
from trainer.elastic.nursery import ForkedProcess, Nursery
from trainer.elastic.oom import count_oom_kills, read_oom_kills
from trainer.elastic.postmortem import Death, Finding, find_failure, first_cause, read_steps
from trainer.elastic.record import Record
from trainer.elastic.rendezvous import (
    agree_generation,
    find_clock_ahead,
    is_broken,
    known_generations,
    open_workers_store,
)
from trainer.elastic.surroundings import surroundings
from trainer.elastic.watch import Stuck, Watch
from trainer.elastic.workers import processes_of, workers_from

# A victim of a peer's death can be gone before the peer: so long we wait for the cause to show itself.
_CAUSE_GRACE_S = 0.3
_AT_ONCE_S = 1e-6  # torch wants a pause between its looks; ours ends by itself when a worker does


class Agent(LocalElasticAgent):
    """Outside a job (`record` is None) it decides as torchrun does and journals nothing."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        logs_specs: LogsSpecs,
        start_method: str,
        log_line_prefix_template: str | None,
        nursery: Nursery,
        stop_timeout_s: float,
        min_nodes: int,
        max_nodes: int,
        record: Record | None,
        on_started: Callable[[], None],
    ) -> None:
        self._look_every_s, spec.monitor_interval = spec.monitor_interval, _AT_ONCE_S
        super().__init__(
            spec,
            logs_specs,
            start_method=start_method,
            log_line_prefix_template=log_line_prefix_template,
            shutdown_timeout=math.ceil(stop_timeout_s),
        )
        self.generation = 0
        self.history = History(record, max_restarts=spec.max_restarts, min_nodes=min_nodes)
        self._record = record
        self._errands = None if record is None else Errands(record)
        self._watch: Watch | None = None
        if record is not None and record.policy is not None:
            self._watch = Watch(record.incarnation_dir / layout.PROGRESS, record.policy)
        self._nursery = nursery
        self._devices = Devices()
        self._workers_store: object = None  # of this generation, where this agent holds it
        self._stop_timeout_s = stop_timeout_s
        self._on_started = on_started
        self._is_alone = min_nodes == max_nodes == 1
        self._oom_kills: int | None = None  # so far, when the workers were started

    @property
    def succeeded(self) -> bool:
        return self._worker_group.state is WorkerState.SUCCEEDED

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self._record is not None:  # before the group forms: the others must not wait for a node that cannot start
            self._await_fitness(self._record)
        if not self._is_alone or worker_group.store is None:  # whoever is alone knows the group after its first round
            super()._rendezvous(worker_group)
        known = {self.generation} if self._record is None else {self.generation, *known_generations(self._record)}
        handler = worker_group.spec.rdzv_handler
        self.generation = agree_generation(handler, worker_group, self._failure_restarts, known)
        ahead = find_clock_ahead(handler, datetime.now(timezone.utc))
        if ahead is not None and self._record is not None:
            self._record.journal(EventKind.CLOCKS_DIFFER, ahead, self.generation)
        if handler.get_backend() != "static":  # there the user has chosen the port
            self._workers_store = open_workers_store(worker_group, self.generation)

    def _await_fitness(self, record: Record) -> None:
        sick = self._devices.find_sick(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if sick is not None:
            raise Unfit(Failure(kind=FailureKind.NODE, message=sick))
        waited = await_fitness(record.incarnation_dir)
        if waited is not None:
            obstacle, seconds = waited
            sentence = f"the next start waited {seconds:.1f} s: {obstacle}"
            record.journal(EventKind.NODE_WAITED, sentence, self.generation, seconds=round(seconds, 3))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        environ = {env.GENERATION: str(self.generation)}
        if worker_group.spec.rdzv_handler.get_backend() != "static":
            environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
        if self._record is not None:
            environ |= surroundings(self._record, self.generation, os.environ)
            # The trace of this generation for `known_generations`, should all end before a worker leaves its own.
            (self._record.incarnation_dir / f"g{self.generation}").mkdir(exist_ok=True)
        self._oom_kills = read_oom_kills()
        with workers_from(self._nursery, environ):
            ids: dict[int, Any] = super()._start_workers(worker_group)
        self._on_started()
        if self._watch is not None:
            self._watch.begin(self.generation, (each.global_rank for each in worker_group.workers), time.monotonic())
        self._tell_start(worker_group)
        return ids

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self.history.notice()
        super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._nursery.listen(self._look_every_s)
        self._run_errands(worker_group)
        deaths = self._deaths(worker_group)
        stuck = [] if deaths or self._watch is None else self._watch.look(time.monotonic())
        if deaths:
            self.history.notice()
            self._handle(deaths, worker_group)
        elif stuck:
            self.history.notice()
            self._end_hang(stuck, worker_group)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED and not (deaths or stuck):
            # One died between our look and torch's, which has stopped the others by now.
            self.history.notice()
            self._handle([death for death in self._deaths(worker_group) if death.rank in result.failures], worker_group)
        elif result.state is WorkerState.HEALTHY and is_broken(worker_group.spec.rdzv_handler, worker_group):
            self.history.notice()
            self._end_survivors()
            self._restart_workers(worker_group)
        return result

    def _run_errands(self, worker_group: WorkerGroup) -> None:
        if self._errands is None:
            return
        running = {rank: process for rank, process in self._processes().items() if process.returncode is None}
        workers = {
            worker_group.workers[local_rank].global_rank: Worker(pid=process.pid, folder=folder)
            for local_rank, process in running.items()
            if (folder := self._folder(local_rank)) is not None
        }
        size = worker_group.workers[0].world_size
        self._errands.run(Group(generation=self.generation, world_size=size, workers=workers))

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        # torch passes its own 30 s on restarts, whatever --shutdown-timeout says: a hung worker would cost them all.
        # And it hands on the signal that this agent got; workers know SIGTERM.
        self._end_workers(self._stop_timeout_s)
        super()._shutdown(death_sig, timeout=self._shutdown_timeout)

    def _end_survivors(self, *, hang: bool = False) -> None:
        """Another one's failure leaves them nothing to finish: SIGTERM, and SIGKILL once their stacks are saved."""
        self._end_workers(0.0, hang=hang)

    def _end_workers(self, patience_s: float, *, hang: bool = False) -> None:
        processes, folder_of = self._processes(), self._folder
        saved = end_workers(processes, patience_s=patience_s, folder_of=folder_of, hang=hang)
        held_by = self._devices.await_release(process.pid for process in processes.values())
        if held_by:
            say(f"the dead processes {held_by} still hold memory of a GPU")
        if saved and self._record is not None:
            ranks = sorted(self._worker_group.workers[local_rank].global_rank for local_rank in saved)
            sentence = f"stacks of {name_ranks(ranks)} saved before SIGKILL: {layout.STACKS} in the worker's folder"
            self._record.journal(EventKind.STACKS_SAVED, sentence, self.generation, ranks=ranks)

    @property
    def _failure_restarts(self) -> int:
        return self._worker_group.spec.max_restarts - self._remaining_restarts

    def _deaths(self, worker_group: WorkerGroup) -> list[Death]:
        codes = {rank: process.poll() for rank, process in self._processes().items()}
        return [
            Death(
                rank=worker_group.workers[local_rank].global_rank,
                local_rank=local_rank,
                exit_code=code,
                folder=self._folder(local_rank),
            )
            for local_rank, code in codes.items()
            if code
        ]

    def _handle(self, deaths: list[Death], worker_group: WorkerGroup) -> None:
        """Explain the deaths, decide about a restart, stop the other workers."""
        if not deaths:
            return
        steps = {} if self._record is None else read_steps(self._record.incarnation_dir / layout.PROGRESS)
        failure = first_cause(self._explain(deaths, worker_group, steps))
        self._judge(failure, worker_group, max(steps.values(), default=None))
        self._end_survivors()

    def _end_hang(self, stuck: list[Stuck], worker_group: WorkerGroup) -> None:
        """Save where every worker stands, decide about a restart, end them all: a group with one that hangs is lost."""
        worst = stuck[0]
        failure = Failure(kind=FailureKind.HANG, message=worst.sentence, rank=worst.rank, step=worst.step)
        self._judge(failure, worker_group, worst.step, silent_s=worst.silent_s)
        self._end_survivors(hang=True)

    def _explain(self, deaths: list[Death], worker_group: WorkerGroup, steps: dict[int, int]) -> list[Finding]:
        policy = None if self._record is None else self._record.policy
        patterns = () if policy is None else policy.patterns
        deadline = time.monotonic() + _CAUSE_GRACE_S
        while True:
            findings = [
                find_failure(death, steps, patterns=patterns, oom_kills=count_oom_kills(self._oom_kills))
                for death in deaths
            ]
            everyone = len(deaths) == len(worker_group.workers)
            has_cause = any(not (is_collateral(f.failure) or is_echo(f.failure)) for f in findings)
            if everyone or has_cause or time.monotonic() > deadline:
                return findings
            time.sleep(0.02)
            deaths = self._deaths(worker_group)

    def _judge(
        self, failure: Failure, worker_group: WorkerGroup, step: int | None, *, silent_s: float | None = None
    ) -> None:
        ranks, nodes = [worker.global_rank for worker in worker_group.workers], worker_group.group_world_size or 0
        restart = self.history.judge(
            failure, ranks, generation=self.generation, step=step, nodes=nodes, silent_s=silent_s
        )
        if restart is not None:
            self._let_torch(restart, worker_group.spec)

    def _let_torch(self, restart: bool, spec: WorkerSpec) -> None:
        """Make torch's counters obey. Their difference is its count of all restarts, which never goes down."""
        if not restart:
            self._remaining_restarts = 0  # as torch itself does to end a group that shall not come back
        elif self._remaining_restarts < 1:
            self._remaining_restarts += 1
            spec.max_restarts += 1

    def _tell_start(self, worker_group: WorkerGroup) -> None:
        ranks = {local_rank: worker.global_rank for local_rank, worker in enumerate(worker_group.workers)}
        pids = {} if self._pcontext is None else self._pcontext.pids()
        fresh = {ranks[local_rank]: each.because for local_rank, each in self._processes().items() if each.because}
        for rank, because in fresh.items():
            say(f"rank {rank} is a fresh process, not a fork: {because}")
        self.history.start(
            Formation(nodes=worker_group.group_world_size or 1, world_size=worker_group.workers[0].world_size),
            generation=self.generation,
            pids={ranks[local_rank]: pid for local_rank, pid in pids.items()},
            fresh=fresh,
            spares=[ranks[local_rank] for local_rank, each in self._processes().items() if each.was_spare],
            costs={
                "imported_in_s": round(self._nursery.imported_s, 3),
                "fork_server_rss_bytes": self._nursery.rss_bytes,
                "spare_bytes": self._nursery.spare_bytes,
            },
        )

    def _folder(self, local_rank: int) -> Path | None:
        if self._record is None:
            return None
        return layout.worker_dir(self._record.incarnation_dir, self.generation, local_rank)

    def _processes(self) -> dict[int, ForkedProcess]:
        return processes_of(self._pcontext)
