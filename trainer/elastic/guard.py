"""`python -m trainer.elastic.guard -- COMMAND ...`: run another launcher, such as torchrun, as a job's agent.

The launcher restarts its workers by its own rules. This process claims the attempt, bounds the logs, reports, forwards
the stop signal and writes the exit record. The launcher starts the workers through child.py, so that they write to the
run directory:

    python -m trainer.elastic.guard -- torchrun FLAGS --no-python python -I -S CHILD python -u SCRIPT ARGUMENTS
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from trainer.contract import env, layout
from trainer.contract.exit_record import EventKind, ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind, render_failure
from trainer.elastic.elasticrun import run_recorded
from trainer.elastic.health.postmortem import Death, find_failure, first_cause, read_steps, shows_failure
from trainer.elastic.health.processes import adopt_orphans, end_descendants
from trainer.elastic.records.files import read_tail, say
from trainer.elastic.records.record import Record, build_exit_record
from trainer.elastic.stop import Stopped, StopRequest
from trainer.elastic.workers.script_text import settle_rank_argument
from trainer.elastic.workers.wakeup import Wakeup

# torch/distributed/elastic/multiprocessing/errors: _FAILURE_FORMAT_TEMPLATE
_SUMMARY = re.compile(r"rank\s*: (\d+) \(local_rank: (\d+)\)\s*exitcode\s*: (-?\d+)")
_SUMMARY_BYTES = 64 * 1024
_CHILD = str(Path(__file__).with_name("child.py"))
_STOP_TIMEOUT_S = 30.0  # torchrun's own --shutdown-timeout
# By default torch shares the rendezvous store with the workers, including the keys of dead generations. With the shared
# store, 8 of 23 kills recovered at once and 4 never did. Without it all recovered (pytorch issues 135712, 167288). The
# shared store also breaks every scale-up.
SAFE_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_LOG_DIR = "PET_LOG_DIR"  # torchrun's --log-dir; without it each run leaves a folder in the temporary directory
_MARGIN_S = 5.0  # added to the launcher's own stop timeout
_LOOK_EVERY_S = 0.5
_SIZE_FLAGS = ("--nnodes=", "--nproc-per-node=")


def main() -> None:
    argv = sys.argv[1:]
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        sys.exit("usage: python -m trainer.elastic.guard -- COMMAND ...")
    sys.exit(run_recorded(_run, command))


def _run(command: list[str], record: Record | None, stop: StopRequest) -> tuple[ExitRecord, str]:
    if record is not None:
        os.environ[env.REPLICA_DIR] = str(record.incarnation_dir)
        os.environ.setdefault(_LOG_DIR, str(record.incarnation_dir / "torchrun"))
    command = _settle(command) if record is None else set_is_host(_settle(command), record.replica)
    os.environ.update(SAFE_ENVIRONMENT)
    process: subprocess.Popen[bytes] | None = None
    wakeup, generations = Wakeup(), _GenerationJournal(record, command)
    adopt_orphans()
    try:
        stop.arm()
        wrapped = [sys.executable, "-I", "-S", _CHILD, "--parent", str(os.getpid()), "--plain", *command]
        process = subprocess.Popen(wrapped, start_new_session=True)
        generations.start()
        code = wakeup.wait_for(process)
    except Stopped as stopped:
        if process is not None:
            _end(process, stopped.number, record)
        return _ended(stop.outcome(record), record, None), ""
    finally:
        stop.disarm()
        generations.close()
        end_descendants(os.getpid())  # the launcher leaves the workers' daemons behind
    if code == 0:
        return _ended(Outcome.SUCCEEDED, record, None), ""
    failure = _explain(code, record)
    if record is not None:
        sentence = f"rank {failure.rank}: {failure.message}" if failure.rank is not None else failure.message
        record.journal(EventKind.WORKER_FAILED, sentence, _newest_generation(record), **render_failure(failure))
    return _ended(Outcome.FAILED, record, failure), ""


def _settle(command: list[str]) -> list[str]:
    """The launcher's command, with the local-rank argument spelled as the script expects it."""
    if _CHILD not in command:
        return command
    begin = command.index(_CHILD) + 1
    program, advice = settle_rank_argument(command[begin:])
    if advice is not None:
        say(advice)
    return [*command[:begin], *program]


def set_is_host(command: Sequence[str], replica: int) -> list[str]:
    """Add `is_host` to torchrun's `--rdzv-conf`, so that only replica 0 serves the store. A given `is_host` stays."""
    flag, settled = "--rdzv-conf=", list(command)
    place = next((place for place, word in enumerate(settled) if word.startswith(flag)), None)
    if place is not None and "is_host=" not in settled[place]:
        settled[place] = f"{flag}is_host={int(replica == 0)},{settled[place].removeprefix(flag)}"
    return settled


