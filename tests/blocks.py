"""A stream of Server-Sent Events as its reader sees it: blocks of fields, and what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema

Block = dict[str, Any]


def parse_blocks(lines: Iterable[str]) -> Iterator[Block]:
    """By the rules of html.spec.whatwg.org, 9.2.6; a comment is no field, and a block of comments is empty."""
    block: Block = {}
    for line in lines:
        if not line:
            yield block
            block = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            assert name != "retry" or value.isdecimal(), line
            assert name not in block, f"{line!r} comes twice in one block"
            block[name] = int(value) if name == "retry" else value
    assert block == {}, "the stream ends within a block"


def schema_of_blocks(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """As the OpenAPI document states it for the stream at a path."""
    content = document["paths"][path]["get"]["responses"]["200"]["content"]
    schema: dict[str, Any] = content["text/event-stream"]["itemSchema"]
    return schema


def faults_of(block: Block, schema: Mapping[str, Any]) -> list[str]:
    """In sentences. `contentSchema` alone is a note to a validator: what it is about is read and held against it."""
    faults = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(block)]
    if "data" not in block:
        return faults
    told = schema["properties"]["data"]
    assert told["contentMediaType"] == "application/json"
    data = jsonschema.Draft202012Validator(told["contentSchema"]).iter_errors(json.loads(block["data"]))
    return faults + [f"data: {error.message}" for error in data]
