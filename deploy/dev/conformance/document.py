"""What the OpenAPI document and the service's own numbers tell beside Schemathesis. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

_COUNTED = re.compile(
    r'^orchestrator_requests_total\{method="([A-Z]+)",route="([^"]+)",status="2\d\d"\} (\S+)$', re.MULTILINE
)
_ASKED_BY_US = ("GET", "/metrics")


def unknown_parameters(document: Mapping[str, Any], known: Container[str]) -> list[str]:
    """Parameters of paths without a value that leads somewhere: nothing would be proved behind them."""
    names = {part[1:-1] for path in document["paths"] for part in path.split("/") if part.startswith("{")}
    return sorted(name for name in names if name not in known)


def closed_operations(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Those that take a token, by method and path; but for the one that tells how often each was answered."""
    return {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "security" in operation
    } - {_ASKED_BY_US}


def count_good_answers(metrics: str) -> Counter[tuple[str, str]]:
    """Answers of 2xx by method and path, from Prometheus' text."""
    counted: Counter[tuple[str, str]] = Counter()
    for method, path, value in _COUNTED.findall(metrics):
        counted[method, path] += int(float(value))
    return counted
