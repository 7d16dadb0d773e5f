"""Print text. Control characters in text from the service and from jobs are removed. On a terminal, sentences are
wrapped at words.

`console` in render.py prints tables and colors and does the same.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from itertools import islice

import typer

from orchestrator.domain.terminal import clean

_COMMAND = re.compile(r"`[^`]*`|(?<=[:;] )[^:;`]*\borchestrator [^`]*$")  # to copy, so it stays on one line
_JOINED = "\0"  # a space of a command


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    typer.echo(clean(text), err=err, nl=nl)


def say(text: str, *, err: bool = False) -> None:
    """Print sentences. A terminal gets them wrapped at words, unless the command prints JSON."""
    is_read = (sys.stderr if err else sys.stdout).isatty() and "--json" not in sys.argv
    echo(wrap(clean(text), shutil.get_terminal_size().columns) if is_read else text, err=err)


def wrap(text: str, width: int, indent: str = "  ") -> str:
    """Wrap each line between words, never inside a command, a path or another word. Indent what continues a line."""
    return "\n".join(_wrap_line(line, width, indent) for line in text.split("\n"))


def _wrap_line(line: str, width: int, indent: str) -> str:
    wrapper = textwrap.TextWrapper(
        width=width,
        subsequent_indent=line[: len(line) - len(line.lstrip(" "))] + indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.fill(_COMMAND.sub(lambda command: command[0].replace(" ", _JOINED), line)).replace(_JOINED, " ")


def echo_lines(lines: Iterable[str]) -> None:
    """Print many lines. Each `echo` flushes, so some lines share one."""
    lines = iter(lines)
    while some := list(islice(lines, 1000)):
        echo("\n".join(some))
