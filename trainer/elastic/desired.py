"""What the service wants of this attempt, by whatever road it comes: `desired.json`, or the answer to a report.

Workers read the file alone. Where the service cannot write it, because it shares no file system with this node, the
agent does, from the answers that it gets. Standard library only.
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
    """The newest request that has reached this agent. Its methods may be called from any thread, and repeated."""

    def __init__(self, record: Record, stop: StopRequest) -> None:
        self._record, self._stop = record, stop
        self._newest = DesiredDocument()
        self._lock = threading.Lock()

    def hear(self, document: Mapping[str, object]) -> None:
        """Take the answer to a report: follow it, and put it into `desired.json` when what stands there is older."""
        heard = parse_desired(document)
        self._follow(heard)
        found = self._record.desired()
        if (heard.number, heard.snapshot) > (found.number, found.snapshot):
            # Whatever fails here is tried again with the next answer.
            with suppress(OSError):
                write_document(self._record.attempt_dir / layout.DESIRED, document)

    def watch(self) -> None:
        """Look at `desired.json` about once a second, from a daemon thread, for as long as the process lives."""
        threading.Thread(target=self._watch, name="desired", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            self._follow(self._record.desired())
            pause.wait(_INTERVAL_S)

    def _follow(self, heard: DesiredDocument) -> None:
        with self._lock:
            self._newest = newest(self._newest, heard)
            is_stop = self._newest.state is DesiredState.STOP
        if is_stop:
            self._stop.request()
