"""The innermost frames of saved stacks."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

from orchestrator.domain.explanation.frames import arrange_stacks, find_innermost

PY_SPY = """\
Process 7: python train.py
Thread 7 (idle): "MainThread"
    wait (threading.py:355)
    step (train.py:12)
Thread 9 (idle): "Reader"
    read (reader.py:3)
"""
TORCH = "/opt/lib/python3.12/site-packages/torch/distributed"


def file(path: str, line: int, name: str) -> str:
    return f'  File "{path}", line {line} in {name}'


def test_the_frames_of_the_main_thread_of_a_real_process_are_found() -> None:
    with tempfile.TemporaryFile("w+") as text:
        faulthandler.dump_traceback(file=text, all_threads=True)
        done = threading.Event()
        other = threading.Thread(target=done.wait)
        other.start()
        faulthandler.dump_traceback(file=text, all_threads=True)
        done.set()
        other.join()
        text.seek(0)
        first, *_ = find_innermost(text.read().splitlines())
    assert first.startswith("test_the_frames_of_the_main_thread_of_a_real_process_are_found (test_frames.py:")


def test_py_spy_names_the_main_thread() -> None:
    assert find_innermost(PY_SPY.splitlines()) == ["wait (threading.py:355)", "step (train.py:12)"]


def test_the_innermost_frame_of_the_jobs_own_code_is_among_them() -> None:
    library = [file(f"{TORCH}/c10d.py", line, f"inner{line}") for line in (1, 2, 3, 4)]
    own = [file("/src/train.py", 30, "step"), file("/src/train.py", 40, "<module>")]
    lines = ["Current thread 0x1 (most recent call first):", *library, *own]
    assert find_innermost(lines) == ["inner1 (c10d.py:1)", "inner2 (c10d.py:2)", "step (train.py:30)"]
    assert find_innermost(lines[:4]) == ["inner1 (c10d.py:1)", "inner2 (c10d.py:2)", "inner3 (c10d.py:3)"]


def test_the_newest_stacks_count_and_other_text_is_left_out() -> None:
    head = "Thread 0x1 (most recent call first):"
    lines = [head, file("/a.py", 1, "old"), "", head, "noise", file("/a.py", 2, "new"), "<truncated>"]
    assert find_innermost(lines) == ["new (a.py:2)"]
    assert find_innermost(["nothing"]) == find_innermost([]) == []


HEAD = "Current thread 0x1 (most recent call first):"
LAUNCHER = [
    *(file("<frozen runpy>", 88, "_run_code"), file("<frozen runpy>", 226, "run_module")),
    file("/opt/trainer/elastic/workers/program.py", 103, "run_program"),
    file("/opt/trainer/elastic/workers/forked.py", 51, "become"),
    file("/opt/trainer/elastic/workers/forkserver.py", 235, "main"),
    file("<string>", 5, "<module>"),
]
SCRIPT = [file("/usr/lib/python3.12/runpy.py", 9, "run_path"), file("/src/train.py", 40, "<module>")]


def test_the_main_thread_of_each_dump_is_read_first_without_the_launchers_outer_frames() -> None:
    helper = ["Thread 0x2 (most recent call first):", file("/src/train.py", 3, "read")]
    dump = [*helper, "", HEAD, *SCRIPT, *LAUNCHER]
    assert arrange_stacks([*dump, *dump]) == [HEAD, *SCRIPT, "", *helper, "", HEAD, *SCRIPT, "", *helper]
    cut = [file("/src/train.py", 4, "write"), "", HEAD, *SCRIPT]
    assert arrange_stacks(cut) == [HEAD, *SCRIPT, "", cut[0]]


def test_a_thread_that_runs_only_the_launcher_is_shown_whole() -> None:
    assert arrange_stacks([HEAD, *LAUNCHER]) == [HEAD, *LAUNCHER]
    assert arrange_stacks([]) == []
    assert arrange_stacks(["it did not answer"]) == ["it did not answer"]


def test_py_spy_writes_the_main_thread_first() -> None:
    process, main, wait, step, *helper = PY_SPY.splitlines()
    launcher = "    run_program (trainer/elastic/workers/program.py:103)"
    dump = [process, "Python v3.12.1", "", main, wait, step, launcher, *helper]
    assert arrange_stacks(dump) == [process, "Python v3.12.1", "", main, wait, step, "", *helper]
