"""Find the part of a program's output that says why it ended. Pure.

The frames of a traceback are left out: they quote source code, which may contain the text of any error.
"""

from __future__ import annotations

import re

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_LIMIT = 16 * 1024  # characters
_FRAME = re.compile(r'[ |]*File "')  # CPython: Lib/traceback.py. Exception groups print the bars
_NOTE = re.compile(r"  \[(\d{1,9}) lines? left out\]")
_NOTE_LENGTH = 30  # at most, for less than a billion lines
_LAST_LINES = 10  # of output without a traceback: enough for what a native program prints when it ends
_CHAINED = re.compile(r"^(The above exception was the direct cause|During handling of the above exception)")
_NATIVE_FRAME = re.compile(r"^\s*(frame )?#\d+:? ")  # of c10's and gdb's backtraces
# What nanobind, with which triton is bound, reports when the interpreter ends (nanobind's src/nb_internals.cpp).
_LEAKS = re.compile(r"^(nanobind: | - leaked | - \.\.\. skipped remainder|See https://nanobind\.)")
_FAULTHANDLER = "Fatal Python error"  # followed by the stacks of all threads


def find_final_messages(output: str) -> tuple[str, ...]:
    """The texts that may say why a program ended, the best first.

    With a traceback: the message of its last exception, then those of the exceptions that it is chained to. Without
    one: the last lines, without native stack frames, faulthandler's stacks and reports of leaked objects.
    """
    if TRACEBACK in output:
        messages = [_message(part) for part in output.split(TRACEBACK)[1:]]
        return tuple(message for message in reversed(messages) if message)
    lines = [line for line in output.partition(_FAULTHANDLER)[0].splitlines() if line.strip()]
    kept = [line for line in lines if not _NATIVE_FRAME.match(line) and not _LEAKS.match(line)]
    return ("\n".join(kept[-_LAST_LINES:]),) if kept else ()


def cut_traceback(text: str, *, limit: int = TRACEBACK_LIMIT, most_lines: int = TRACEBACK_LIMIT) -> str:
    """Cut a traceback to at most `limit` characters and `most_lines` lines, before one of its frames.

    The innermost frames and the message are kept, and a note says how many lines are left out. If they do not fit, the
    end of the text is kept.
    """
    lines = text.splitlines()
    if len(text) <= limit and len(lines) <= most_lines:
        return text
    room, start = limit - len(TRACEBACK) - _NOTE_LENGTH, None
    for place in range(len(lines) - 1, max(0, len(lines) - most_lines + 1), -1):
        room -= len(lines[place]) + 1
        if room < 0:
            break
        if _FRAME.match(lines[place]):
            start = place
    if start is None:
        return "\n".join(lines[-most_lines:])[-limit:]
    before = lines[:start]
    noted = next((int(note[1]) - 1 for note in map(_NOTE.fullmatch, before) if note), 0)
    count = len(before) - 1 + noted
    return "\n".join([TRACEBACK, f"  [{count} line{'s' if count != 1 else ''} left out]", *lines[start:]])


def _message(part: str) -> str:
    """The text after the frames of a traceback, up to a blank line or the sentence that chains it to the next one."""
    lines = part.splitlines()[1:]
    start = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith((" ", "\t"))), len(lines))
    rest = lines[start:]
    end = next((i for i, line in enumerate(rest) if i and (not line.strip() or _CHAINED.match(line))), len(rest))
    return "\n".join(line for line in rest[:end] if not _NATIVE_FRAME.match(line))
