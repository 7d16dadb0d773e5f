"""The core schema of YAML 1.2 (yaml.org/spec/1.2.2, section 10.3). The service and the CLI read specs with it.

PyYAML implements YAML 1.1, in which `2:8` is 128, `no` is false and `1e-3` is text.
"""

from __future__ import annotations

import re
import sys

import yaml

_TAG = "tag:yaml.org,2002:"
_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
)


def use_core_schema(loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> None:
    """Change the class to resolve plain scalars as YAML 1.2 does."""
    loader.yaml_implicit_resolvers = {}  # none of version 1.1
    for kind, pattern, first in _SCHEMA:
        loader.add_implicit_resolver(f"{_TAG}{kind}", re.compile(rf"^(?:{pattern})$"), first)
    loader.add_constructor(f"{_TAG}int", _construct_int)


def _construct_int(_: yaml.SafeLoader | yaml.CSafeLoader, node: yaml.ScalarNode) -> int:
    """Raises ValueError for an integer of thousands of digits in any base, which Python cannot print."""
    text = str(node.value).removeprefix("+")
    if len(text) > sys.int_info.default_max_str_digits:
        raise ValueError("an integer of thousands of digits")
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
