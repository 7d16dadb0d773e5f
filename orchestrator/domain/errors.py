"""Every error that this service raises on purpose, as one tree.

OrchestratorError
├── NotFound            the named thing does not exist
├── Refused             the request cannot be carried out as it is; the text says why and what to do
│   ├── InvalidSpec         fields are wrong: `problems` lists them
│   ├── LaunchRefused       the cluster will never start this: a missing folder or program
│   └── Conflict            the request contradicts what is stored (another body under one key, an ended job)
├── Unauthenticated     the caller is not known: no token, or one that is no longer valid
├── Forbidden           the caller is known and may not do this; the text says what is needed
│   └── AttemptOver         the token of an attempt that has ended
├── InvalidTransition   a state change that is no edge of its table: a bug
├── Unavailable         something outside does not answer: evidence of nothing
│   ├── BackendUnavailable
│   │   ├── BackendBusy     the cluster takes no more for now (a full queue, a limit): the job waits
│   │   └── NotPermitted    the cluster denies the service permission: nothing was done
│   ├── LeaseLost           another process supervises the cluster now
│   └── StoreUnavailable
└── ConfigurationError  the service cannot start as configured; the text says what to change
    ├── SchemaMismatch      the database is of another version
    └── AlreadyRunning      another service uses the SQLite file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class OrchestratorError(Exception):
    """Base of the tree. The text is for the caller."""


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


def own_message(message: str) -> str:
    """Return the text of an error of ours, before which pydantic writes "Value error"."""
    return message.replace("Value error, ", "", 1)
