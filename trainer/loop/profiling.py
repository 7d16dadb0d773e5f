"""Profile a window of steps with torch.profiler: a trace of each rank, and the fraction of communication.

A profile never ends a run: a failure is reported, and training continues without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from trainer.loop.intervals import Span, covered, uncovered

_LEAVES_WITHIN_S = 60.0  # the thread that writes a trace, at the end of training


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Fractions of the window: with a collective in progress, and with nothing else in progress."""

    communication: float
    exposed: float


class Profiler:
    """`window` is the first and the last step.

    Once the trace is written, `done` gets the profile and its path, in a thread. `failed` gets a reason.
    """

    def __init__(
        self,
        window: tuple[int, int] | None,
        path: Path,
        done: Callable[[Profile, Path], None],
        failed: Callable[[str], None],
    ) -> None:
        self._window, self._path, self._done, self._failed = window, path, done, failed
        self._profile: profile | None = None
        self._thread: threading.Thread | None = None

    def before(self, step: int) -> None:
        """Step `step`, from 1, is about to begin."""
        if self._window is not None and self._profile is None and self._window[0] <= step <= self._window[1]:
            self._try(self._start)

    def after(self, step: int) -> None:
        if self._profile is not None and self._window is not None and step >= self._window[1]:
            self._try(self._stop)

    def close(self) -> None:
        """Write what was profiled so far: training ends."""
        if self._profile is not None:
            self._try(self._stop)
        if self._thread is not None:
            self._thread.join(_LEAVES_WITHIN_S)

    def discard(self) -> None:
        """Stop without a trace: torch would record until this process ends."""
        if self._profile is not None:
            self._try(self._profile.stop)
            self._profile = self._window = None

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def _stop(self) -> None:
        taken, self._profile, self._window = self._profile, None, None
        assert taken is not None
        taken.stop()
        self._thread = threading.Thread(target=self._try, args=(lambda: self._write(taken),), name="profile")
        self._thread.daemon = True
        self._thread.start()

    def _write(self, taken: profile) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        taken.export_chrome_trace(str(self._path))
        self._done(measure(taken), self._path)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # no profile is worth a run
            self._window = self._profile = None
            self._failed(f"no profile of this rank: {type(error).__name__}: {error}")


def measure(taken: profile) -> Profile:
    """On a GPU from its kernels (NCCL's and others), on a CPU from gloo's events and torch's operations."""
    events = taken.events() or []  # type: ignore[no-untyped-call]
    on_device = [event for event in events if event.device_type == DeviceType.CUDA]
    exchanging: list[Span] = []
    computing: list[Span] = []
    for event in on_device or events:
        span = (float(event.time_range.start), float(event.time_range.end))
        if event.name.startswith(("nccl", "gloo:")):
            exchanging.append(span)
        elif on_device or event.name.startswith("aten::"):
            computing.append(span)
    ends = [(event.time_range.start, event.time_range.end) for event in events]
    whole = max((end for _, end in ends), default=0) - min((begin for begin, _ in ends), default=0)
    if not whole > 0:
        raise ValueError("it holds no events")
    return Profile(communication=covered(exchanging) / whole, exposed=uncovered(exchanging, by=computing) / whole)
