"""Who may commit, and which snapshots count: pure rules over terms and manifests.

A *term* is one generation of one attempt. Its first act is to create `fence/a<attempt>-g<generation>.json` exclusively;
the supervisor creates generation 0 of the next attempt before it cancels the present one. A worker refuses to commit
once a higher term exists. On shared storage that check can race with the commit, so a late commit must also be
harmless: each term records the step that it restored, and readers ignore whatever an older term wrote beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"a([0-9]{1,18})-g([0-9]{1,18})\.json\Z")


@dataclass(frozen=True, order=True)
class Term:
    attempt: int
    generation: int

    @property
    def file_name(self) -> str:
        return f"a{self.attempt:05d}-g{self.generation:05d}.json"


@dataclass(frozen=True, kw_only=True)
class TermRecord:
    """A term and the step it continued from; None while it has not chosen (generation 0 never does).

    `retry` is how many retries the job's owner had requested by then.
    """

    term: Term
    base_step: int | None
    retry: int = 0


def parse_term(file_name: str) -> Term | None:
    """The term of a file in the fence folder, or None for any other file."""
    match = _NAME.match(file_name)
    return None if match is None else Term(int(match[1]), int(match[2]))


def may_commit(mine: Term, terms: Iterable[Term]) -> bool:
    """True while no higher term has begun."""
    return all(term <= mine for term in terms)


def bound_of(term: Term, records: Sequence[TermRecord]) -> int | None:
    """The newest step of `term` that still counts: the least base of all later terms, None for no bound."""
    bases = [record.base_step for record in records if record.term > term and record.base_step is not None]
    return min(bases) if bases else None


def counts(term: Term, step: int, records: Sequence[TermRecord]) -> bool:
    """Whether a snapshot that `term` committed at `step` is on the job's lineage."""
    bound = bound_of(term, records)
    return bound is None or step <= bound
