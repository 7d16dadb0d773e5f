"""docs/compatibility.md, whole, from what was run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from packaging.utils import canonicalize_name

from deploy.dev.matrix.exchange import Exchange
from deploy.dev.matrix.suites import Outcome
from deploy.dev.matrix.table import Environment

_WHY = """\
## Why these versions

The lowest version of a dependency is the lowest with which these suites pass; in them a warning is an error, also one
of another package. `pyproject.toml` declares it, and the command reads it there. The newest is what the registry served
on that day. The service needs Python 3.11; the trainer and the launcher run in their users' images and need 3.10.

torch 2.8 is the lowest because with earlier releases a part of sharded training cannot be tested without GPUs, and what
is not tested is not promised. In 2.6 FSDP2 does not run on CPUs (their streams cannot record events), a distributed
checkpoint cannot be saved outside of the group, and DistributedDataParallel always synchronises first. In 2.7 hybrid
sharding does not run on CPUs: FSDP2 asserts an event that only devices have.
"""


@dataclass(frozen=True)
class Result:
    """What was done in one environment. With a `problem` the suites that are missing were not run."""

    environment: Environment
    versions: dict[str, str]  # installed, by canonical name
    python: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    skip_reasons: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.problem is None and all(outcome.is_good for outcome in self.outcomes)


def render_page(
    results: Sequence[Result], exchanges: Sequence[Exchange], declared: Iterable[str], command: str, day: date
) -> str:
    """`declared` are the names of this project's dependencies."""
    lines = ["# Compatibility", "", f"Written by `{command}` on {day.isoformat()}: do not edit.", ""]
    lines += [*render_table(results), "", *_problems(results), _WHY, "## Snapshots", ""]
    lines += [
        "Two ranks train, and a second attempt with the other environment verifies a snapshot and trains on from it.",
        "Its losses are those of the first attempt, within one in ten thousand.",
        "",
        *render_exchanges(exchanges),
        "",
        "## Installed",
        "",
        *_versions(results, declared),
        "",
        *_skips(results),
    ]
    return "\n".join(lines).rstrip() + "\n"


def render_table(results: Sequence[Result]) -> list[str]:
    rows = ["| environment | Python | torch | suite | passed | passed alone | failed | skipped |", "|---" * 8 + "|"]
    for result in results:
        env = result.environment
        told = f"| {env.name} | {result.python or env.python} | {result.versions.get('torch', 'none')} |"
        rows += [
            f"{told} {outcome.suite} | {outcome.passed - len(outcome.again)} | {len(outcome.again)} "
            f"| {outcome.problem or len(outcome.failed)} | {outcome.skipped} |"
            for outcome in result.outcomes
        ]
        if result.problem is not None:
            rows.append(f"{told} not run: {_cell(result.problem)} | | | | |")
    return rows


def render_exchanges(exchanges: Sequence[Exchange]) -> list[str]:
    return [
        "| strategy | written by | read by | |",
        "|---|---|---|---|",
        *(
            f"| {each.strategy} | {each.writer} | {each.reader} | {_cell(each.problem or 'trained on')} |"
            for each in exchanges
        ),
    ]


def _problems(results: Sequence[Result]) -> list[str]:
    """Which tests failed, and which passed at a second try."""
    lines = []
    for result in results:
        for outcome in result.outcomes:
            lines += [f"- {result.environment.name}: `{name}` failed, twice" for name in outcome.failed]
            lines += [f"- {result.environment.name}: `{name}` passed at a second try, alone" for name in outcome.again]
    return [*lines, ""] if lines else []


def _versions(results: Sequence[Result], declared: Iterable[str]) -> list[str]:
    built = [result for result in results if result.versions]
    rows = [f"| | {' | '.join(result.environment.name for result in built)} |", "|---" * (len(built) + 1) + "|"]
    rows.append(f"| Python | {' | '.join(result.python or '' for result in built)} |")
    for name in sorted({canonicalize_name(name) for name in declared}):
        versions = [result.versions.get(name, "") for result in built]
        rows += [f"| {name} | {' | '.join(versions)} |"] if any(versions) else []
    return rows


def _skips(results: Sequence[Result]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for result in results:
        for reason in result.skip_reasons:
            reasons.setdefault(reason, []).append(result.environment.name)
    if not reasons:
        return []
    told = [f"- {_cell(reason)} ({', '.join(names)})" for reason, names in reasons.items()]
    return ["## Why tests were skipped", "", *told]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
