"""The one door to standard output and standard error: what the service or a job says passes it cleaned.

Tables and colours have another one, `console` of render.py, by the same rule.
"""

from __future__ import annotations

import typer

from orchestrator.domain.terminal import clean


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    typer.echo(clean(text), err=err, nl=nl)
