"""Print text. Control characters in text from the service and from jobs are removed.

`console` in render.py prints tables and colors and does the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import typer

from orchestrator.domain.terminal import clean


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    typer.echo(clean(text), err=err, nl=nl)


def echo_lines(lines: Iterable[str]) -> None:
    """Print many lines. Each `echo` flushes, so some lines share one."""
    lines = iter(lines)
    while some := list(islice(lines, 1000)):
        echo("\n".join(some))
