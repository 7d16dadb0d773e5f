"""What a pod prints: lines of its workers' logs, `[i1 g2 local-0] text`, and samples, `[i1 resources] {...}`. Pure.

The prefix tells readers of the container's output (kubectl logs, the service) which worker printed the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(rb"\[i([0-9]{1,6}) g([0-9]{1,6}) local-([0-9]{1,4})\] ?")
_SAMPLE = re.compile(rb"\[i([0-9]{1,6}) resources\] (?=\{)")


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """A worker of one replica, in one incarnation of its agent."""

    incarnation: int
    generation: int
    local_rank: int


def render_printed(writer: Writer, text: bytes) -> bytes:
    """`text` is one line without its end."""
    return b"[i%d g%d local-%d] %s" % (writer.incarnation, writer.generation, writer.local_rank, text)


def parse_printed(line: bytes) -> tuple[Writer, bytes] | None:
    """The writer and the text; None for a line of the agent itself."""
    match = _MARK.match(line)
    if match is None:
        return None
    return Writer(int(match[1]), int(match[2]), int(match[3])), line[match.end() :]


def render_printed_sample(incarnation: int, line: bytes) -> bytes:
    """`line` is one line of `resources.jsonl` without its end."""
    return b"[i%d resources] %s" % (incarnation, line)


def parse_printed_sample(line: bytes) -> tuple[int, bytes] | None:
    """The incarnation and the line of `resources.jsonl`. None for any other line."""
    match = _SAMPLE.match(line)
    return None if match is None else (int(match[1]), line[match.end() :])
