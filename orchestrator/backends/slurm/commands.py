"""Run Slurm's commands, each with a timeout, and parse their answers. Nothing is judged here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from re import Pattern

from orchestrator.backends.slurm.capacity import NODE_FORMAT, SlurmNode, parse_nodes
from orchestrator.backends.slurm.client import NO_LONGER_WAITS, UNKNOWN_JOB, classify_refusal, require_answer
from orchestrator.backends.slurm.listing import (
    ACCOUNTING_FIELDS,
    FORMAT,
    NAME_OF_ATTEMPT,
    SlurmJob,
    parse_accounting,
    parse_listing,
)
from orchestrator.backends.slurm.render import Request, render_native
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.native_request import NativeRequest

# Variables that would change what the commands do. They are not passed on.
_MEANINGFUL = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_", "SACCT_", "SRUN_", "ORCHESTRATOR_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


class SlurmCommands:
    """`timeout_s` limits each command. `bin_dir` holds the commands if they are not on PATH."""

    def __init__(self, *, timeout_s: float, bin_dir: str | None = None, conf: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._environment = _environment(os.environ, bin_dir, conf)
        self.user = os.getuid()  # Slurm ignores USER and LOGNAME
        self._has_accounting = True

    def render(self, request: Request) -> NativeRequest:
        return render_native(request)

    def submit(self, request: Request) -> int:
        done = self._run(["sbatch", *request.arguments], request.script)
        if done.returncode == 0:
            # `ID`, or `ID;cluster`
            return int(done.stdout.strip().splitlines()[-1].partition(";")[0])
        _require_answer(done)
        raise classify_refusal(_complaint(done))

    def jobs(self) -> list[SlurmJob]:
        """See SlurmClient. The controller selects this user's jobs."""
        done = self._run(["squeue", "-h", "-a", "-t", "all", "-u", str(self.user), "-O", FORMAT])
        return _listed(done, named=NAME_OF_ATTEMPT)

    def job(self, number: int) -> SlurmJob | None:
        done = self._run(["squeue", "-h", "-a", "-t", "all", "-j", str(number), "-O", FORMAT])
        if done.returncode != 0 and UNKNOWN_JOB in done.stderr:
            return None
        return next((job for job in _listed(done) if job.id == number), None)

    def jobs_with_steps(self) -> frozenset[int]:
        done = self._run(["squeue", "-h", "-a", "-s", "-u", str(self.user), "-o", "%i"])
        _require_success(done)
        steps = (line.strip().partition(".") for line in done.stdout.splitlines())
        # Named steps are those of Slurm itself: batch, extern.
        return frozenset(int(job) for job, _, step in steps if job.isdecimal() and step[:1].isdecimal())

    def accounting(self, numbers: Collection[int]) -> list[SlurmJob]:
        if not self._has_accounting or not numbers:
            return []
        wanted = ",".join(map(str, sorted(numbers)))
        done = self._run(["sacct", "-n", "-P", "-X", "-D", "-j", wanted, "-o", ",".join(ACCOUNTING_FIELDS)])
        if done.returncode != 0 and "accounting storage is disabled" in done.stderr:
            self._has_accounting = False
            return []
        _require_success(done)
        return parse_accounting(done.stdout)

    def signal(self, number: int, name: str) -> None:
        self._cancel(["--quiet", f"--signal={name}", str(number)])

    def cancel(self, number: int) -> None:
        self._cancel(["--quiet", str(number)])

    def exclude(self, number: int, nodes: str) -> None:
        done = self._run(["scontrol", "update", f"JobId={number}", f"ExcNodeList={nodes}"])
        _require_answer(done)
        if done.returncode != 0 and not any(words in done.stderr + done.stdout for words in NO_LONGER_WAITS):
            raise BackendUnavailable(_complaint(done))

    def nodes(self) -> list[SlurmNode]:
        done = self._run(["sinfo", "-h", "-a", "-N", "-O", NODE_FORMAT])
        _require_success(done)
        return parse_nodes(done.stdout)

    def settings(self) -> dict[str, str]:
        """Return Slurm's own configuration by name."""
        done = self._run(["scontrol", "show", "config"])
        _require_success(done)
        pairs = (line.partition("=") for line in done.stdout.splitlines())
        return {name.strip(): value.strip() for name, equals, value in pairs if equals}

    def run_on_a_node(self, arguments: Sequence[str], command: Sequence[str], *, timeout_s: float) -> str:
        """Run a command on a compute node and return its output. Raises BackendUnavailable, LaunchRefused."""
        done = self._run(["srun", *arguments, *command], timeout_s=timeout_s)
        _require_answer(done)
        if done.returncode != 0:
            raise LaunchRefused(_complaint(done))
        return done.stdout

    def _cancel(self, arguments: Sequence[str]) -> None:
        done = self._run(["scancel", *arguments])
        _require_answer(done)  # the exit status says little: for an ended job it varies

    def _run(
        self, command: Sequence[str], text: str = "", *, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        program = shutil.which(command[0], path=self._environment["PATH"])
        if program is None:
            raise BackendUnavailable(f"{command[0]} was not found on this machine; install Slurm's client commands")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            done = subprocess.run(
                [program, *command[1:]],
                env=self._environment,
                input=text.encode(),
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailable(f"{command[0]} did not answer within {limit_s:g} s") from error
        except OSError as error:
            raise BackendUnavailable(f"cannot run {command[0]}: {error}") from error
        # Decoded here, because subprocess would make a line feed of each carriage return.
        out, err = (given.decode(errors="replace") for given in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def _environment(environ: Mapping[str, str], bin_dir: str | None, conf: str | None) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_MEANINGFUL)}
    path = kept.get("PATH", "/usr/bin:/bin")
    ours = {"PATH": path if bin_dir is None else f"{bin_dir}:{path}", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
    return kept | ours | ({} if conf is None else {"SLURM_CONF": conf})


def _require_answer(done: subprocess.CompletedProcess[str]) -> None:
    require_answer(done.stderr, complaint=_complaint(done))


def _require_success(done: subprocess.CompletedProcess[str]) -> None:
    """Treat any failure as unavailable, since a failed answer proves nothing about any job."""
    if done.returncode != 0:
        raise BackendUnavailable(_complaint(done))
    _require_answer(done)


def _listed(done: subprocess.CompletedProcess[str], *, named: Pattern[str] | None = None) -> list[SlurmJob]:
    _require_success(done)
    try:
        return parse_listing(done.stdout, named=named)
    except ValueError as error:
        raise BackendUnavailable(str(error)) from error


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.strip().splitlines()]
    return "; ".join(lines)[-500:] or f"{done.args[0]} ended with exit code {done.returncode}"
