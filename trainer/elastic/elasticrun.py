"""`elasticrun`: torchrun's flags and environment, with fast restarts, records, and an agent that can be replaced.

For each replica of an attempt the service renders

    elasticrun --nnodes=N --nproc-per-node=K --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --rdzv-id=JOB-aATTEMPT
      --rdzv-conf=join_timeout=600,read_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5
      --local-addr=ADDRESS --monitor-interval=0.1 [--module | --no-python] -- PROGRAM ARGUMENTS

HOST:PORT is the same for all replicas. Replica 0 binds the port, and fails within two seconds if the port is taken. The
others wait up to read_timeout for it. ADDRESS is this node's address as other nodes reach it, or 127.0.0.1 if there is
one machine. The id is new in every attempt. N is a number or MIN:MAX. The environment has all names of
`trainer.contract.env` down to REPORT_TOKEN. `attempts/<n>/launch.json` exists before the start; its policy, at the top
or under "policy", overrides --max-restarts and --shutdown-timeout. Without ORCHESTRATOR_JOB_DIR elasticrun is a
torchrun with safe settings.

Exit codes: 0 succeeded, 1 failed, 2 wrong flags or environment, 3 refused by the claim, 143 stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from trainer.contract.exit_record import EventKind, ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.agent_error import explain_exception
from trainer.elastic.descriptors import open_standard_streams
from trainer.elastic.desired import ServiceRequests
from trainer.elastic.flags import parse_flags
from trainer.elastic.keeper import Keeper
from trainer.elastic.records.claim import ClaimRefused
from trainer.elastic.records.files import say
from trainer.elastic.records.record import Record, build_exit_record, open_record
from trainer.elastic.records.report import start_reporter
from trainer.elastic.stop import DEFAULT_SIGNALS, StopRequest
from trainer.elastic.workers.log_limit import start_log_bounding

_EXIT_CODES = {Outcome.SUCCEEDED: 0, Outcome.FAILED: 1, Outcome.PREEMPTED: 143, Outcome.CANCELLED: 143}
_FINISH_PATIENCE_S, _FINISH_INTERVAL_S = 600.0, 1.0
_EXIT_USAGE = 2
_EXIT_REFUSED = 3

Body = Callable[[list[str], "Record | None", StopRequest], "tuple[ExitRecord, str]"]


def main() -> None:
    """The console script."""
    open_standard_streams()
    sys.exit(run_recorded(_run, sys.argv[1:]))


def run_recorded(body: Body, argv: list[str]) -> int:
    """Claim the attempt, run `body`, and write its exit record. Returns the process's exit code."""
    stop = StopRequest()
    stop.install()
    try:
        record = open_record(os.environ)
    except ClaimRefused as refusal:
        say(f"refused: {refusal}")
        return _EXIT_REFUSED
    except (ValueError, OSError) as error:
        say(str(error))
        return _EXIT_USAGE
    if record is None:
        exit_record, _ = body(argv, None, stop)
        if exit_record.failure is not None:
            _print_failure(exit_record.failure)
        elif exit_record.outcome is not Outcome.SUCCEEDED and stop.signal is not None:
            say(f"stopped by {stop.signal.name}")
        return _EXIT_CODES[exit_record.outcome]
    return _run_in_job(body, argv, record, stop)


def _print_failure(failure: Failure) -> None:
    """Print one sentence and the first failed rank's traceback."""
    say(failure.message if failure.rank is None else f"rank {failure.rank}: {failure.message}")
    if failure.traceback:
        with suppress(OSError):
            print(failure.traceback.rstrip(), file=sys.stderr, flush=True)


def _run_in_job(body: Body, argv: list[str], record: Record, stop: StopRequest) -> int:
    requests = ServiceRequests(record, stop)
    requests.watch()
    if record.policy is not None:
        start_log_bounding(record.incarnation_dir, record.policy.log_limit_bytes)
    reporter = start_reporter(record, requests, os.environ)
    exit_record, verdict = _run_safely(body, argv, record, stop)
    sentence = _sentence(exit_record, record.replica, verdict)
    record.journal(
        EventKind.AGENT_EXITED,
        sentence,
        exit_record.generation,
        outcome=exit_record.outcome,
        restarts=exit_record.restarts,
    )
    write_exit_record(record, exit_record, stop)
    if reporter is not None:
        reporter.close(exit_record)
    say(sentence)
    return _EXIT_CODES[exit_record.outcome]


def write_exit_record(record: Record, exit_record: ExitRecord, stop: StopRequest) -> None:
    """Write the exit record. While that fails, retry for ten minutes or until a stop signal.

    Without an exit record the service would run the attempt again.
    """
    deadline = time.monotonic() + _FINISH_PATIENCE_S
    while True:
        try:
            record.finish(exit_record)
            return
        except OSError as error:
            if stop.signal is not None or time.monotonic() > deadline:
                return
            say(f"cannot write the exit record, retrying: {error}")
        time.sleep(_FINISH_INTERVAL_S)


def _run_safely(body: Body, argv: list[str], record: Record, stop: StopRequest) -> tuple[ExitRecord, str]:
    """Run `body`. An exception becomes an exit record too."""
    try:
        return body(argv, record, stop)
    except Exception as error:  # noqa: BLE001  # the agent's edge
        began = any(record.incarnation_dir.glob("g[0-9]*"))  # each generation has a folder
        failure = explain_exception(error, began=began)
        return build_exit_record(Outcome.FAILED, failure), ""


def _sentence(exit_record: ExitRecord, replica: int, verdict: str) -> str:
    failure = exit_record.failure
    why = "" if failure is None else f": {failure.message}"
    gave_up = f" ({verdict})" if failure is not None and verdict and failure.message not in verdict else ""
    if failure is not None and verdict and failure.message in verdict:
        why = f": {verdict}"
    return f"replica {replica} {exit_record.outcome.value}{why}{gave_up}"


def _run(argv: list[str], record: Record | None, stop: StopRequest) -> tuple[ExitRecord, str]:
    """Run the agent. Wrong flags raise SystemExit outside a job; in a job they are a failure of kind LAUNCH."""
    try:
        flags = parse_flags(argv)
    except SystemExit as error:
        if record is None or not error.code:
            raise
        return _refuse("elasticrun does not understand its flags"), ""
    except ValueError as error:
        if record is None:
            say(str(error))
            raise SystemExit(_EXIT_USAGE) from None
        return _refuse(f"elasticrun: {error}"), ""
    stop.install({*DEFAULT_SIGNALS, *flags.signals})
    return Keeper(argv, flags, record, stop).run()


def _refuse(message: str) -> ExitRecord:
    return build_exit_record(Outcome.FAILED, Failure(kind=FailureKind.LAUNCH, message=message))


if __name__ == "__main__":
    main()
