"""From torchrun's flags to the end of the agent. This is the part of `elasticrun` that needs torch."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import traceback
import uuid
from dataclasses import replace
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser, parse_min_max_nnodes

from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.agent import Agent
from trainer.elastic.fitness import Unfit
from trainer.elastic.nursery import Nursery
from trainer.elastic.program import OURS, Program, parse_program
from trainer.elastic.record import Record, now
from trainer.elastic.rendezvous import RendezvousFailed, build_handler, explain_connection_failure
from trainer.elastic.stop import DEFAULT_SIGNALS, StopRequest
from trainer.elastic.workers import OwnLogs

# What workers import before their first step, beside torch: the fork server does it once, when nobody waits for it.
_LATER = (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.utils.data",
)
# All that trainer/__main__.py imports, and torch._dynamo, which DDP would, for most of a second; but not that itself:
# runpy warns of a module that it finds imported already.
_OURS = ("torch.distributed.elastic.multiprocessing.errors", "torch._dynamo", f"{OURS}.train")
# Seconds. torch waits 30 for late nodes in every round and 15 for one that is gone; fewer than 3 missing heartbeats, or
# a member that does not look whether it is one still (is_broken), were seen to split a healthy group on a busy machine.
QUICK_RENDEZVOUS = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 5}
_GROUP_LOST = (RendezvousError, DistStoreError, DistNetworkError)  # the latter from the stores themselves
PRELOAD = "ORCHESTRATOR_PRELOAD"
SPARES = "ORCHESTRATOR_SPARES"  # how many workers are forked ahead; absent: as many as there are
_REHEARSAL = f"{OURS}.rehearsal"


def run_agent(argv: list[str], record: Record | None, stop: StopRequest, nursery: Nursery) -> tuple[ExitRecord, str]:
    """Run workers to their end. Returns the exit record and why a failure was final.

    Raises SystemExit as argparse does outside a job; in a job wrong flags are a failure of kind LAUNCH.
    """
    try:
        config, command = parse_flags(argv, record)
    except SystemExit as error:
        if record is None or not error.code:
            raise
        return _failed(Failure(kind=FailureKind.LAUNCH, message="elasticrun does not understand its flags")), ""
    except (ValueError, AssertionError, RuntimeError) as error:
        return _failed(Failure(kind=FailureKind.LAUNCH, message=f"elasticrun: {error}")), ""
    missing = find_missing(command)
    if missing is not None:
        return _failed(missing), "a restart cannot help"
    _prepare(nursery, command, config.nproc_per_node)
    return _run(config, command, record, stop, nursery)


def _prepare(nursery: Nursery, command: list[str], workers: int) -> None:
    program = parse_program(command)
    if not isinstance(program, Program):
        return
    is_ours = program.is_module and program.target == OURS
    preload = [name for name in os.environ.get(PRELOAD, "").split(",") if name]
    nursery.prepare(
        ["torch", *(_OURS if is_ours else ())], later=[*_LATER, *([_REHEARSAL] if is_ours else ()), *preload]
    )
    spares = os.environ.get(SPARES, "")
    nursery.keep_spares(int(spares) if spares.isdecimal() else workers, _REHEARSAL if is_ours else None)


def parse_flags(argv: list[str], record: Record | None) -> tuple[LaunchConfig, list[str]]:
    """Torchrun's flags as a configuration and the command of one worker, with the job's policy laid over them."""
    args = _settle(get_args_parser().parse_args(argv))
    if record is not None:
        args.log_dir = os.devnull  # torch would make a folder in /tmp for every run
    config, command, arguments = config_from_args(args)
    if not isinstance(command, str):
        raise AssertionError("torch resolved the script to a function")
    config.run_id = config.run_id or uuid.uuid4().hex
    if config.rdzv_backend == "c10d":
        config.rdzv_configs = {**QUICK_RENDEZVOUS, **config.rdzv_configs}
    if record is not None:
        config.logs_specs = OwnLogs()
    if record is not None and record.policy is not None:
        config.max_restarts = record.policy.max_restarts
    return config, [command, *arguments]


def _settle(args: argparse.Namespace) -> argparse.Namespace:
    """What torchrun's `run` does before it builds its configuration."""
    alone = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    if args.standalone or (alone and parse_min_max_nnodes(args.nnodes)[1] == 1):
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    args.master_port = 29500 if args.master_port is None else args.master_port
    if args.run_path:
        # A function would run in a spawned process, out of child.py's reach; the script gets the same __main__.
        args.run_path, args.no_python, args.module = False, False, False
    if args.nproc_per_node.isdecimal() and int(args.nproc_per_node) > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's own default, without its warning
    return args


