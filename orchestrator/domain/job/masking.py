"""Mask secrets in texts and events: their values, and the encodings in which programs print them. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote

from orchestrator.domain.job.event import Event
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.failure import Failure

AnyEvent = TypeVar("AnyEvent", Event, JournalEvent)

MASK = "********"
MIN_SECRET_LENGTH = 8  # a shorter text appears in many lines by chance


class Mask:
    """Replaces the secrets that it was built with. Without secrets it changes nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        shapes = sorted({shape for value in values for shape in _shapes(value)}, key=lambda shape: (-len(shape), shape))
        self._pattern = re.compile("|".join(map(re.escape, shapes))) if shapes else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def hide(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def hide_in(self, value: object) -> object:
        """Mask plain JSON, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(str(key)): self.hide_in(child) for key, child in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide_in(child) for child in value]
        return value

    def hide_in_event(self, event: AnyEvent) -> AnyEvent:
        if self._pattern is None:
            return event
        evidence = {self.hide(name): self.hide_in(value) for name, value in event.evidence.items()}
        return replace(event, sentence=self.hide(event.sentence), evidence=evidence)

    def hide_in_exit(self, record: ExitRecord | None) -> ExitRecord | None:
        if record is None or record.failure is None:
            return record
        return replace(record, failure=self.hide_in_failure(record.failure))

    def hide_in_failure(self, failure: Failure | None) -> Failure | None:
        if failure is None:
            return None
        traceback = None if failure.traceback is None else self.hide(failure.traceback)
        return replace(failure, message=self.hide(failure.message), traceback=traceback)


NOTHING = Mask()


def _shapes(value: str) -> Iterator[str]:
    """Yield the value and each of its lines, plain and encoded as JSON, URL and base64. Leaves out short texts."""
    for text in (value, *value.splitlines()):
        encoded = text.encode(errors="surrogatepass")
        for shape in (
            text.strip(),
            json.dumps(text)[1:-1],
            json.dumps(text, ensure_ascii=False)[1:-1],
            quote(encoded, safe=""),
            base64.b64encode(encoded).decode().rstrip("="),
        ):
            if len(shape) >= MIN_SECRET_LENGTH:
                yield shape
