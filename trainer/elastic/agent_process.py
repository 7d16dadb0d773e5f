"""The agent as a process that the fork server forks. Its notes and its result go to the keeper."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic import child
from trainer.elastic.agent_error import explain_exception
from trainer.elastic.channel import Channel
from trainer.elastic.flags import Flags, parse_flags
from trainer.elastic.keeper_line import KeeperLine, parse_predecessor
from trainer.elastic.records.record import Record, build_exit_record, reopen_record
from trainer.elastic.stop import DEFAULT_SIGNALS, StopRequest
from trainer.elastic.workers.fork_server_client import ForkServerClient
from trainer.elastic.workers.forked import HELD, names_of, settle_environment
from trainer.elastic.workers.late_release import release_memory_late
from trainer.elastic.workers.title import show_command


def run_as_agent(
    message: Mapping[str, object], *, server: int, channel: Channel, keeper: int, results: int
) -> NoReturn:
    """Run the agent that the keeper has ordered, in the process that was forked for it."""
    child.die_with_parent(server)
    release_memory_late()
    show_command([sys.executable, "-m", "trainer.elastic.agent", "of", str(keeper)])
    base = dict(os.environ)
    settle_environment(message)
    order = message["agent"]
    assert isinstance(order, dict)
    line = KeeperLine(results, keeper, parse_predecessor(order["before"]))
    fork_server = ForkServerClient(channel, server_pid=server, base=base)
    flags = replace(parse_flags(names_of(order["argv"])), run_id=str(order["run_id"]))
    stop = StopRequest()
    stop.install({*DEFAULT_SIGNALS, *flags.signals})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    record = None if order["incarnation"] is None else reopen_record(os.environ, order["incarnation"], keeper)
    result, verdict = _run(flags, record, stop, fork_server, line)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    line.finish(result, verdict)
    os._exit(0)


def _run(
    flags: Flags, record: Record | None, stop: StopRequest, fork_server: ForkServerClient, line: KeeperLine
) -> tuple[ExitRecord, str]:
    """An exception becomes an exit record too."""
    try:
        # Declared lazy start-up path: it needs torch, which may be missing.
        from trainer.elastic.launch import run_agent  # noqa: PLC0415

        return run_agent(flags, record, stop, fork_server, line)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            return _explain(error, record), ""
        message = f"{sys.executable} has no PyTorch; there, pip install 'elastic-orchestrator[torch]'"
        return build_exit_record(Outcome.FAILED, Failure(kind=FailureKind.LAUNCH, message=message)), ""
    except Exception as error:  # noqa: BLE001  # the agent's edge
        return _explain(error, record), ""


def _explain(error: Exception, record: Record | None) -> ExitRecord:
    began = record is not None and any(record.incarnation_dir.glob("g[0-9]*"))  # each generation has a folder
    return build_exit_record(Outcome.FAILED, explain_exception(error, began=began))
