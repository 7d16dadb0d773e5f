"""The service's log on stderr: key-value lines for people, or one JSON object a line for programs.

Libraries (uvicorn, SQLAlchemy) log in the same form, so that every line of the process can be parsed.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


def configure_logging(*, level: int = logging.INFO, human: bool | None = None) -> None:
    """Log key-value lines if `human`, else JSON. None means key-value lines only if stderr is a terminal."""
    readable = sys.stderr.isatty() if human is None else human
    # Neither renderer shows local variables, because they may hold a user's secrets.
    rendering: list[structlog.typing.Processor]
    if readable:
        rendering = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        rendering = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    common: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    stream = cast(TextIO, _Forgiving(sys.stderr))
    structlog.configure(
        processors=[*common, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    _adopt_libraries(stream, common, rendering)


def _adopt_libraries(
    stream: TextIO, common: list[structlog.typing.Processor], rendering: list[structlog.typing.Processor]
) -> None:
    """Render what libraries log, warnings and worse, in the form of the service's own lines."""
    handler = logging.StreamHandler(stream)
    without_record = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.add_logger_name], processors=[without_record, *rendering]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


class _Forgiving:
    """A stream that drops lines instead of raising: a full disk or a closed pipe must not end supervision."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
