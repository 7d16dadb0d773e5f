"""The desired state of this attempt, from `desired.json` or from the service's answers to reports.

Workers read only the file. Where the service cannot write it, because it shares no file system with this node, the
agent writes it from the answers. Standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

from trainer.contract import layout
from trainer.contract.launch import DesiredDocument, DesiredState, newest, parse_desired
from trainer.elastic.records.files import write_document
from trainer.elastic.records.record import Record
from trainer.elastic.stop import StopRequest

_INTERVAL_S = 1.0


class ServiceRequests:
    """Keeps the newest desired state that has reached this agent. Methods are thread-safe and idempotent."""

    def __init__(self, record: Record, stop: StopRequest) -> None:
        self._record, self._stop = record, stop
        self._newest = DesiredDocument()
        self._lock = threading.Lock()

    def follow_answer(self, document: Mapping[str, object]) -> None:
        """Follow the answer to a report, and write it to `desired.json` if it is newer than the file."""
        answered = parse_desired(document)
        self._follow(answered)
        found = self._record.desired()
        if (answered.number, answered.snapshot) > (found.number, found.snapshot):
            # The next answer repeats this.
            with suppress(OSError):
                write_document(self._record.attempt_dir / layout.DESIRED, document)

    def watch(self) -> None:
        """Read `desired.json` about once a second, from a daemon thread that never ends."""
        threading.Thread(target=self._watch, name="desired", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            self._follow(self._record.desired())
            pause.wait(_INTERVAL_S)

    def _follow(self, desired: DesiredDocument) -> None:
        with self._lock:
            self._newest = newest(self._newest, desired)
            is_stop = self._newest.state is DesiredState.STOP
        if is_stop:
            self._stop.request()
