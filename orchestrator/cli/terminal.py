"""All output passes here, where text from the service and from jobs is sanitized.

Tables and colors are printed by `console` in render.py, which follows the same rule.
"""

from __future__ import annotations

import typer

from orchestrator.domain.terminal import clean


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    typer.echo(clean(text), err=err, nl=nl)
