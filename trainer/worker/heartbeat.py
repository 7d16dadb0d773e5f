"""This worker's reports: lines in `progress.jsonl` and `events.jsonl`, and sometimes one on stdout.

A line is one write to a file opened for appending, so the lines of several workers do not mix. Reporting never ends a
run: on a full disk lines are lost and training continues.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

from trainer.contract import layout
from trainer.contract.clock import render_time
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind, JournalEvent, render_journal_event
from trainer.contract.progress import Phase, Progress, render_progress
from trainer.worker.usage import Usage

Listener = Callable[[int, dict[str, float]], None]
_PRINT_EVERY_S = 2.0
_UNITS = ("tokens", "samples")
_LOSSES = ("loss", "evaluation_loss")


class Heartbeat:
    current: ClassVar[Heartbeat | None] = None  # the newest of this process, for measurements from other code

    def __init__(self, place: WorkerPlace, total_steps: int | None, phase: Phase = Phase.START) -> None:
        Heartbeat.current = self
        self._place = place
        self._total_steps = total_steps
        folder = None if place.replica_dir is None else Path(place.replica_dir)
        self._progress = None if folder is None else Journal(folder / layout.PROGRESS)
        self._events = None if folder is None else Journal(folder / layout.EVENTS)
        self._printed_at = float("-inf")
        self._usage = Usage()
        self._phase = phase
        self._step: int | None = None
        self._measured: tuple[int | None, dict[str, float]] = None, {}  # of the newest step
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Pass the metrics of each step and evaluation to `listener`, too."""
        self._listeners.append(listener)

    def forget(self, listener: Listener) -> None:
        """Undo `listen`. A listener must not keep a whole run in memory."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def beat(self, phase: Phase, step: int | None = None, metrics: dict[str, float] | None = None) -> None:
        """Report the current phase. `step` counts completed steps, None if unchanged."""
        self._phase, self._step = phase, self._step if step is None else step
        self._write(phase, step, self._with_known(step, metrics))
        if metrics:
            self._print_step(step, metrics)
        if metrics and step is not None:
            for listener in self._listeners:
                listener(step, metrics)

    def note(self, step: int, metrics: dict[str, float]) -> None:
        """Add measurements to a step without a change of phase."""
        self._write(self._phase, step, self._with_known(step, metrics))

    def wait(self) -> None:
        """Report that this rank waits for its peers. Thread-safe, like `repeat`."""
        self._write(Phase.WAITING, self._step, {})

    def repeat(self) -> None:
        """Report the last phase again: the wait is over."""
        self._write(self._phase, self._step, {})

    def tell(self, kind: EventKind, sentence: str, evidence: dict[str, object]) -> None:
        """Journal an event for the job's owner. Call it on one rank only."""
        event = JournalEvent(
            at=_now(), kind=kind.value, sentence=sentence, generation=self._place.generation, evidence=evidence
        )
        if self._events is not None:
            self._events.append(render_journal_event(event))
        _say(sentence)

    def _with_known(self, step: int | None, metrics: dict[str, float] | None) -> dict[str, float]:
        """The newest line of a step replaces earlier ones, so it repeats the step's metrics with the evaluation's."""
        if not metrics:
            return {}
        known = self._measured[1] if step == self._measured[0] else {}
        self._measured = step, {**known, **metrics}
        return self._measured[1]

    def _write(self, phase: Phase, step: int | None, metrics: dict[str, float]) -> None:
        if self._progress is None:
            return
        place = self._place
        line = Progress(
            at=_now(),
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=place.world_size,
            generation=place.generation,
            pid=os.getpid(),
            phase=phase,
            step=step,
            total_steps=self._total_steps,
            memory_bytes=self._usage.memory_bytes(),
            utilisation=self._usage.read(),
            metrics=metrics,
        )
        self._progress.append(render_progress(line))

    def _print_step(self, step: int | None, metrics: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self._printed_at < _PRINT_EVERY_S and step != self._total_steps:
            return
        self._printed_at = now
        speeds = (f"  {metrics[f'{unit}_per_s']:.0f} {unit}/s" for unit in _UNITS if f"{unit}_per_s" in metrics)
        rate = f"  lr {metrics['learning_rate']:.2e}" if "learning_rate" in metrics else ""
        losses = (f"  {name.replace('_', ' ')} {metrics[name]:.4f}" for name in _LOSSES if name in metrics)
        total = "" if self._total_steps is None else f"/{self._total_steps}"
        _say(f"step {step}{total}{''.join(losses)}{next(speeds, '')}{rate}")


class Journal:
    """A file of JSON lines that several processes append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._torn = False
        self._lock = threading.Lock()  # do not close a descriptor that another thread writes to

    def append(self, document: dict[str, object]) -> None:
        """Append one line with one write. An OSError loses the line. After a torn line, start a new line.

        After a lost line the file is opened again: its file system may have come back with another file.
        """
        line = json.dumps(document, separators=(",", ":")) + "\n"
        with self._lock:
            data = (("\n" if self._torn else "") + line).encode()
            try:
                if self._descriptor is None:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                    self._descriptor = os.open(self._path, flags, 0o644)
                written = os.write(self._descriptor, data)
            except OSError:
                self._close()
                return
            self._torn = written < len(data)

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def _say(sentence: str) -> None:
    with suppress(OSError):  # the log may be on a full disk
        print(sentence, flush=True)


def _now() -> str:
    return render_time(datetime.now(timezone.utc))
