"""Every error that this service raises on purpose, as one tree.

OrchestratorError
├── NotFound            what was named does not exist
├── Refused             the request cannot be done as it stands; the text says why and what to do
│   ├── InvalidSpec         fields are wrong: `problems` lists pointer and message
│   ├── LaunchRefused       the cluster will never start this: a missing folder or program
│   └── Conflict            it contradicts what is there (another body under one key, a terminal job)
├── Unauthenticated     who asks is not known: no token, or one that does not hold any more
├── Forbidden           who asks is known and may not do this; the text says what it takes
│   └── AttemptOver         the token of an attempt that has ended
├── InvalidTransition   a state was asked to change along no edge of its table: a bug
├── Unavailable         something outside does not answer: evidence of nothing
│   ├── BackendUnavailable
│   │   ├── BackendBusy     it answers that it takes no more for now: a full queue, a limit; waiting, not failure
│   │   └── NotPermitted    it answers that the service has no right to this: what was asked for was not done
│   ├── LeaseLost           another process supervises the cluster now
│   └── StoreUnavailable
└── ConfigurationError  the service cannot start as configured; the text says what to change
    ├── SchemaMismatch      the database is of another version
    └── AlreadyRunning      another service holds the SQLite file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class OrchestratorError(Exception):
    """Base of the tree. The text is for the person who asked."""


class NotFound(OrchestratorError):
    pass


class Refused(OrchestratorError):
    pass


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong field: `pointer` is a JSON pointer into the request body (RFC 6901)."""

    pointer: str
    message: str


class InvalidSpec(Refused):
    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        super().__init__("; ".join(f"{problem.pointer}: {problem.message}" for problem in problems))
        self.problems = tuple(problems)


class LaunchRefused(Refused):
    pass


class Conflict(Refused):
    pass


class Unauthenticated(OrchestratorError):
    pass


class Forbidden(OrchestratorError):
    pass


class AttemptOver(Forbidden):
    pass


class InvalidTransition(OrchestratorError):
    pass


class Unavailable(OrchestratorError):
    pass


class BackendUnavailable(Unavailable):
    pass


class BackendBusy(BackendUnavailable):
    pass


class NotPermitted(BackendUnavailable):
    pass


class LeaseLost(Unavailable):
    pass


class StoreUnavailable(Unavailable):
    pass


class ConfigurationError(OrchestratorError):
    pass


class SchemaMismatch(ConfigurationError):
    pass


class AlreadyRunning(ConfigurationError):
    pass
