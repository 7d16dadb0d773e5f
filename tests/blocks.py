"""Parse and check a stream of Server-Sent Events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema

Block = dict[str, Any]


def parse_blocks(lines: Iterable[str]) -> Iterator[Block]:
    """Parse a stream (html.spec.whatwg.org, 9.2.6). A comment is no field, so a block of comments is empty."""
    block: Block = {}
    for line in lines:
        if not line:
            yield block
            block = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            assert name != "retry" or value.isdecimal(), line
            assert name not in block, f"{line!r} is twice in one block"
            block[name] = int(value) if name == "retry" else value
    assert block == {}, "the stream ends within a block"


def schema_of_blocks(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The schema of the stream at a path in the OpenAPI document."""
    content = document["paths"][path]["get"]["responses"]["200"]["content"]
    schema: dict[str, Any] = content["text/event-stream"]["itemSchema"]
    return schema


def faults_of(block: Block, schema: Mapping[str, Any]) -> list[str]:
    """The violations of the schema. Validators only annotate `contentSchema`, so the data is validated separately."""
    faults = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(block)]
    if "data" not in block:
        return faults
    declared = schema["properties"]["data"]
    assert declared["contentMediaType"] == "application/json"
    data = jsonschema.Draft202012Validator(declared["contentSchema"]).iter_errors(json.loads(block["data"]))
    return faults + [f"data: {error.message}" for error in data]
