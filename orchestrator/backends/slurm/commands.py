"""Run Slurm's commands, each with a timeout, and parse their answers. Nothing is judged here.

A command that times out or cannot reach the controller raises BackendUnavailable. Slurm may have accepted the
submission all the same (observed in every version), and a missing listing proves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from re import Pattern

from orchestrator.backends.slurm.capacity import NODE_FORMAT, SlurmNode, parse_nodes
from orchestrator.backends.slurm.listing import (
    ACCOUNTING_FIELDS,
    FORMAT,
    NAME_OF_ATTEMPT,
    SlurmJob,
    parse_accounting,
    parse_listing,
)
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused

# Variables that would change what the commands do. They are not passed on.
_MEANINGFUL = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_", "SACCT_", "SRUN_", "ORCHESTRATOR_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_UNREACHABLE = (
    "Socket timed out",
    "Unable to contact slurm controller",
    "connect failure",
    "Zero Bytes were transmitted or received",
    "Transport endpoint is not connected",
    "Connection refused",
    "authentication error",
    "Protocol authentication error",
    "Munge encode failed",
    "Slurm backup controller in standby mode",
    "I/O error writing script/environment to file",
    "Unable to establish configuration source",
)
_FULL = (
    "Job violates accounting/QOS policy",
    "temporarily unable to accept job",
    "Resource temporarily unavailable",
    "maximum number of jobs",
    "MaxSubmitJob",
)
_UNKNOWN_JOB = "Invalid job id specified"
_WAITS_NO_MORE = (_UNKNOWN_JOB, "no longer pending", "already finished")


class SlurmClient:
    """`timeout_s` limits each command. `bin_dir` holds the commands if they are not on PATH."""

    def __init__(self, *, timeout_s: float, bin_dir: str | None = None, conf: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._environment = _environment(os.environ, bin_dir, conf)
        self.user = os.getuid()  # Slurm ignores USER and LOGNAME
        self._has_accounting = True

    def submit(self, arguments: Sequence[str], script: str) -> int:
        """Submit a job and return its id. Raises LaunchRefused, BackendBusy, BackendUnavailable."""
        done = self._run(["sbatch", *arguments], script)
        if done.returncode == 0:
            # `ID`, or `ID;cluster`
            return int(done.stdout.strip().splitlines()[-1].partition(";")[0])
        _require_answer(done)
        complaint = _complaint(done)
        if any(words in done.stderr for words in _FULL):
            raise BackendBusy(f"Slurm accepts no more jobs now: {complaint}")
        raise LaunchRefused(f"Slurm refuses the job: {complaint}")

    def jobs(self) -> list[SlurmJob]:
        """Return all attempts of this user, including ended ones, in one call that the controller filters."""
        done = self._run(["squeue", "-h", "-a", "-t", "all", "-u", str(self.user), "-O", FORMAT])
        return _listed(done, named=NAME_OF_ATTEMPT)

    def job(self, number: int) -> SlurmJob | None:
        """Return the job that now has this id, from any user. None if the controller says that there is none."""
        done = self._run(["squeue", "-h", "-a", "-t", "all", "-j", str(number), "-O", FORMAT])
        if done.returncode != 0 and _UNKNOWN_JOB in done.stderr:
            return None
        return next((job for job in _listed(done) if job.id == number), None)

    def jobs_with_steps(self) -> frozenset[int]:
        """Return the ids of this user's jobs that run a step besides their script."""
        done = self._run(["squeue", "-h", "-a", "-s", "-u", str(self.user), "-o", "%i"])
        _require_success(done)
        steps = (line.strip().partition(".") for line in done.stdout.splitlines())
        # Named steps are those of Slurm itself: batch, extern.
        return frozenset(int(job) for job, _, step in steps if job.isdecimal() and step[:1].isdecimal())

    def accounting(self, numbers: Collection[int]) -> list[SlurmJob]:
        """Return accounting's rows for these job ids. Empty if the cluster has no accounting."""
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
        """Signal the processes of the job's steps, not its script. Does nothing if the job is over."""
        self._cancel(["--quiet", f"--signal={name}", str(number)])

    def cancel(self, number: int) -> None:
        """End a waiting or running job. Does nothing if the job is over."""
        self._cancel(["--quiet", str(number)])

    def exclude(self, number: int, nodes: str) -> None:
        """Replace the nodes that a waiting job excludes. Does nothing if the job no longer waits."""
        done = self._run(["scontrol", "update", f"JobId={number}", f"ExcNodeList={nodes}"])
        _require_answer(done)
        if done.returncode != 0 and not any(words in done.stderr + done.stdout for words in _WAITS_NO_MORE):
            raise BackendUnavailable(_complaint(done))

    def nodes(self) -> list[SlurmNode]:
        """Return every node, once per partition."""
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
            return subprocess.run(
                [program, *command[1:]],
                env=self._environment,
                input=text,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailable(f"{command[0]} did not answer within {limit_s:g} s") from error
        except OSError as error:
            raise BackendUnavailable(f"cannot run {command[0]}: {error}") from error


def _environment(environ: Mapping[str, str], bin_dir: str | None, conf: str | None) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_MEANINGFUL)}
    path = kept.get("PATH", "/usr/bin:/bin")
    ours = {"PATH": path if bin_dir is None else f"{bin_dir}:{path}", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
    return kept | ours | ({} if conf is None else {"SLURM_CONF": conf})


def _require_answer(done: subprocess.CompletedProcess[str]) -> None:
    if any(words in done.stderr for words in _UNREACHABLE):
        raise BackendUnavailable(_complaint(done))


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
