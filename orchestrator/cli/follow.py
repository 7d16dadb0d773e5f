"""Watch a job until it ends: its output and its events, and on a terminal a live line. JSON lines for programs."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Queue
from typing import NoReturn, Protocol

import typer
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.common import INTERRUPTED, OUTAGE_S, exit_by, jsonable, print_json, print_json_line, reading
from orchestrator.cli.event_tail import LOOK_EVERY_S, EventTail
from orchestrator.cli.render import colored, console, duration, event_line, speed, steps
from orchestrator.cli.terminal import echo, echo_lines, say
from orchestrator.client import Client
from orchestrator.domain.errors import OrchestratorError
from orchestrator.domain.job.job import JobState
from orchestrator.domain.terminal import clean
from orchestrator.wire.job_views import EventView, JobView, name_replicas
from trainer.contract.exit_record import GROUP_CHANGES

_PLAIN_EVERY_S = 10.0  # the time between two lines of progress without a terminal
_LAST_LINES_S = 5.0  # after the end of the job, output that is silent for so long has ended
_WAITING_LINES = 10_000
_INTERRUPTED_WITHIN_S = 0.2


def attend(client: Client, job: JobView, *, follow: bool, as_json: bool, old_lines: int, ask: bool = False) -> None:
    """Follow the job until it ends, and exit with its status. Ctrl-C leaves the job running.

    With `follow`, print its events and its output: the last `old_lines` lines and all new ones. With `ask`, Ctrl-C on
    a terminal asks whether to cancel the job.
    """
    watch = partial(_follow, display=_display(as_json), old_lines=old_lines) if follow else _wait
    try:
        try:
            ended = watch(client, job)
        except KeyboardInterrupt:
            if not ask or as_json or not _wants_cancel(job):
                raise
            follow, ended = False, _cancel(client, job)
    except KeyboardInterrupt:  # the first one, or a second one at any moment after it
        _leave(job)
    if not follow and as_json:
        print_json(ended)
    elif not follow:
        say(f"{ended.id} {ended.state}: {ended.reason}")
    if ended.state is JobState.FAILED and not as_json:
        say(f"Find out why: orchestrator why {ended.id}", err=True)
    exit_by(ended)


def _leave(job: JobView) -> NoReturn:
    say(
        f"\nThe job continues. Watch it again: orchestrator show {job.id} --follow\n"
        f"End it: orchestrator cancel {job.id}",
        err=True,
    )
    raise typer.Exit(INTERRUPTED) from None


def _cancel(client: Client, job: JobView) -> JobView:
    """Cancel the job and wait for its end."""
    try:
        return _wait(client, client.cancel(job.id))
    except KeyboardInterrupt:
        say(f"\nThe job is being cancelled: orchestrator show {job.id}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _wants_cancel(job: JobView) -> bool:
    """Ask on a terminal. The end of the input and any other answer leave the job running."""
    if not sys.stdin.isatty():
        return False
    echo(f"\nCancel {job.id}? y: cancel it. Enter: leave it running. ", err=True, nl=False)
    while not select.select([sys.stdin], [], [], _INTERRUPTED_WITHIN_S)[0]:
        pass  # a signal just before a system call does not end it, so no call may wait forever
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _wait(client: Client, job: JobView) -> JobView:
    return client.wait(job.id, outage_s=OUTAGE_S)


def _follow(client: Client, job: JobView, display: Display, old_lines: int) -> JobView:
    tail, output = EventTail(client, job.id), _Output(job.id, old_lines)
    output.start()
    with display:
        while True:
            for event in tail.new():
                display.event(job, event)
            display.output(output.new())
            if job.ended:
                break
            display.job(job)
            time.sleep(LOOK_EVERY_S)
            job = client.job(job.id, patience_s=OUTAGE_S)
        while not output.ended and (lines := output.new(wait_s=_LAST_LINES_S)):
            display.output(lines)
        for event in tail.new():  # events between the last two requests
            display.event(job, event)
        display.job(job)
    return job


class _Output(threading.Thread):
    """Follows the job's log in a thread with a client of its own."""

    def __init__(self, job_id: str, old_lines: int) -> None:
        super().__init__(daemon=True, name="output")
        self._job_id, self._old_lines = job_id, old_lines
        self._lines: Queue[str | None] = Queue(_WAITING_LINES)  # None is the end
        self.ended = False

    def run(self) -> None:
        try:
            with reading() as client:
                for line in client.follow_logs(self._job_id, outage_s=OUTAGE_S, tail=self._old_lines):
                    self._lines.put(line)
        except OrchestratorError:
            pass  # the requests for the job fail in the same way, and tell it
        finally:
            self._lines.put(None)

    def new(self, *, wait_s: float = 0.0) -> Sequence[str]:
        """Return the lines since the last call. If there are none, wait for one, at most `wait_s`."""
        lines: list[str] = []
        with suppress(Empty):
            while len(lines) < _WAITING_LINES and not self.ended:
                line = self._lines.get(timeout=wait_s) if wait_s and not lines else self._lines.get_nowait()
                if line is None:
                    self.ended = True
                else:
                    lines.append(line)
        return lines


