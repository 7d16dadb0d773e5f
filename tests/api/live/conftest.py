"""The options of `make test-api`."""

from __future__ import annotations

import os

import pytest

ROLES = ("admin", "operator", "submitter", "viewer", "worker", "nobody")
DATABASES = ("sqlite", "postgres")


def pytest_addoption(parser: pytest.Parser) -> None:
    examples = int(os.environ.get("CONFORMANCE_EXAMPLES", "10"))
    group = parser.getgroup("conformance")
    group.addoption("--examples", type=int, default=examples, help="for each operation, or CONFORMANCE_EXAMPLES")
    group.addoption("--databases", nargs="+", choices=DATABASES, default=DATABASES)
    group.addoption("--roles", nargs="+", choices=ROLES, default=ROLES)
    group.addoption("--coverage", action="store_true", help="each boundary of each field too: minutes")
    group.addoption("--seed", type=int, help="repeats what was generated")
    group.addoption("--only", help="a regular expression of paths")
