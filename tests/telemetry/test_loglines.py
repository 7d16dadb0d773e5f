"""Every log line of the process can be parsed, also those of libraries, and none shows a local variable."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from orchestrator.telemetry.lines import configure_logging


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Receives the log. Restores the process's configuration at the end."""
    root = logging.getLogger()
    handlers, level, config = list(root.handlers), root.level, structlog.get_config()
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


def _configure(stream: io.StringIO, level: int = logging.INFO) -> None:
    with contextlib.redirect_stderr(stream):
        configure_logging(human=False, level=level)


def _parse(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_its_request_id(lines: io.StringIO) -> None:
    _configure(lines)
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger().info("decided", job="job-1")
    (line,) = _parse(lines)
    assert {"event": "decided", "job": "job-1", "request_id": "r-1", "level": "info"}.items() <= line.items()


def test_lines_of_libraries_have_the_same_form(lines: io.StringIO) -> None:
    _configure(lines)
    with structlog.contextvars.bound_contextvars(request_id="r-2"):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request %s", "received")
    logging.getLogger("uvicorn.error").info("not worth a line")
    (line,) = _parse(lines)
    assert (line["event"], line["level"], line["request_id"]) == ("Invalid HTTP request received", "warning", "r-2")
    assert line["logger"] == "uvicorn.error"


def _fail() -> None:
    secret = "hunter2"
    raise ValueError(f"no {len(secret)}")


@pytest.mark.parametrize("ours", [True, False])
def test_a_traceback_is_part_of_its_line_and_shows_no_variable(lines: io.StringIO, ours: bool) -> None:
    _configure(lines)
    log = structlog.get_logger() if ours else logging.getLogger("sqlalchemy")
    try:
        _fail()
    except ValueError:
        log.exception("it failed")
    (line,) = _parse(lines)
    assert line["event"] == "it failed"
    assert "ValueError" in json.dumps(line["exception"])
    assert "hunter2" not in lines.getvalue()


def test_debug_lines_are_written_at_level_debug(lines: io.StringIO) -> None:
    _configure(lines, logging.DEBUG)
    structlog.get_logger().debug("request", route="/")
    assert [line["event"] for line in _parse(lines)] == ["request"]