class Display(Protocol):
    """How to show a followed job. A context manager."""

    def __enter__(self) -> object: ...
    def __exit__(self, *error: object) -> None: ...
    def event(self, job: JobView, event: EventView) -> None: ...
    def output(self, lines: Sequence[str]) -> None: ...
    def job(self, job: JobView) -> None: ...


def _display(as_json: bool) -> Display:
    if as_json:
        return _JsonLines()
    return _LiveLine() if console().is_terminal else _PlainLines()


class _EventLines:
    """Renders the events of a job."""

    def __init__(self) -> None:
        self._changes: set[tuple[int | None, int | None]] = set()

    def render(self, job: JobView, event: EventView) -> Text | None:
        """Return the line. A change of the group, which every agent journals, has one line without a replica."""
        if event.kind not in GROUP_CHANGES:
            return event_line(event, named=name_replicas(job, [event]))
        change = event.attempt, event.generation
        if change in self._changes:
            return None
        self._changes.add(change)
        return event_line(event, named=False)


class _Lines:
    """Base of displays that only print lines."""

    _shown: JobView | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class _JsonLines(_Lines):
    """{"event": ...} for each event, {"line": ...} of output, {"job": ...} for each change of state and at the end."""

    def output(self, lines: Sequence[str]) -> None:
        for line in lines:
            print_json_line({"line": line})

    def event(self, job: JobView, event: EventView) -> None:
        print_json_line({"event": jsonable(event)})

    def job(self, job: JobView) -> None:
        if self._shown is None or (job.state, job.step) != (self._shown.state, self._shown.step):
            print_json_line({"job": jsonable(job)})
        self._shown = job


class _PlainLines(_Lines):
    _shown_at = 0.0

    def __init__(self) -> None:
        self._events = _EventLines()

    def output(self, lines: Sequence[str]) -> None:
        echo_lines(lines)

    def event(self, job: JobView, event: EventView) -> None:
        line = self._events.render(job, event)
        if line is not None:
            echo(line.plain)

    def job(self, job: JobView) -> None:
        now = time.monotonic()
        changed = self._shown is None or job.state is not self._shown.state
        moved = self._shown is not None and job.step != self._shown.step
        if changed or (moved and now - self._shown_at >= _PLAIN_EVERY_S):
            echo(_line(job).plain)
            self._shown, self._shown_at = job, now


class _LiveLine:
    """A live line at the bottom, with events and output above it."""

    def __init__(self) -> None:
        self._live = Live(console=console(), refresh_per_second=4)
        self._events = _EventLines()

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def event(self, job: JobView, event: EventView) -> None:
        line = self._events.render(job, event)
        if line is not None:
            console().print(line, soft_wrap=True)

    def output(self, lines: Sequence[str]) -> None:
        if lines:
            console().print(Text(clean("\n".join(lines))), soft_wrap=True)

    def job(self, job: JobView) -> None:
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=job.total_steps or 100, completed=job.step or 0, width=24)
        grid.add_row(*([bar] if job.total_steps else []), _line(job))
        self._live.update(grid)


def _line(job: JobView) -> Text:
    facts = [
        f"step {steps(job)}" if job.step is not None else "",
        f"loss {job.loss:.4f}" if job.loss is not None else "",
        speed(job),
        f"{duration(job.eta_s)} left" if job.eta_s is not None and not job.state.terminal else "",
        f"attempt {job.attempt}" if job.attempt and job.attempt > 1 else "",
        job.reason if job.state.terminal or job.step is None else "",
    ]
    return Text("  ").join([colored(job.state), *(Text(fact) for fact in facts if fact)])
