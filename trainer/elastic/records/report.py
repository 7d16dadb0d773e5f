"""Send reports to the service: the journals of agent and workers, by byte offsets, so that a repeat is harmless.

A report that fails is sent again later, from the same offsets. Training never waits for a report.
"""

from __future__ import annotations

import http
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from trainer.contract import env, layout
from trainer.contract.exit_record import ExitRecord, render_exit_record
from trainer.elastic.desired import ServiceRequests
from trainer.elastic.records.files import read_lines, say
from trainer.elastic.records.record import Record

_INTERVAL_S = 0.5
_EMPTY_INTERVAL_S = 2.0  # an empty report only fetches the desired state
_LONGEST_PAUSE_S = 30.0
_REQUEST_TIMEOUT_S = 5.0
_FINAL_S = 2.0
_LAST_REPORT_S = 1.0  # before a deadline: then the last report is sent, even if it leaves lines
_BATCH_BYTES = 256 * 1024  # of each journal in one report


@dataclass(frozen=True, kw_only=True)
class Offsets:
    """How far each journal has been reported."""

    progress: int = 0
    events: int = 0


def backoff_s(failures: int) -> float:
    """The pause after a number of failed reports in a row."""
    return min(_LONGEST_PAUSE_S, _INTERVAL_S * 2.0 ** min(failures, 16))


def build_report(record: Record, offsets: Offsets) -> tuple[dict[str, object], Offsets, bool]:
    """The next report, the offsets after it, and whether there are lines for another one. They are sent as written.

    The service ignores lines before an offset that it has. So after a cut, it takes them from the run directory only.
    """
    folder = record.incarnation_dir
    progress = read_lines(folder / layout.PROGRESS, offsets.progress, _BATCH_BYTES)
    events = read_lines(folder / layout.EVENTS, offsets.events, _BATCH_BYTES)
    document: dict[str, object] = {
        "version": 1,
        "job_id": record.job_id,
        "attempt": record.attempt,
        "replica": record.replica,
        "incarnation": record.incarnation,
        "progress_from": progress.start,
        "progress": progress.texts,
        "progress_to": progress.end,
        "events_from": events.start,
        "events": events.texts,
        "events_to": events.end,
    }
    return document, Offsets(progress=progress.end, events=events.end), progress.more or events.more


class Reporter:
    """Reports from a daemon thread until it is closed."""

    def __init__(self, record: Record, requests: ServiceRequests, url: str, token: str | None) -> None:
        self._record, self._requests, self._url, self._token = record, requests, url, token
        self._offsets = Offsets()
        self._posted_s = float("-inf")
        self._final: ExitRecord | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, final: ExitRecord) -> None:
        """Send what is left and the exit record. Give up after two seconds: the run directory has everything too."""
        self._final = final
        self._closing.set()
        self._thread.join(_FINAL_S)

    def _run(self) -> None:
        failures = 0
        while not self._closing.wait(backoff_s(failures)):
            failures = 0 if self._flush(None, time.monotonic() + _LONGEST_PAUSE_S) else failures + 1
        deadline = time.monotonic() + _FINAL_S
        while not self._flush(self._final, deadline) and time.monotonic() < deadline:
            time.sleep(0.2)

    def _flush(self, final: ExitRecord | None, deadline: float) -> bool:
        """Report until nothing new is left. False if a report failed; the next one then starts at the same offsets.

        The exit record comes with the last report, because the service reads nothing after it.
        """
        while True:
            document, offsets, more = build_report(self._record, self._offsets)
            is_last = not more or time.monotonic() > deadline - _LAST_REPORT_S
            is_last = is_last or (final is None and self._closing.is_set())
            if final is not None and is_last:
                document["exit_record"] = render_exit_record(final)
            if offsets == self._offsets and final is None and time.monotonic() < self._posted_s + _EMPTY_INTERVAL_S:
                return True
            left_s = deadline - time.monotonic() - (0.0 if is_last else _LAST_REPORT_S)
            try:
                self._post(document, min(_REQUEST_TIMEOUT_S, left_s))
            except (OSError, ValueError, http.client.HTTPException):
                return False
            self._offsets, self._posted_s = offsets, time.monotonic()
            if is_last:
                return True

    def _post(self, document: Mapping[str, object], timeout_s: float) -> None:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
            headers[env.ATTEMPT_HEADER] = f"{self._record.job_id}/{self._record.attempt}"
        request = urllib.request.Request(self._url, json.dumps(document).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=max(0.1, timeout_s)) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            self._follow_refusal(error)
            raise
        desired = answer.get("desired") if isinstance(answer, dict) else None
        if isinstance(desired, dict):
            self._requests.follow_answer(desired)

    def _follow_refusal(self, error: urllib.error.HTTPError) -> None:
        """Follow the desired state in a 403. Only the refusal for an attempt that has ended carries one."""
        if error.code != http.HTTPStatus.FORBIDDEN:
            return
        with error, suppress(OSError, ValueError, http.client.HTTPException):
            answer = json.load(error)
            desired = answer.get("desired") if isinstance(answer, dict) else None
            if isinstance(desired, dict):
                self._requests.follow_answer(desired)


def start_reporter(record: Record, requests: ServiceRequests, environ: Mapping[str, str]) -> Reporter | None:
    """Start reporting if the environment has an address. A wrong address is logged and does not end the training."""
    url = environ.get(env.REPORT_URL)
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        say(f"{env.REPORT_URL} is {url!r}, not an http address: nothing is reported")
        return None
    reporter = Reporter(record, requests, url, environ.get(env.REPORT_TOKEN))
    reporter.start()
    return reporter
