"""Cuts of long tracebacks."""

from __future__ import annotations

from trainer.contract.failure import parse_failure
from trainer.contract.words import TRACEBACK, TRACEBACK_LIMIT, cut_traceback


def traceback_of(frames: int, message: str = "ValueError: boom") -> list[str]:
    return [
        TRACEBACK,
        *(
            line
            for number in range(frames)
            for line in (f'  File "train.py", line {number}, in step', f"    step({number})")
        ),
        message,
    ]


# torch: multiprocessing/spawn.py
SPAWNED = [*traceback_of(9, "ProcessRaisedException: "), "", "-- Process 1 terminated with the following error:"]


def test_a_traceback_is_cut_before_a_frame() -> None:
    lines = [*SPAWNED, *traceback_of(5)]
    text = "\n".join(lines)
    assert cut_traceback(text, limit=len(text), most_lines=len(lines)) == text
    for most_lines in (9, 10):
        cut = [TRACEBACK, f"  [{len(lines) - 8} lines left out]", *lines[-7:]]
        assert cut_traceback(text, most_lines=most_lines).splitlines() == cut
    for limit in range(150, len(text)):
        shown = cut_traceback(text, limit=limit)
        header, note, frame, *_, message = shown.splitlines()
        assert (header, message, len(shown) <= limit) == (TRACEBACK, "ValueError: boom", True)
        assert note == f"  [{len(lines) - len(shown.splitlines()) + 1} lines left out]"
        assert frame.startswith('  File "train.py"')


def test_lines_that_were_left_out_before_are_counted() -> None:
    text = "\n".join(traceback_of(1000))
    once = cut_traceback(text, most_lines=100)
    assert cut_traceback(once, most_lines=9) == cut_traceback(text, most_lines=9)


def test_of_a_message_that_does_not_fit_the_end_is_kept() -> None:
    text = "\n".join(traceback_of(1, "KeyError: " + "x" * 99))
    assert cut_traceback(text, limit=50) == text[-50:]
    assert cut_traceback("\n".join(map(str, range(9))), most_lines=2) == "7\n8"


def test_a_long_traceback_of_a_report_is_cut_before_a_frame() -> None:
    failure = parse_failure({"kind": "application", "message": "boom", "traceback": "\n".join(traceback_of(1000))})
    assert failure.traceback is not None
    assert len(failure.traceback) <= TRACEBACK_LIMIT
    assert failure.traceback.splitlines()[2].startswith('  File "train.py"')
