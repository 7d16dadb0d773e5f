"""The forms of names, and what a wrong value of a field must be. pydantic's own words name types of Python. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.domain.errors import own_message

COLLECTOR_URL = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"
CURRENCY = r"^[A-Z]{3}$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
EVENT_ID = r"^[0-9]{1,18}$"
GRANTED_PROJECT = r"^(?:\*|[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)$"
HEADER_NAME = r"^[A-Za-z][A-Za-z0-9-]{0,62}$"
IDEMPOTENCY_KEY = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"
LABEL = r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,62}$"
MODULE = r"^[A-Za-z_][A-Za-z0-9_.]{0,255}$"
NAME = r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"
SWEEP_KEY = r"^(-[^\s=]{1,100}|[a-z_]+(\.[A-Za-z0-9_/-]{1,128}){0,6})$"
TOKEN_NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._@+-]*$"
WEBHOOK_NAME = r"^[a-z0-9-]{1,63}$"

_FORMS = {
    COLLECTOR_URL: "must be a URL with http or https and without user, query and fragment",
    CURRENCY: "must be three capital letters, such as USD",
    ENV_NAME: "must have 1 to 128 letters, digits and underscores, and begin with a letter or an underscore",
    EVENT_ID: "must be the id of an event",
    GRANTED_PROJECT: "must be the name of a project, or *",
    HEADER_NAME: "must have 1 to 63 letters, digits and hyphens, and begin with a letter",
    IDEMPOTENCY_KEY: "must have only visible ASCII characters",
    LABEL: "must have 1 to 63 letters, digits and characters of _./- and begin with a letter or a digit",
    MODULE: "must be the name of a Python module, such as pkg.train",
    NAME: "must have 1 to 63 lower-case letters, digits and hyphens, and begin and end with a letter or a digit",
    SWEEP_KEY: "must be an option of the script, such as --lr, or a field of the job, such as run.env.NAME",
    TOKEN_NAME: "must have letters, digits, spaces and characters of ._@+- and begin with a letter or a digit",
    WEBHOOK_NAME: "must have 1 to 63 lower-case letters, digits and hyphens",
}
# By pydantic's type of the error. Others are rare, and their words are changed a little.
_RULES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be an object"),
    **dict.fromkeys(("enum", "literal_error"), "must be {expected}"),
    "extra_forbidden": "is not a known field",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "missing": "is required",
    "none_required": "must be null",
    "path_type": "must be a path",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have {min_length} or more characters",
    "string_type": "must be text",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have {min_length} or more entries",
    "union_tag_invalid": "must have {discriminator} with one of {expected_tags}",
    "union_tag_not_found": "must have {discriminator}",
}


def describe_rule(detail: Mapping[str, Any]) -> str:
    """Return what the value must be, from one of the `errors()` of a ValidationError."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], "has a form that is not allowed")
    if kind in _RULES:
        return _RULES[kind].format_map({name: _plain(value) for name, value in context.items()})
    if kind == "value_error":  # an error of ours, which may begin with a variable's name
        return own_message(detail["msg"])
    rule = re.sub(r"^\w+ should ", "must ", detail["msg"])
    return f"{rule[:1].lower()}{rule[1:]}"


def _plain(value: object) -> object:
    return f"{value:.15g}" if isinstance(value, float) else value
