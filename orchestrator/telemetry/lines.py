"""The service's log: one line for each thing, on stderr, as key-value for people or JSON for programs.

Lines of the libraries (uvicorn, SQLAlchemy) take the same form, so that every line of the process can be parsed.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


def configure_logging(*, level: int = logging.INFO, human: bool | None = None) -> None:
    """Log to stderr: key-value for people on a terminal, one JSON object a line otherwise (or as `human` says)."""
    readable = sys.stderr.isatty() if human is None else human
    # Neither shows local variables: they may hold a user's secrets.
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
    """What libraries say to `logging`, warnings and worse, in the form of our own lines."""
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
    """A stream that loses lines rather than its writer: a full disk or a reader that went must not end supervision."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
