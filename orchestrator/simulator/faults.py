"""Where the service can be struck: a fault is scheduled before or after the Nth effect that it has on the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ServiceCrash(BaseException):
    """The service's process is gone. No Exception: nothing in the service may catch it and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`after`: the effect has happened, the service does not learn of it. `crash`: else the effect's own error."""

    countdown: int  # 1: the next effect
    after: bool
    crash: bool


class Faults:
    """Counts effects and strikes once."""

    def __init__(self) -> None:
        self._due: Fault | None = None
        self.struck: list[str] = []  # what was struck, oldest first

    def schedule(self, fault: Fault | None) -> None:
        self._due = fault

    def wrap(self, effect: Callable[P, R], error: type[Exception]) -> Callable[P, R]:
        """The same effect, which a scheduled fault strikes; `error` is how such an effect fails."""

        def struck(*args: P.args, **kwargs: P.kwargs) -> R:
            fault = self._next()
            if fault is None:
                return effect(*args, **kwargs)
            name = getattr(effect, "__name__", str(effect))
            self.struck.append(f"{'after' if fault.after else 'before'} {name}")
            if fault.after:
                effect(*args, **kwargs)
            raise (ServiceCrash if fault.crash else error)(f"struck {self.struck[-1]}")

        return struck

    def _next(self) -> Fault | None:
        """The fault that strikes now, if one does."""
        due = self._due
        if due is None:
            return None
        if due.countdown > 1:
            self._due = Fault(countdown=due.countdown - 1, after=due.after, crash=due.crash)
            return None
        self._due = None
        return due
