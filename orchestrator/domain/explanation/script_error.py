"""Finds the line of the owner's program in a traceback. Reads only the text of the traceback. Pure."""

from __future__ import annotations

import re
from posixpath import dirname

from orchestrator.domain.specs.spec import Run
from trainer.contract.words import TRACEBACK

# CPython: Lib/traceback.py. Exception groups print the bars. A SyntaxError's line names no function.
_FRAME = re.compile(r'^[ |]*File "([^"\n]{1,255})", line (\d{1,9})(?=, in |$)', re.MULTILINE)
_LIBRARY = re.compile(r"(^|/)(site|dist)-packages/|(^|/)lib/python\d|^<")


def find_script_line(traceback: str, run: Run) -> str | None:
    """Return the frame of the owner's program nearest to the error, such as "/src/train.py, line 12", or None.

    Of chained exceptions, and of a data worker's exception quoted in another one, the last with such a frame counts.
    """
    for part in reversed(traceback.split(TRACEBACK)):
        found = [(path, number) for path, number in _FRAME.findall(part) if not _LIBRARY.search(path)]
        own = [f"{path}, line {number}" for path, number in found if _is_own(path, run, first=found[0][0])]
        if own:
            return own[-1]
    return None


def _is_own(path: str, run: Run, *, first: str) -> bool:
    """Whether the file lies beside or below the program (the first frame), or is the module of the trainer's task."""
    if run.trainer is None:
        return f"{dirname(path)}/".startswith(f"{dirname(first)}/")
    module = str(run.trainer.get("task") or "").partition(":")[0].replace(".", "/")
    return f"/{path}".endswith((f"/{module}.py", f"/{module}/__init__.py"))
