"""Which line of the owner's own program raised the error that a traceback tells of. Pure text; no file is opened."""

from __future__ import annotations

import re
from posixpath import dirname

from orchestrator.domain.specs.spec import Run
from trainer.contract.words import TRACEBACK

# CPython: Lib/traceback.py; the bars are those of an exception group. A SyntaxError's own line names no function.
_FRAME = re.compile(r'^[ |]*File "([^"\n]{1,255})", line (\d{1,9})(?=, in |$)', re.MULTILINE)
_LIBRARY = re.compile(r"(^|/)(site|dist)-packages/|(^|/)lib/python\d|^<")


def find_script_line(traceback: str, run: Run) -> str | None:
    """As "/src/train.py, line 12": the frame of the owner's program that is nearest to the error; None if none is.

    Of chained exceptions, and of a data worker's that is quoted in another one, the last that has such a frame.
    """
    for part in reversed(traceback.split(TRACEBACK)):
        found = [(path, number) for path, number in _FRAME.findall(part) if not _LIBRARY.search(path)]
        own = [f"{path}, line {number}" for path, number in found if _is_own(path, run, first=found[0][0])]
        if own:
            return own[-1]
    return None


def _is_own(path: str, run: Run, *, first: str) -> bool:
    """Beside or below the program, whose frame is the first; with the bundled trainer, the module of the task."""
    if run.trainer is None:
        return f"{dirname(path)}/".startswith(f"{dirname(first)}/")
    module = str(run.trainer.get("task") or "").partition(":")[0].replace(".", "/")
    return f"/{path}".endswith((f"/{module}.py", f"/{module}/__init__.py"))
