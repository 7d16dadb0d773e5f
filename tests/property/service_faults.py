"""Faults of a service process, each scheduled before or after its Nth effect on the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ServiceCrash(BaseException):
    """The service process has crashed. Not an Exception, so that the service cannot catch it."""


class FaultKind(StrEnum):
    CRASH = "crash"  # the process ends
    ERROR = "error"  # the effect raises its usual error
    PAUSE = "pause"  # the process is paused while the world continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`after`: the effect happens first, and the service does not learn that it did."""

    countdown: int  # 1: the next effect
    after: bool
    kind: FaultKind


class Faults:
    """Counts the effects of one process and injects one fault. `pause` is called while the process is paused."""

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        self.injected: list[str] = []  # oldest first
        self._pause = pause
        self._due: Fault | None = None

    def schedule(self, fault: Fault | None) -> None:
        self._due = fault

    def wrap(self, effect: Callable[P, R], error: type[Exception]) -> Callable[P, R]:
        """Wrap an effect to inject the scheduled fault. `error` is the effect's usual error."""

        def faulty(*args: P.args, **kwargs: P.kwargs) -> R:
            fault = self._next()
            if fault is None:
                return effect(*args, **kwargs)
            name = getattr(effect, "__name__", str(effect))
            self.injected.append(f"{fault.kind} {'after' if fault.after else 'before'} {name}")
            if not fault.after:
                self._inject(fault, error)
            result = effect(*args, **kwargs)
            if fault.after:
                self._inject(fault, error)
            return result

        return faulty

    def _inject(self, fault: Fault, error: type[Exception]) -> None:
        if fault.kind is FaultKind.PAUSE:
            self._pause()
            return
        raise (ServiceCrash if fault.kind is FaultKind.CRASH else error)(f"injected {self.injected[-1]}")

    def _next(self) -> Fault | None:
        """The fault that is due now."""
        due = self._due
        if due is None:
            return None
        self._due = None if due.countdown <= 1 else replace(due, countdown=due.countdown - 1)
        return due if due.countdown <= 1 else None
