"""Inspect a script's text before its start: how it takes its local rank, and whether it sets its own address.

The result is a guess. It changes the spelling of one argument or gives advice, nothing else. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trainer.elastic.flags import LOCAL_RANK
from trainer.elastic.workers.program import Program, parse_program

_RANK_SPELLINGS = ("--local-rank", "--local_rank")
_RANK_ARGUMENT = re.compile(r"""add_argument\([^)]*["'](--local[-_]rank)["']""")
_SETS_PORT = re.compile(
    r"""environ\[\s*["']MASTER_PORT["']\s*\]\s*=[^=]|\bMASTER_PORT\s*=[^=]|init_method\s*=\s*f?["']tcp:"""
)
_HEEDS_PORT = re.compile(r"""["']MASTER_PORT["']\s+(not\s+)?in\b|get(env)?\(\s*["']MASTER_PORT""")


def settle_rank_argument(command: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Spell the local-rank argument as the script expects it. Returns the command, and advice if there is none."""
    text = _read_script(command)
    spellings = _RANK_ARGUMENT.findall(text)
    if not spellings:
        return tuple(command), None
    spelling = str(spellings[-1])
    if any(part.startswith(_RANK_SPELLINGS) for part in command):
        return tuple(part.replace(f"--local-rank={LOCAL_RANK}", f"{spelling}={LOCAL_RANK}") for part in command), None
    if "LOCAL_RANK" in text:
        return tuple(command), None
    advice = f"the script takes {spelling} and never reads LOCAL_RANK; pass it with --pass-local-rank"
    return tuple(command), f"{advice} (in a job, run.pass_local_rank)"


def advise_on_address(command: Sequence[str], workers: int) -> str | None:
    """Advice if several workers would meet at the script's own address, at which the agent serves no store."""
    text = _read_script(command)
    if workers == 1 or not _SETS_PORT.search(text) or _HEEDS_PORT.search(text):
        return None
    return (
        "the script sets MASTER_PORT or a tcp:// address itself; several workers of a node that meet there wait for "
        "a store that does not exist; do not set MASTER_ADDR and MASTER_PORT, or start one worker per node"
    )


def _read_script(command: Sequence[str]) -> str:
    """The text of the script. Empty if the command runs none, or if it cannot be read."""
    program = parse_program(command)
    if not isinstance(program, Program) or program.is_module:
        return ""
    try:
        return Path(program.target).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
