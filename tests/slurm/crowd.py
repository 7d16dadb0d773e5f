"""A fake Slurm with very many jobs. Its commands are scripts that answer at once and record their arguments.

Nothing is scheduled. The run directory has the files that the agents of our jobs would leave.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.backends.slurm.listing import FIELDS, SEPARATOR
from orchestrator.domain.job.attempt import AttemptKey
from trainer.contract import layout

# slurmctld filters by `-u` before it sends anything.
_PROGRAM = """#!/bin/bash
echo "${{0##*/}} $*" >>{folder}/calls
case "${{0##*/}} $*" in
  squeue*" -j "*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
  squeue*" -u "*) exec cat {folder}/ours ;;
  squeue*) exec cat {folder}/ours {folder}/foreign ;;
  sacct*) echo "Slurm accounting storage is disabled" >&2; exit 1 ;;
esac
"""
_PROGRAMS = ("squeue", "sacct", "scontrol", "sinfo", "scancel", "sbatch")
_NODES = 2  # of each job


class CrowdedSlurm:
    """Half of `keys` run on two nodes each. The others wait behind `foreign` jobs of other users."""

    def __init__(self, folder: Path, root: Path, keys: Sequence[AttemptKey], *, foreign: int) -> None:
        self._folder = folder
        self.bin_dir = folder / "bin"
        self.bin_dir.mkdir()
        for name in _PROGRAMS:
            (self.bin_dir / name).write_text(_PROGRAM.format(folder=folder))
            (self.bin_dir / name).chmod(0o755)
        numbered = list(enumerate(keys, 1))
        self.running = [key for number, key in numbered if _runs(number)]
        self.list_ours([row(number, str(key), running=_runs(number)) for number, key in numbered])
        strangers = (row(number, f"stranger-{number}") for number in range(len(keys) + 1, len(keys) + 1 + foreign))
        _write(folder / "foreign", strangers)
        for number, key in numbered:
            _leave_traces(layout.attempt_dir(root / key.job_id, key.number), number, claimed=_runs(number))

    def list_ours(self, rows: Sequence[str]) -> None:
        """Set the rows that Slurm lists for this user."""
        _write(self._folder / "ours", rows)

    def give_all_to_us(self) -> None:
        """Make the foreign jobs this user's, as with a shared service account."""
        with (self._folder / "ours").open("a") as ours:
            ours.write((self._folder / "foreign").read_text())

    def calls(self) -> list[str]:
        """Return the commands since the last call."""
        path = self._folder / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls


def row(number: int, name: str, *, running: bool = False) -> str:
    """Render a line of the listing."""
    values = {
        "JobID": str(number),
        "State": "RUNNING" if running else "PENDING",
        "Reason": "None" if running else "Priority",
        "BatchHost": "n1" if running else "n/a",
        "NodeList": "n[1-2]" if running else "",
        "RestartCnt": "0",
        "exit_code": "0:0",
        "StartTime": "1795193279",
        "EndTime": "N/A",
        "TimeLimit": "1-00:00:00",
        "Partition": "main",
        "UserID": str(os.getuid()),
        "SubmitTime": "1795193270",
        "PriorityLong": "4294901759",
        "Name": name,
        "Comment": f"orchestrator:{name}-c0ffee",
    }
    return "".join(values[field] + SEPARATOR for field in FIELDS)


def _runs(number: int) -> bool:
    return number % 2 == 1


def _leave_traces(attempt_dir: Path, number: int, *, claimed: bool) -> None:
    """Write the files of a submission, and with `claimed` those of a started job."""
    attempt_dir.mkdir(parents=True)
    (attempt_dir / layout.LAUNCH).write_text(f'{{"replicas": {_NODES}, "policy": {{}}}}')
    (attempt_dir / f"submitted-{number}").touch()
    if claimed:
        (attempt_dir / layout.CLAIM).write_text(f"slurm-lab-{number}")
        (attempt_dir / f"allocation-{number}").write_text(f"{_NODES} n[1-{_NODES}]\n")


def _write(path: Path, rows: Iterable[str]) -> None:
    path.write_text("".join(f"{each}\n" for each in rows))
