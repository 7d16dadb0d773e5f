"""torch's elastic agent with a memory: it numbers generations, explains deaths, and restarts only what can recover."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from trainer.contract import env, layout
from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure, is_collateral, render_failure
from trainer.contract.restart_policy import RestartSituation, Setback, decide_restart
from trainer.elastic.formation import Formation, describe_change, tell_change
from trainer.elastic.oom import count_oom_kills, read_oom_kills
from trainer.elastic.postmortem import Death, Finding, find_failure, first_cause, read_steps
from trainer.elastic.record import Record
from trainer.elastic.rendezvous import agree_generation, known_generations

# A victim of a peer's death can be gone before the peer: so long we wait for the cause to show itself.
_CAUSE_GRACE_S = 0.3


class Agent(LocalElasticAgent):
    """Outside a job (`record` is None) it decides as torchrun does and journals nothing."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        logs_specs: LogsSpecs,
        start_method: str,
        log_line_prefix_template: str | None,
        stop_timeout_s: float,
        min_nodes: int,
        record: Record | None,
        on_started: Callable[[], None],
    ) -> None:
        super().__init__(
            spec,
            logs_specs,
            start_method=start_method,
            log_line_prefix_template=log_line_prefix_template,
            shutdown_timeout=math.ceil(stop_timeout_s),
        )
        self.generation = 0
        self.restarts = 0  # in place after a failure
        self.setbacks: list[Setback] = []
        self.verdict = ""  # why the last failure was not followed by a restart
        self._record = record
        self._on_started = on_started
        self._min_nodes = min_nodes
        self._max_restarts = spec.max_restarts
        self._noticed_s: float | None = None  # monotonic: when the reason for the coming restart was seen
        self._started_s = 0.0
        self._healthy_since_s = 0.0  # monotonic: the first start, or the start after the last failure
        self._has_failed = False  # judged, and not started again yet
        self._formed: Formation | None = None
        self._oom_kills: int | None = None  # so far, when the workers were started

    @property
    def succeeded(self) -> bool:
        return self._worker_group.state is WorkerState.SUCCEEDED

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        known = {self.generation} if self._record is None else {self.generation, *known_generations(self._record)}
        self.generation = agree_generation(self._rdzv_handler, worker_group, self._failure_restarts, known)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # Workers inherit the agent's environment; torch offers no other door for variables of ours.
        os.environ[env.GENERATION] = str(self.generation)
        if self._record is not None:
            os.environ[env.REPLICA_DIR] = str(self._record.incarnation_dir)
            # The trace of this generation for `known_generations`, should all end before a worker leaves its own.
            (self._record.incarnation_dir / f"g{self.generation}").mkdir(exist_ok=True)
        self._oom_kills = read_oom_kills()
        ids: dict[int, Any] = super()._start_workers(worker_group)
        self._on_started()
        self._started_s = time.monotonic()
        self._journal_start(worker_group)
        return ids

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._noticed_s = self._noticed_s or time.monotonic()
        super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        deaths = self._deaths(worker_group)
        if deaths:
            self._noticed_s = time.monotonic()
            self._handle(deaths, worker_group)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED and not deaths:
            # One died between our look and torch's, which has stopped the others by now.
            self._noticed_s = time.monotonic()
            self._handle([death for death in self._deaths(worker_group) if death.rank in result.failures], worker_group)
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        # torch passes its own 30 s on restarts; a hung worker would cost them all, whatever --shutdown-timeout says.
        super()._shutdown(death_sig, timeout=self._shutdown_timeout)

    @property
    def _failure_restarts(self) -> int:
        return self._worker_group.spec.max_restarts - self._remaining_restarts

    def _deaths(self, worker_group: WorkerGroup) -> list[Death]:
        if not isinstance(self._pcontext, SubprocessContext):
            return []
        codes = {rank: handler.proc.poll() for rank, handler in self._pcontext.subprocess_handlers.items()}
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
        findings = self._explain(deaths, worker_group)
        self.failure = first_cause(findings)
        if self._record is not None:
            self._judge(self.failure, worker_group, self._record)
        if isinstance(self._pcontext, SubprocessContext):
            processes = [handler.proc for handler in self._pcontext.subprocess_handlers.values()]
            # One that finished earlier is left out: its number may belong to a stranger by now.
            groups = [process.pid for process in processes if process.poll() != 0]
            self._pcontext.close(signal.SIGTERM, timeout=self._shutdown_timeout)
            for group in groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)  # what a worker left in its session, data loaders above all

    def _explain(self, deaths: list[Death], worker_group: WorkerGroup) -> list[Finding]:
        steps = self._steps()
        policy = None if self._record is None else self._record.policy
        patterns = () if policy is None else policy.patterns
        deadline = time.monotonic() + _CAUSE_GRACE_S
        while True:
            findings = [
                find_failure(death, steps, patterns=patterns, oom_kills=count_oom_kills(self._oom_kills))
                for death in deaths
            ]
            everyone = len(deaths) == len(worker_group.workers)
            if everyone or not all(is_collateral(f.failure) for f in findings) or time.monotonic() > deadline:
                return findings
            time.sleep(0.02)
            deaths = self._deaths(worker_group)

    def _judge(self, failure: Failure, worker_group: WorkerGroup, record: Record) -> None:
        ran_s = time.monotonic() - self._healthy_since_s
        self.setbacks.append(Setback(failure=failure, step=max(self._steps().values(), default=None), ran_s=ran_s))
        self._has_failed = True
        decision = decide_restart(
            RestartSituation(
                setbacks=self.setbacks,
                max_restarts=self._max_restarts,
                refund_after_s=0.0 if record.policy is None else record.policy.refund_after_s,
                may_shrink=(worker_group.group_world_size or 0) > self._min_nodes,
            )
        )
        self.verdict = decision.sentence
        self.failure = replace(failure, repeated=decision.repeated)
        self._let_torch(decision.restart, worker_group.spec)
        collateral = sorted(worker.global_rank for worker in worker_group.workers if worker.global_rank != failure.rank)
        record.journal(
            EventKind.WORKER_FAILED,
            _sentence(failure, collateral),
            self.generation,
            **render_failure(failure),
            collateral_ranks=collateral,
            lost_a_peer=is_collateral(failure),
            decision=decision.sentence,
        )

    def _let_torch(self, restart: bool, spec: WorkerSpec) -> None:
        """Make torch's counters obey. Their difference is its count of all restarts, which never goes down."""
        if not restart:
            self._remaining_restarts = 0  # as torch itself does to end a group that shall not come back
        elif self._remaining_restarts < 1:
            self._remaining_restarts += 1
            spec.max_restarts += 1

    def _journal_start(self, worker_group: WorkerGroup) -> None:
        noticed_s, self._noticed_s = self._noticed_s, None
        before, now = self._formed, _formation(worker_group)
        self._formed = now
        change = EventKind.RESTARTED_IN_PLACE if before is None else describe_change(before, now)
        self.restarts += noticed_s is not None and change is EventKind.RESTARTED_IN_PLACE
        if self._has_failed and change is EventKind.GROUP_SHRUNK and is_collateral(self.setbacks[-1].failure):
            self.setbacks[-1] = replace(self.setbacks[-1], charged=False)
        elif self._has_failed or before is None:
            self._healthy_since_s = self._started_s
        self._has_failed = False
        if self._record is None:
            return
        if noticed_s is not None and before is not None:
            seconds = round(self._started_s - noticed_s, 4)
            sentence, evidence = tell_change(change, before, now, generation=self.generation, seconds=seconds)
            self._record.journal(change, sentence, self.generation, **evidence)
        size = now.world_size
        sentence = f"generation {self.generation} started with {size} worker{'s' if size != 1 else ''}"
        pids = {str(worker_group.workers[rank].global_rank): pid for rank, pid in self._pids().items()}
        self._record.journal(
            EventKind.GENERATION_STARTED, sentence, self.generation, world_size=size, number=self.generation, pids=pids
        )

    def _folder(self, local_rank: int) -> Path | None:
        if self._record is None:
            return None
        return layout.worker_dir(self._record.incarnation_dir, self.generation, local_rank)

    def _pids(self) -> dict[int, int]:
        return {} if self._pcontext is None else self._pcontext.pids()

    def _steps(self) -> dict[int, int]:
        return {} if self._record is None else read_steps(self._record.incarnation_dir / layout.PROGRESS)


def _formation(group: WorkerGroup) -> Formation:
    return Formation(nodes=group.group_world_size or 1, world_size=group.workers[0].world_size)


def _sentence(failure: Failure, collateral: list[int]) -> str:
    if not collateral:
        return f"rank {failure.rank}: {failure.message}"
    ranks = ", ".join(map(str, collateral[:8])) + (", ..." if len(collateral) > 8 else "")
    return f"rank {failure.rank}: {failure.message}; rank{'s' if len(collateral) > 1 else ''} {ranks} ended with it"
