"""Make text of jobs safe for a terminal, so that it cannot move the cursor or change its order. Pure.

Hidden characters are control characters (C0 but line ends and tabs, DEL, C1), format characters (bidirectional ones,
zero-width ones, tags), separators of lines and paragraphs, and lone surrogates, which cannot be encoded.
"""

from __future__ import annotations

import json
import re

# Unicode 16, general categories Cc, Cf, Zl, Zp and Cs, without line end and tab.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
COLOR = re.compile(r"\x1b\[[0-9;:]*m")  # ECMA-48, SGR: training scripts print them
_BREAKS = re.compile(r"\r\n?")  # a progress bar returns to the beginning of its line


def clean(text: str) -> str:
    """Remove colors and replace every other hidden character by U+FFFD."""
    return HIDDEN.sub("\N{REPLACEMENT CHARACTER}", _BREAKS.sub("\n", COLOR.sub("", text)))


def clean_line(text: str) -> str:
    """Clean text and put it on one line without tabs, so that a value cannot imitate the next value or column."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def dump_json(document: object, *, indent: int | None = None) -> str:
    """Render JSON with only hidden characters escaped."""
    return HIDDEN.sub(_escape, json.dumps(document, indent=indent, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    """`json.dumps` leaves U+007F as it is."""
    return json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f")
