"""Check that the function of the bundled trainer's `task` exists, before a job is accepted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from orchestrator.domain.specs.spec import JobSpec

_PATIENCE_S = 10.0
_FINDER = str(Path(__file__).with_name("task_finder.py"))


def why_no_task(spec: JobSpec, task: str) -> str | None:
    """Return what is missing, as a clause. None if the task is there, and if only running the job's code could tell.

    The job's code is read, not run. `spec` is for this machine and has an absolute workdir.
    """
    sees_path = "PYTHONPATH" not in spec.run.env and "PYTHONPATH" not in spec.run.secrets
    request = json.dumps({"folder": spec.run.workdir, "task": task, "sees_path": sees_path})
    try:
        done = subprocess.run(
            [sys.executable, "-I", _FINDER], input=request, capture_output=True, text=True, timeout=_PATIENCE_S, cwd="/"
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return answer if isinstance(answer, str) else None
