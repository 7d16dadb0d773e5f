"""Print text. Control characters in text from the service and from jobs are removed.

`console` in render.py prints tables and colors and does the same.
"""

from __future__ import annotations

import typer

from orchestrator.domain.terminal import clean


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    typer.echo(clean(text), err=err, nl=nl)
