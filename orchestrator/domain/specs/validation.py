"""Validate a plain document, from JSON or YAML, and name each wrong field by its JSON pointer."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.field_rules import describe_rule
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.config import ConfigError
from trainer.contract.near_misses import advise_value

Model = TypeVar("Model", bound=BaseModel)
_Place = tuple["_Place | None", object]  # the enclosing place, and the key or index in it

MAX_DEPTH = 32
MAX_NODES = 200_000
MOST_PROBLEMS = 100  # problems that are listed one by one
_MOST_BUILT = 10_000  # problems; pydantic builds all or none, and each takes half a kilobyte
MOST_LEAVES = 50  # fields of a patch that are listed
_FOUND_LENGTH = 80


def parse_spec(document: object, *, prefix: str = "") -> JobSpec:
    """Raises InvalidSpec; its pointers start with `prefix`."""
    return parse_model(JobSpec, document, prefix=prefix)


def parse_model(model: type[Model], document: object, *, prefix: str = "") -> Model:
    """Validate a document. Raises InvalidSpec with one problem for each wrong field."""
    problems = check_plain(document, prefix=prefix)
    if problems:
        raise InvalidSpec(problems)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        if error.error_count() > _MOST_BUILT:
            raise InvalidSpec([FieldProblem(prefix, f"holds {error.error_count()} wrong fields")]) from None
        first = islice(error.errors(), MOST_PROBLEMS)
        problems = _merged(problem for detail in first for problem in _problems(detail, document, prefix))
        more = error.error_count() - MOST_PROBLEMS
        rest = [FieldProblem(prefix, f"holds {more} more wrong fields")] if more > 0 else []
        raise InvalidSpec([*problems, *rest]) from error


def check_plain(document: object, *, prefix: str = "") -> list[FieldProblem]:
    """Find what no document may contain: integers of more than 64 bits, invalid Unicode, types that JSON lacks.

    Stops at the first problem. Does not recurse, so a deep document does no harm.
    """
    # Places are chains, not strings: below one long key there may be a hundred thousand values.
    stack: list[tuple[object, _Place | None, int]] = [(document, None, 0)]
    count = 1
    while stack:
        value, place, depth = stack.pop()
        message = _not_plain(value, depth)
        if message is not None:
            return [FieldProblem(prefix + _render_place(place), message)]
        count += len(value) if isinstance(value, (Mapping, list)) else 0
        if count > MAX_NODES:  # before their places are built, which would take half a gigabyte
            return [FieldProblem(prefix, f"holds more than {MAX_NODES} values")]
        stack.extend((child, (place, key), depth + 1) for key, child in _children(value))
    return []


def pointer_to(parts: Sequence[object]) -> str:
    """Render a JSON pointer (RFC 6901)."""
    return "".join(_token(part) for part in parts)


def merge_patch(target: object, patch: object) -> object:
    """Apply a JSON merge patch (RFC 7396); neither argument is changed."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def leaves(patch: object) -> list[str]:
    """List the pointers of the first fields that a merge patch sets, for people. Long parts are cut."""
    return list(islice(_leaves(patch, ""), MOST_LEAVES))


def _leaves(patch: object, pointer: str) -> Iterator[str]:
    if not isinstance(patch, Mapping) or not patch:
        yield pointer
        return
    for key, value in patch.items():
        yield from _leaves(value, pointer + _token(str(key)[:_FOUND_LENGTH]))


def _not_plain(value: object, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, Mapping):
        bad = next((key for key in value if not isinstance(key, str) or _torn(key)), None)
        return None if bad is None else f"has the key {bad!r}, which is not text; quote it"
    if isinstance(value, str):
        return "contains a lone surrogate, which is not valid text" if _torn(value) else None
    if value is None or isinstance(value, (bool, list)):
        return None
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else "is an integer of more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}, must be a finite number"
    return f"is a {type(value).__name__}, must be text, a number, true, false, null, a list or an object"


def _children(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def _render_place(place: _Place | None) -> str:
    parts: list[object] = []
    while place is not None:
        place, part = place
        parts.append(part)
    return pointer_to(parts[::-1])


def _torn(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _problems(detail: Mapping[str, Any], document: object, prefix: str) -> Iterator[FieldProblem]:
    cause = detail.get("ctx", {}).get("error")
    if not isinstance(cause, ConfigError):
        yield _problem(detail, document, prefix)
        return
    pointer = prefix + _pointer_into(document, detail["loc"], missing=False)
    for each in (cause, *cause.others):
        yield FieldProblem(pointer + _token(each.field), each.own_message)


def _problem(detail: Mapping[str, Any], document: object, prefix: str) -> FieldProblem:
    pointer = prefix + _pointer_into(document, detail["loc"], missing=detail["type"] == "missing")
    cause = detail.get("ctx", {}).get("error")
    if detail["type"] == "extra_forbidden" and detail["loc"] == ("sweep",):
        return FieldProblem(pointer, "makes an array of jobs; send it to /api/v1/arrays, or use `orchestrator submit`")
    if detail["type"] == "extra_forbidden":
        return FieldProblem(pointer, f"is not a known field{_suggestion(detail['loc'])}")
    if detail["type"] == "missing" or cause is not None:  # an error of ours says what was found
        return FieldProblem(pointer, describe_rule(detail))
    meant = advise_value(str(detail["input"]), _names_in(detail)) if isinstance(detail["input"], str) else ""
    return FieldProblem(pointer, f"{describe_rule(detail)}{_found(detail['input'])}{meant}")


def _names_in(detail: Mapping[str, Any]) -> list[str]:
    """The values that an enumerated field accepts, as pydantic quotes them."""
    return re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))


def _suggestion(location: Sequence[object]) -> str:
    """Return a hint to the field of the spec that was probably meant."""
    model: type[BaseModel] = JobSpec
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return ""
        model = field.annotation
    known = [field.alias or name for name, field in model.model_fields.items() if name != "array"]
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; there are {', '.join(known)}"


def _found(value: object) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return f", found {'an object' if isinstance(value, Mapping) else 'a list'}"
    text = "null" if value is None else repr(value)
    return f", found {text}" if len(text) <= _FOUND_LENGTH else f", found {text[:_FOUND_LENGTH]}..."


def _pointer_into(document: object, location: Sequence[object], *, missing: bool) -> str:
    """Render pydantic's location without the tags of unions and keys, which are not part of the document."""
    pointer = ""
    here = document
    for index, part in enumerate(location):
        if _holds(here, part):
            here = here[part]  # type: ignore[index]  # _holds says that it can be indexed
        elif not (missing and index == len(location) - 1):
            continue
        pointer += _token(part)
    return pointer


def _holds(container: object, part: object) -> bool:
    if isinstance(container, list):
        return isinstance(part, int) and part < len(container)
    return isinstance(container, Mapping) and part in container


def _token(part: object) -> str:
    return "/" + str(part).replace("~", "~0").replace("/", "~1")


def _merged(problems: Iterator[FieldProblem]) -> list[FieldProblem]:
    """Return one problem for each pointer: each branch of a union reports its own."""
    messages: dict[str, list[str]] = {}
    for problem in problems:
        messages.setdefault(problem.pointer, []).append(problem.message)
    return [FieldProblem(pointer, "; or ".join(dict.fromkeys(texts))) for pointer, texts in messages.items()]
