"""Build the agent from torchrun's flags and run it to its exit record. This part of `elasticrun` needs torch."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.agent import Agent
from trainer.elastic.agent_error import explain_exception
from trainer.elastic.copies.buddies import Buddies
from trainer.elastic.flags import Flags
from trainer.elastic.health.fitness import NodeUnfit
from trainer.elastic.keeper_line import KeeperLine
from trainer.elastic.memory_files import MemoryFiles
from trainer.elastic.records.files import say
from trainer.elastic.records.record import Record, build_exit_record
from trainer.elastic.rendezvous.endpoint import find_address
from trainer.elastic.rendezvous.epochs import Epochs
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.join import Rendezvous, SingleNodeRendezvous, StoreRendezvous
from trainer.elastic.rendezvous.links import Links
from trainer.elastic.rendezvous.observer import Observer
from trainer.elastic.rendezvous.options import parse_endpoint, parse_is_host, parse_timing
from trainer.elastic.rendezvous.round_document import Member
from trainer.elastic.rendezvous.succession import Endpoint, Succession
from trainer.elastic.stop import DEFAULT_SIGNALS, Stopped, StopRequest
from trainer.elastic.workers.fork_server_client import ForkServerClient
from trainer.elastic.workers.program import OURS, Program, parse_program, runs_our_trainer
from trainer.elastic.workers.script_text import advise_on_address, settle_rank_argument
from trainer.elastic.workers.workers import Membership, WorkersStoreHost

# What workers import before their first step, besides torch. The fork server imports it once, after the first workers
# have started.
_LATER = (
    "trainer.elastic.launch",  # for an agent that follows this one
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.utils.data",
)
PRELOAD = "ORCHESTRATOR_PRELOAD"
SPARES = "ORCHESTRATOR_SPARES"  # how many spare workers; absent: one for each worker
_WARMUP = f"{OURS}.loop.warmup"
_C10D_PORT, _STATIC_PORT = 29400, 29500  # torchrun's defaults
_STATIC_READ_S = 600.0  # torchrun's default: how long other nodes wait for the first


def run_agent(
    flags: Flags, record: Record | None, stop: StopRequest, fork_server: ForkServerClient, line: KeeperLine
) -> tuple[ExitRecord, str]:
    """Run the workers to their end. Returns the exit record and, after a failure, why there is no restart."""
    missing = find_missing(flags.command)
    if missing is not None:
        return build_exit_record(Outcome.FAILED, missing), "a restart cannot help"
    command, advice = settle_rank_argument(flags.command)
    if advice is not None:
        say(advice)
    flags = replace(flags, command=command)
    try:
        workers = count_workers(flags.workers)
    except ValueError as error:
        failure = Failure(kind=FailureKind.LAUNCH, message=str(error))
        return build_exit_record(Outcome.FAILED, failure), ""
    advice = advise_on_address(command, workers)
    if advice is not None:
        say(advice)
    _prepare(fork_server, flags.command, workers)
    return _Run(flags, workers, record, stop, fork_server, line).run()


def count_workers(text: str) -> int:
    """Resolve --nproc-per-node to a number, counting devices where it names a kind. Raises ValueError."""
    if text.isdecimal():
        return int(text)
    if text in ("gpu", "auto") and torch.cuda.is_available():
        return torch.cuda.device_count()
    if text in ("xpu", "auto") and torch.xpu.is_available():
        return torch.xpu.device_count()
    if text in ("gpu", "xpu"):
        raise ValueError(f"--nproc-per-node={text}, but torch finds no {text.upper()} on this node")
    return len(os.sched_getaffinity(0))


def _prepare(fork_server: ForkServerClient, command: Sequence[str], workers: int) -> None:
    program = parse_program(command)
    if not isinstance(program, Program):
        fork_server.prepare([], later=_LATER[:1])
        return
    is_ours = program.is_module and program.target == OURS
    preload = [name for name in os.environ.get(PRELOAD, "").split(",") if name]
    fork_server.prepare([], later=[*_LATER, *([_WARMUP] if is_ours else ()), *preload])
    spares = os.environ.get(SPARES, "")
    fork_server.keep_spares(int(spares) if spares.isdecimal() else workers, _WARMUP if is_ours else None)


def find_missing(command: Sequence[str]) -> Failure | None:
    """A failure if the program or script is missing. None if both exist or that cannot be determined."""
    if shutil.which(command[0]) is None:
        there = "/" in command[0] and Path(command[0]).exists()
        why = "may not be executed by this user: permission denied" if there else f"does not exist (from {Path.cwd()})"
        return Failure(kind=FailureKind.LAUNCH, message=f"the program {command[0]!r} {why}")
    script = next((part for part in command[1:] if part != "-u"), None)
    is_python = Path(command[0]).name.startswith("python")
    if not is_python or script is None or script.startswith("-") or Path(script).exists():
        return None
    return Failure(kind=FailureKind.LAUNCH, message=f"the script {script!r} does not exist (from {Path.cwd()})")


def build_membership(
    flags: Flags, workers: int, record: Record | None, node: str = "", is_ready: Callable[[], bool] = lambda: True
) -> Membership:
    """`node` is the name that an earlier agent of this node has in the group. Raises ValueError."""
    replica, epochs = (None, None) if record is None else (record.replica, Epochs(record.attempt_dir))
    node = node or uuid.uuid4().hex[:12]
    static = flags.backend == "static"
    host, port = parse_endpoint(flags.endpoint or "127.0.0.1", _STATIC_PORT if static else _C10D_PORT)
    chosen = (host, port) if static else (flags.local_addr, 0)
    if flags.limits.max_nodes == 1:
        me = Member(node=node, node_rank=0, address=flags.local_addr or "127.0.0.1", workers=workers)
        alone = SingleNodeRendezvous(me)
        return Membership(
            node=node, rendezvous=alone, store_host=WorkersStoreHost(*chosen), memory=MemoryFiles(workers)
        )
    timing = parse_timing(flags.conf, _STATIC_READ_S) if static else parse_timing(flags.conf)
    serves = flags.node_rank == 0 if static else parse_is_host(flags.conf)
    if serves is None and replica is not None:
        serves = replica == 0
    address, memory = flags.local_addr or find_address(host, port), MemoryFiles(workers)
    # Outside a job the agent does not know the names of its generation's copies. Only our trainer makes any.
    is_ours = runs_our_trainer(flags.command)
    buddies = Buddies(memory, address) if replica is not None and is_ours else None
    links = Links(node)
    me = Member(
        node=node,
        node_rank=flags.node_rank if static else replica,
        address=address,
        workers=workers,
        copies_url="" if buddies is None else buddies.url,
        beats_port=links.port,
        incarnation=0 if record is None else record.incarnation,
    )
    endpoint, key = Endpoint(host=host, port=port, serves=serves), f"elasticrun/{flags.run_id}"
    succession = Succession(endpoint, key, me, timing, Observer(links, node, timing, flags.limits), epochs)
    shared, store_host = (
        StoreRendezvous(succession, me, flags.limits, is_ready),
        WorkersStoreHost(may_spawn=not is_ours),
    )
    return Membership(node=node, rendezvous=shared, store_host=store_host, memory=memory, buddies=buddies)


class _Run:
    """One run of the agent, to its exit record."""

    def __init__(
        self,
        flags: Flags,
        workers: int,
        record: Record | None,
        stop: StopRequest,
        fork_server: ForkServerClient,
        line: KeeperLine,
    ) -> None:
        self._flags, self._workers, self._record, self._stop = flags, workers, record, stop
        self._fork_server, self._line = fork_server, line
        self._agent: Agent | None = None
        self._rendezvous: Rendezvous | None = None

    def run(self) -> tuple[ExitRecord, str]:
        try:
            self._stop.install({*DEFAULT_SIGNALS, *self._flags.signals})
            self._stop.arm()
            try:
                agent = self._agent = self._build()
            except ValueError as error:
                return self._ended(Outcome.FAILED, Failure(kind=FailureKind.LAUNCH, message=str(error))), ""
            agent.run()
            return self._conclude(agent)
        except Stopped:
            self._stop.disarm()
            self._leave(None)  # without a reason: the rendezvous stays open for the others
            succeeded = self._agent is not None and self._agent.succeeded
            return self._ended(Outcome.SUCCEEDED if succeeded else self._stop.outcome(self._record), None), ""
        except RendezvousFailed as error:
            return self._conclude_lost(error)
        except NodeUnfit as error:
            self._leave(error.failure.message)
            return self._ended(Outcome.FAILED, error.failure), "this node cannot run workers"
        except Exception as error:  # noqa: BLE001  # the agent's edge: any error must reach the exit record
            self._leave(f"{type(error).__name__} in an agent")
            began = self._agent is not None and self._agent.history.began
            return self._ended(Outcome.FAILED, explain_exception(error, began=began)), ""
        finally:
            self._stop.disarm()

    def _build(self) -> Agent:
        before = self._line.before
        node = "" if before is None else before.state.node
        membership = build_membership(self._flags, self._workers, self._record, node, self._fork_server.warm_up)
        if before is not None and before.memory:
            membership.memory.take_over(before.memory, before.mirrors)
        self._rendezvous = membership.rendezvous
        return Agent(
            self._flags,
            workers=self._workers,
            fork_server=self._fork_server,
            membership=membership,
            record=self._record,
            line=self._line,
        )

    def _conclude(self, agent: Agent) -> tuple[ExitRecord, str]:
        if agent.succeeded:
            self._leave(None)
            return self._ended(Outcome.SUCCEEDED, None), ""
        unknown = Failure(kind=FailureKind.UNKNOWN, message="the worker group ended without a failed worker")
        failure = agent.history.failure or unknown
        self._leave(failure.message)
        return self._ended(Outcome.FAILED, failure), agent.history.verdict

    def _conclude_lost(self, error: RendezvousFailed) -> tuple[ExitRecord, str]:
        """The exit record after the rendezvous failed.

        It is a success if all workers had succeeded. After a failure that no restart has settled, it names that
        failure.
        """
        if self._agent is not None and self._agent.succeeded:
            return self._conclude(self._agent)
        self._leave(error.failure.message)
        before = None if self._agent is None else self._agent.history.unsettled
        verdict = "the group ended while this replica was part of it" if error.was_member else ""
        return self._ended(Outcome.FAILED, before or error.failure), verdict

    def _leave(self, reason: str | None) -> None:
        if self._rendezvous is not None:
            self._rendezvous.leave(reason)

    def _ended(self, outcome: Outcome, failure: Failure | None) -> ExitRecord:
        if self._agent is None:
            return build_exit_record(outcome, failure)
        restarts = self._agent.history.restarts
        return build_exit_record(outcome, failure, generation=self._agent.generation, restarts=restarts)