def find_missing(command: list[str]) -> Failure | None:
    """The failure that a missing program or script is going to be; None when both are there or cannot be told."""
    if shutil.which(command[0]) is None:
        there = "/" in command[0] and Path(command[0]).exists()
        why = "may not be executed by this user: permission denied" if there else f"does not exist (from {Path.cwd()})"
        return Failure(kind=FailureKind.LAUNCH, message=f"the program {command[0]!r} {why}")
    script = next((part for part in command[1:] if part != "-u"), None)
    is_python = Path(command[0]).name.startswith("python")
    if not is_python or script is None or script.startswith("-") or Path(script).exists():
        return None
    return Failure(kind=FailureKind.LAUNCH, message=f"the script {script!r} does not exist (from {Path.cwd()})")


def _run(
    config: LaunchConfig, command: list[str], record: Record | None, stop: StopRequest, nursery: Nursery
) -> tuple[ExitRecord, str]:
    agent: Agent | None = None
    try:
        stop.install({*DEFAULT_SIGNALS, *config.signals_to_handle.split(",")})
        stop.arm(lambda number: SignalException(f"the agent received {number.name}", sigval=number))
        agent = _build_agent(config, command, record, stop, nursery)
        result = _supervise(agent)
        return _conclude(agent, result, command, standalone=record is None), agent.history.verdict
    except SignalException:
        succeeded = agent is not None and agent.succeeded
        return _ended(Outcome.SUCCEEDED if succeeded else stop.outcome(record), agent, None), ""
    except RendezvousFailed as error:
        return _failed(error.failure), ""
    except Unfit as error:
        return _ended(Outcome.FAILED, agent, error.failure), "this node cannot carry workers"
    except Exception as error:  # the agent's edge: whatever ends it must reach the exit record
        verdict = "the group ended while this replica was part of it" if isinstance(error, _GROUP_LOST) else ""
        return _ended(Outcome.FAILED, agent, _explain(error, agent, config)), verdict
    finally:
        stop.disarm()


def _build_agent(
    config: LaunchConfig, command: list[str], record: Record | None, stop: StopRequest, nursery: Nursery
) -> Agent:
    handler = build_handler(config)
    host, _, port = config.rdzv_endpoint.strip().rpartition(":")
    static = config.rdzv_backend == "static"
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=handler,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=host if static else None,
        master_port=int(port) if static else None,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    policy = record.policy if record is not None else None
    return Agent(
        spec,
        logs_specs=config.logs_specs or DefaultLogsSpecs(),
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        nursery=nursery,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        stop_timeout_s=policy.stop_timeout_s if policy else float(config.shutdown_timeout or 0),
        record=record,
        # torch installs handlers of its own whenever it starts workers
        on_started=lambda: stop.install({*DEFAULT_SIGNALS, *config.signals_to_handle.split(",")}),
    )


def _supervise(agent: Agent) -> RunResult | None:
    result: RunResult | None = None
    try:
        result = agent.run()
    except SignalException:
        raise  # a stopped agent leaves the rendezvous open to the others
    except Exception:
        agent.get_worker_group().spec.rdzv_handler.shutdown()
        raise
    agent.get_worker_group().spec.rdzv_handler.shutdown()
    return result


def _conclude(agent: Agent, result: RunResult | None, command: list[str], *, standalone: bool) -> ExitRecord:
    if agent.succeeded:
        return _ended(Outcome.SUCCEEDED, agent, None)
    if standalone and result is not None and result.failures:
        print(ChildFailedError(command[0], result.failures), file=sys.stderr, flush=True)
    unknown = Failure(kind=FailureKind.UNKNOWN, message="the worker group ended without a failed worker")
    return _ended(Outcome.FAILED, agent, agent.history.failure or unknown)


def _explain(error: Exception, agent: Agent | None, config: LaunchConfig) -> Failure:
    """Why the agent itself ended. The loss of a group that was failing anyway is told as the failure before it."""
    if isinstance(error, _GROUP_LOST) and agent is not None and agent.history.failure is not None:
        return agent.history.failure
    if isinstance(error, RendezvousConnectionError):
        return explain_connection_failure(config.rdzv_endpoint, str(error.__cause__ or error))
    text = "".join(traceback.format_exception(error))[-16 * 1024 :]
    kind = FailureKind.RENDEZVOUS if isinstance(error, _GROUP_LOST) else FailureKind.INFRASTRUCTURE
    message = f"the agent ended by {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Failure(kind=kind, message=message, traceback=text)


def _failed(failure: Failure) -> ExitRecord:
    return ExitRecord(outcome=Outcome.FAILED, at=now(), generation=0, restarts=0, failure=failure)


def _ended(outcome: Outcome, agent: Agent | None, failure: Failure | None) -> ExitRecord:
    record = ExitRecord(outcome=outcome, at=now(), generation=0, restarts=0, failure=failure)
    return record if agent is None else replace(record, generation=agent.generation, restarts=agent.history.restarts)
