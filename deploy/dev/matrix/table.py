"""Which environments are tried, and which suites in each. Pure.

The lowest versions are read from pyproject.toml: a declared bound is a release that exists, and with which the suites
pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from packaging.requirements import Requirement


class Level(StrEnum):
    LOWEST = "lowest"  # every dependency at its declared bound
    PINNED = "pinned"  # constraints.txt, with which CI runs
    NEWEST = "newest"  # whatever the registry serves today


@dataclass(frozen=True)
class Suite:
    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    name: str
    python: str
    level: Level
    extras: tuple[str, ...]  # of this project
    tools: tuple[str, ...]  # what its tests need besides, always the newest that the rest allows
    suites: tuple[Suite, ...]
    smoke: tuple[Suite, ...] = ()  # what --smoke runs instead; without one the environment is left out
    exchanges: bool = False  # whether it writes snapshots and reads those of others


class UnclearBound(Exception):
    """A requirement from which no lowest version can be read; the text quotes it."""


_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
_TRAINER, _SERVICE = ("trainer", "s3", "tensorboard"), ("service", "otel", "postgres", "kubernetes", "torchx")
_ELASTIC = Suite("launcher", ("tests/elastic",))
_SNAPSHOTS = Suite(  # beside those in tests/trainer: whole runs, which tests/trainer/long has
    "snapshots",
    (
        "tests/trainer/long/test_async_snapshots.py",
        "tests/trainer/long/test_snapshot_exchange.py",
        "tests/trainer/long/test_strategies.py",
    ),
)
_TRAINING = Suite(
    "trainer", ("tests/trainer", "tests/unit/test_contract_documents.py", "tests/unit/test_contract_failure.py")
)
_SMOKE = Suite(
    "smoke",
    (
        "tests/elastic/test_flags.py",
        "tests/elastic/test_agent_end_to_end.py::test_every_killed_worker_recovers_and_the_generation_rises",
        "tests/trainer/test_reading.py",
        "tests/trainer/test_sharding.py",
    ),
)
_SERVICE_TESTS = Suite(
    "service",
    tuple(
        f"tests/{folder}"
        for folder in (
            "unit",
            "store",
            "api",
            "cli",
            "client",
            "contract",
            "dashboard",
            "identity",
            "kubernetes",
            "outbox",
            "property",
            "simulator",
            "slurm/test_render.py",
            "telemetry",
        )
    ),
)
_TRAINER_SUITES = (_ELASTIC, _SNAPSHOTS, _TRAINING)


def _trainer(name: str, python: str, level: Level, smoke: tuple[Suite, ...] = ()) -> Environment:
    return Environment(name, python, level, _TRAINER, _TOOLS, _TRAINER_SUITES, smoke, exchanges=True)


def _service(name: str, python: str, level: Level) -> Environment:
    return Environment(name, python, level, _SERVICE, (*_TOOLS, "jsonschema", "kubernetes-validate"), (_SERVICE_TESTS,))


# The first one that exchanges snapshots stays until the last has: the two read each other's.
ENVIRONMENTS = (
    _service("service-lowest", "3.11", Level.LOWEST),
    _service("service-pinned", "3.12", Level.PINNED),
    _service("service-newest", "3.13", Level.NEWEST),
    _trainer("lowest", "3.10", Level.LOWEST, (_SMOKE,)),
    _trainer("pinned", "3.11", Level.PINNED),
    _trainer("middle", "3.12", Level.PINNED),
    _trainer("newest", "3.13", Level.NEWEST, (_SMOKE,)),
)


def requirements_of(pyproject: Mapping[str, Any], extras: Iterable[str]) -> list[Requirement]:
    """What the extras of this project ask for."""
    declared = pyproject["project"]["optional-dependencies"]
    return [Requirement(text) for extra in extras for text in declared[extra]]


def lowest_versions(requirements: Iterable[Requirement]) -> list[str]:
    """Lines of a constraints file that takes each requirement at its bound. Raises UnclearBound."""
    return sorted({_lowest(requirement) for requirement in requirements})


def _lowest(requirement: Requirement) -> str:
    bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    if len(bounds) != 1:
        raise UnclearBound(f"{requirement} declares {len(bounds) or 'no'} lowest versions; give it one, as in >=1.2.3")
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={bounds[0]}{marker}"
