"""Checks of the OpenAPI document and of the service's metrics that complement Schemathesis.

Schemathesis would wait for the end of a streamed answer. These checks read only its beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import Any

import httpx

MEDIA_TYPE = "text/event-stream"
_WORDS = ("", "0", "1", "-1", "999999999999999999", "1" * 19, "x", "0x1", "1e3", "'", "1,2", "1 2")
_ANSWER_S = 30.0
_COUNTED = re.compile(
    r'^orchestrator_requests_total\{method="([A-Z]+)",route="([^"]+)",status="2\d\d"\} (\S+)$', re.MULTILINE
)
_ASKED_BY_US = ("GET", "/metrics")


def streaming_paths(document: Mapping[str, Any]) -> list[str]:
    """The paths that answer with a stream."""
    return [
        path
        for path, operations in document["paths"].items()
        if MEDIA_TYPE in operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    ]


def prove_streams(
    url: str, token: str | None, document: Mapping[str, Any], known: Mapping[str, list[str]]
) -> list[str]:
    """The faults of all streams, in sentences."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    wrong = []
    with httpx.Client(base_url=url, headers=headers, timeout=_ANSWER_S) as client:
        for path in streaming_paths(document):
            operation = document["paths"][path]["get"]
            for address, more in requests_for(path, operation, known):
                with client.stream("GET", address, headers=more) as answer:
                    fault = fault_of(answer, operation)
                if fault is not None:
                    wrong.append(f"GET {address} with {more}: {fault}")
    return wrong


def requests_for(
    path: str, operation: Mapping[str, Any], known: Mapping[str, list[str]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Addresses and headers: each known value and an unknown one in the path, and each word in each header."""
    addresses = [path]
    for name in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
        values = [*known.get(name, ()), "nothing-of-that-name"]
        addresses = [address.replace(f"{{{name}}}", value) for address in addresses for value in values]
    names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "header"]
    for address in addresses:
        yield address, {}
        yield f"{address}?unknown=1", {}
        for name in names:
            for word in _WORDS:
                yield address, {name: word}


def fault_of(answer: httpx.Response, operation: Mapping[str, Any]) -> str | None:
    if answer.status_code >= 500:
        return f"answered {answer.status_code}"
    documented = operation["responses"].get(str(answer.status_code))
    if documented is None:
        return f"answered {answer.status_code}, which is not documented"
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind not in documented.get("content", {}):
        return f"answered {answer.status_code} with {kind}, which is not documented"
    if kind == MEDIA_TYPE and not next(answer.iter_lines(), "").startswith(("retry:", "id:", ":", "event:")):
        return "does not begin with a line of an event stream"
    return None


def unknown_parameters(document: Mapping[str, Any], known: Container[str]) -> list[str]:
    """Path parameters without a known value: requests with them would all get 404."""
    names = {part[1:-1] for path in document["paths"] for part in path.split("/") if part.startswith("{")}
    return sorted(name for name in names if name not in known)


def closed_operations(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The operations that need a token, by method and path, except the one that has the metrics."""
    return {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "security" in operation
    } - {_ASKED_BY_US}


def count_good_answers(metrics: str) -> Counter[tuple[str, str]]:
    """The number of 2xx answers by method and path, from the metrics."""
    counted: Counter[tuple[str, str]] = Counter()
    for method, path, value in _COUNTED.findall(metrics):
        counted[method, path] += int(float(value))
    return counted
