"""What `make demo` prints at its end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deploy.dev.demo import print_fault

SENTENCE = "rank 1 was killed by SIGKILL after step 62, and the group of two workers starts again with [bold] in it"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_each_event_of_a_fault_is_one_line_that_is_cut_at_the_width(width: int) -> None:
    shown = io.StringIO()
    events = [(0.04, "short"), (12.5, SENTENCE)]
    print_fault(Console(file=shown, width=width), "a worker is killed", "next step after 0.42 s", events)
    head, cost, first, second = shown.getvalue().splitlines()
    wholes = "a worker is killed:", "  next step after 0.42 s", "   +0.04 s  short", f"  +12.50 s  {SENTENCE}"
    for line, whole in zip((head, cost, first, second), wholes, strict=True):
        assert line == (whole if len(whole) <= width else f"{whole[: width - 1]}…")
