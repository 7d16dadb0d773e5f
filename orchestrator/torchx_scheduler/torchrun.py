"""Parse a torchrun command line: the program and the number of workers. Pure.

Flags for rendezvous, logging and roles are dropped, because the service sets its own for each attempt. Other flags that
the service cannot honor are refused. Flags: https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Untranslatable(ValueError):
    """An AppDef that the service cannot run. The message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """`program` is a script, a module or, with --no-python, a command. `workers_per_node` may be one of WORDS."""

    kind: str  # "script", "module", "command"
    program: str
    args: tuple[str, ...]
    nodes: str = "1"
    workers_per_node: int | str = 1
    max_restarts: int | None = None
    pass_local_rank: bool = False


WORDS = ("auto", "cpu", "gpu")  # values of --nproc-per-node that count what the role requests
_DROPPED = frozenset(
    {
        *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port", "node-rank"),
        *("local-addr", "role", "log-dir", "redirects", "tee", "logs-specs", "local-ranks-filter"),
        *("duplicate-stdout-filters", "duplicate-stderr-filters"),
        *("event-log-handler", "monitor-interval", "start-method"),
    }
)
_LAUNCH = "torch.distributed.launch"  # passes --local-rank unless it gets --use-env
_MODULES = ("torch.distributed.run", _LAUNCH, "trainer.elastic.elasticrun")
_KEPT = frozenset({"nnodes", "nproc-per-node", "max-restarts"})
_SWITCHES = frozenset({"standalone", "no-python", "module", "use-env", "pass-local-rank"})
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
# Text that dist.ddp and our own component leave unquoted for the shell of each node.
_FOR_THE_SHELL = re.compile(
    r"^((--rdzv-endpoint=)?\${1,2}\{\$\{rank0_env\}:(=localhost|\?names_no_first_host)\}:\d+"
    r"|--rdzv-conf=is_host=\$\$\(\(\$\{replica_id\}==0\)\),[\w,=]+"
    r"|--rdzv-id=\$\{app_id\}-\$\$\{SLURM_RESTART_COUNT:-0\})$"
)
_SHELL = frozenset(";&|<>()$`*?[]{}~#!\n\\")


def split_shell(text: str) -> list[str] | None:
    """Split a shell command line into words. None if it needs a shell."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    quoted = " ".join(word if _FOR_THE_SHELL.match(word) else shlex.quote(word) for word in words)
    return words if quoted == text or not _SHELL.intersection(text) else None


def count_launcher_words(words: Sequence[str]) -> int:
    """Return how many words start torchrun or elasticrun, or 0 for another program. Both have the same flags."""
    if words and words[0].rpartition("/")[2] in ("torchrun", "elasticrun"):
        return 1
    if len(words) > 2 and words[0].rpartition("/")[2].startswith("python") and words[1] == "-m":
        return 3 if words[2] in _MODULES else 0
    return 0


def parse_torchrun(words: Sequence[str]) -> Torchrun:
    """Parse a command line for which `count_launcher_words` is not 0. Raises Untranslatable."""
    taken = count_launcher_words(words)
    is_launch = _LAUNCH in words[:taken]
    rest = iter(words[taken:])
    flags: dict[str, str] = {}
    program = None
    for word in rest:
        if not word.startswith("-") or word == "-":
            program = word
            break
        if word == "--":
            continue
        name, value = _flag(word, rest)
        flags[name] = value
    if program is None:
        raise Untranslatable("the torchrun command names no script; give --script or -m")
    kind = _program_kind(flags)
    passes = "pass-local-rank" in flags or (is_launch and "use-env" not in flags)
    if passes and kind == "command":
        raise Untranslatable("a program with --no-python gets no --local-rank; add --use-env")
    return Torchrun(
        kind=kind,
        program=program,
        args=tuple(rest),
        nodes=flags.get("nnodes", "1"),
        workers_per_node=_workers(flags.get("nproc-per-node", "1")),
        max_restarts=_restarts(flags.get("max-restarts")),
        pass_local_rank=passes,
    )


def _flag(word: str, rest: Iterator[str]) -> tuple[str, str]:
    text, equals, value = word.partition("=")
    name = _SHORT.get(text) or text.removeprefix("--").replace("_", "-")
    if name in _SWITCHES and not equals:
        return name, ""
    if name not in _DROPPED | _KEPT:
        raise Untranslatable(f"torchrun's {text} has no counterpart in this service; remove it")
    if equals:
        return name, value
    try:
        return name, next(rest)
    except StopIteration:
        raise Untranslatable(f"torchrun's {text} has no value") from None


def _program_kind(flags: dict[str, str]) -> str:
    if "module" in flags and "no-python" in flags:
        raise Untranslatable("torchrun's -m and --no-python exclude each other; remove one")
    return "module" if "module" in flags else "command" if "no-python" in flags else "script"


def _workers(text: str) -> int | str:
    if text.isdecimal():
        return int(text)
    if text in WORDS:
        return text
    raise Untranslatable(f"torchrun's --nproc_per_node is {text!r}, must be a number or one of {', '.join(WORDS)}")


def _restarts(text: str | None) -> int | None:
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    raise Untranslatable(f"torchrun's --max_restarts is {text!r}, must be a number")
