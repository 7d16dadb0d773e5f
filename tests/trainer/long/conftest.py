"""The options of `make trajectories`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trajectories")
    group.addoption("--whole", action="store_true", help="every case, and fp64 with 300 steps")
    group.addoption("--cases", nargs="+", metavar="NAME", help="some of them")
    group.addoption("--trials", nargs="+", choices=("fp32", "fp64", "exact"), help="some of them")
    group.addoption("--steps", type=int, help="of every training, instead of the trial's own number")
