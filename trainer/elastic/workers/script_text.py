"""What a launcher reads in a script before it starts it: how it takes its local rank, and which address it sets itself.

Standard library only. A guess from the text changes the spelling of one argument or gives advice, nothing else.
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
    """The command with its local rank spelled as the script takes it, and advice where the script would get none."""
    text = _read_script(command)
    asked = _RANK_ARGUMENT.findall(text)
    if not asked:
        return tuple(command), None
    spelling = str(asked[-1])
    if any(part.startswith(_RANK_SPELLINGS) for part in command):
        return tuple(part.replace(f"--local-rank={LOCAL_RANK}", f"{spelling}={LOCAL_RANK}") for part in command), None
    if "LOCAL_RANK" in text:
        return tuple(command), None
    advice = f"the script takes {spelling} and never reads LOCAL_RANK; pass it with --pass-local-rank"
    return tuple(command), f"{advice} (in a job, run.pass_local_rank)"


def advise_on_address(command: Sequence[str], workers: int) -> str | None:
    """Advice where several workers would meet at an address of the script's own, at which the agent serves no store."""
    text = _read_script(command)
    if workers == 1 or not _SETS_PORT.search(text) or _HEEDS_PORT.search(text):
        return None
    return (
        "the script sets MASTER_PORT or a tcp:// address itself; if several workers of a node meet there, they wait "
        "for a store that nobody serves; leave MASTER_ADDR and MASTER_PORT alone, or start one worker on each node"
    )


def _read_script(command: Sequence[str]) -> str:
    """The text of the script; empty where the command runs none, or where it cannot be read."""
    program = parse_program(command)
    if not isinstance(program, Program) or program.is_module:
        return ""
    try:
        return Path(program.target).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