class _GenerationJournal:
    """Journals each generation that the launcher starts, once one of its workers has a folder.

    Otherwise the service would not know that a group runs whose workers report nothing.
    """

    def __init__(self, record: Record | None, command: Sequence[str]) -> None:
        self._record, self._world_size = record, _count_workers(command)
        self._reported = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="generations", daemon=True)

    def start(self) -> None:
        if self._record is not None:
            self._thread.start()

    def close(self) -> None:
        """Journal generations up to now and stop. Idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self._look()
        self._look()

    def _look(self) -> None:
        if self._record is None:
            return
        size = {} if self._world_size is None else {"world_size": self._world_size}
        host = self._record.node
        for number in sorted(each for each in _find_generations(self._record) if each > self._reported):
            sentence = f"generation {number} started"
            self._record.journal(EventKind.GENERATION_STARTED, sentence, number, number=number, host=host, **size)
            self._reported = number


def _count_workers(command: Sequence[str]) -> int | None:
    """The world size that the launcher's flags give. None if a flag is missing or not a number."""
    given = {name: word.removeprefix(name) for word in command for name in _SIZE_FLAGS if word.startswith(name)}
    numbers = [int(given[name]) for name in _SIZE_FLAGS if given.get(name, "").isdecimal()]
    return numbers[0] * numbers[1] if len(numbers) == len(_SIZE_FLAGS) else None


def _end(process: subprocess.Popen[bytes], number: signal.Signals, record: Record | None) -> None:
    """Forward the signal. Kill the launcher if it does not end in time; its workers die with it (child.py)."""
    timeout_s = record.policy.stop_timeout_s if record is not None and record.policy is not None else _STOP_TIMEOUT_S
    process.send_signal(number)
    try:
        process.wait(timeout_s + _MARGIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _explain(code: int, record: Record | None) -> Failure:
    """The first cause, from torchrun's summary, else from the last generation's files, else the exit code."""
    if record is not None:
        agent_log = layout.replica_dir(record.job_dir, record.attempt, record.replica) / layout.AGENT_LOG
        generation = _newest_generation(record)
        folder = record.incarnation_dir / f"g{generation}"
        deaths = parse_summary(read_tail(agent_log, _SUMMARY_BYTES), folder) or _traced(folder, code)
        if deaths:
            steps = read_steps(record.incarnation_dir / layout.PROGRESS).of(generation)
            patterns = () if record.policy is None else record.policy.patterns
            return first_cause([find_failure(death, steps, patterns=patterns) for death in deaths])
    kind = FailureKind.LAUNCH if code in (126, 127) else FailureKind.UNKNOWN
    return Failure(kind=kind, message=f"the launcher ended with exit code {code}", exit_code=code)


def parse_summary(output: str, generation_dir: Path) -> list[Death]:
    """The deaths in the summary of torchrun's last failure.

    Workers that ended with SIGTERM, which torchrun sends itself, are left out unless there are no others.
    """
    summary = output[output.rfind("Failures:") :] if "Failures:" in output else ""
    deaths = {
        int(rank): Death(
            rank=int(rank),
            local_rank=int(local_rank),
            exit_code=int(exit_code),
            folder=generation_dir / f"local-{local_rank}",
        )
        for rank, local_rank, exit_code in _SUMMARY.findall(summary)
    }
    return [death for death in deaths.values() if death.exit_code != -signal.SIGTERM] or list(deaths.values())


def _traced(generation_dir: Path, code: int) -> list[Death]:
    """The workers whose folders show a failure. Their exit codes and global ranks are unknown."""
    folders = [folder for folder in sorted(generation_dir.glob("local-*")) if shows_failure(folder)]
    ranks = [int(folder.name.removeprefix("local-")) for folder in folders]
    return [
        Death(rank=rank, local_rank=rank, exit_code=max(code, 1), folder=folder)
        for rank, folder in zip(ranks, folders, strict=True)
    ]


def _newest_generation(record: Record) -> int:
    return max(_find_generations(record), default=0)


def _find_generations(record: Record) -> list[int]:
    """Generations in which a worker has a folder."""
    folders = record.incarnation_dir.glob("g*")
    return [int(folder.name[1:]) for folder in folders if folder.name[1:].isdecimal()]


def _ended(outcome: Outcome, record: Record | None, failure: Failure | None) -> ExitRecord:
    generation = 0 if record is None else _newest_generation(record)
    return build_exit_record(outcome, failure, generation=generation, restarts=max(0, generation - 1))


if __name__ == "__main__":
    main()
