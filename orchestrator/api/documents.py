"""Parse request bodies, JSON or YAML, into plain values.

YAML is read by its 1.2 core schema: `2:8` is text and not 128, `no` is text, `1e-3` is a number, a date is text.
Aliases are refused because they can expand a short text without end. Duplicate keys are refused, in JSON too. YAML may
hold fewer values than JSON, because parsing one takes a hundred times as long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from email.message import Message
from itertools import islice
from typing import Any

import yaml

from orchestrator.api.errors import HttpProblem
from orchestrator.core_schema import use_core_schema
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.specs.validation import MAX_DEPTH, MAX_NODES

_JSON = frozenset({"application/json"})
_YAML = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
MOST_YAML_EVENTS = 20_000  # parser events: one for each key and value, two for each list and mapping
# A JSON string, also one that is cut off at the end of the text, or a character that precedes a value. The possessive
# quantifiers keep the search linear.
_STRING_OR_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,|[\[{](?!\s*[\]}])', re.DOTALL)
# The parser compares each directive with all earlier ones: a body with nothing else would take minutes. The pattern
# matches at every place that YAML accepts as the beginning of a line.
_TAG_DIRECTIVE = re.compile(r"(?:\A\ufeff*|[\r\n\x85\u2028\u2029])%TAG\b")


def parse_document(raw: bytes, content_type: str | None, most_values: int = MAX_NODES) -> object:
    """Raises HttpProblem 415 for another content type, HttpProblem 400 for a body that is not UTF-8 or does not parse,
    and InvalidSpec for JSON with more than `most_values` values."""
    message = Message()
    message["content-type"] = content_type or "application/octet-stream"
    kind = message.get_content_type()
    if kind not in _JSON | _YAML:
        found = f"is {content_type!r}" if content_type else "is missing"
        raise HttpProblem("unsupported-type", f"Content-Type {found}; send application/json or application/yaml")
    text = _decode(raw)
    return parse_json(text, most_values) if kind in _JSON else parse_yaml(text)


def parse_json(text: str, most_values: int = MAX_NODES) -> object:
    _check_values(text, most_values)
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_object)
    except json.JSONDecodeError as error:
        raise HttpProblem(
            "malformed", f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise HttpProblem("malformed", "the body is nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits; the message is Python's own
        raise HttpProblem("malformed", f"the body contains a number that is too long: {error}") from error


def parse_yaml(text: str) -> object:
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise HttpProblem("malformed", f"the body is not YAML: {_one_line(error)}") from error
    except (RecursionError, ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # An explicit tag on a value of another type (`!!bool 7`) fails inside the library.
        raise HttpProblem("malformed", "the body is not YAML: a value does not fit its tag") from error


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HttpProblem(
            "malformed", f"the body is not UTF-8: byte {error.start} is {raw[error.start]:#04x}"
        ) from error
    if not text.strip():
        raise HttpProblem("malformed", "the body is empty")
    return text


def _refuse_constant(name: str) -> object:
    raise HttpProblem("malformed", f"the body contains {name}, which is not JSON")


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        duplicate = _find_duplicate([name for name, _ in pairs])
        raise HttpProblem("malformed", f"the key {duplicate!r} appears twice in one object")
    return found


def _find_duplicate(names: Sequence[str]) -> str | None:
    """Return the first repeated name. One pass, because there may be a hundred thousand names."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_values(text: str, most: int) -> None:
    """Count the values before they are parsed: a parsed value takes many times the memory of its text."""
    if sum(map(text.count, "[{,")) < most:
        return
    between = (found for found in _STRING_OR_MARK.finditer(text) if found.end() - found.start() == 1)
    if next(islice(between, most, None), None) is not None:
        raise InvalidSpec([FieldProblem("", f"holds more than {most} values")])


def _check_events(text: str) -> None:
    """Check the parser's events before any value is built."""
    if _TAG_DIRECTIVE.search(text) is not None:
        raise HttpProblem("malformed", "YAML directives (%TAG) are not accepted; write the body without them")
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if number > MOST_YAML_EVENTS:
            limit = f"the body has more than {MOST_YAML_EVENTS} keys and values, the limit for YAML"
            raise HttpProblem("too-large", f"{_place(event.start_mark)}{limit}; send it as application/json")
        if isinstance(event, yaml.AliasEvent):
            raise HttpProblem("malformed", f"{_place(event.start_mark)}YAML aliases (*) are not accepted")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH + 1:
            raise HttpProblem("malformed", "the body is nested too deeply")


class _Loader(yaml.CSafeLoader):
    """SafeLoader with the core schema. Refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        duplicate = _find_duplicate([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        if duplicate is not None:
            raise HttpProblem("malformed", f"{_place(node.start_mark)}the key {duplicate!r} appears twice")
        return super().construct_mapping(node, deep)


use_core_schema(_Loader)


def _place(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}: "


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    return " ".join(str(error).split())[:300]
