"""The line of the owner's program in a traceback."""

from __future__ import annotations

import pytest

from orchestrator.domain.explanation.script_error import find_script_line
from orchestrator.domain.specs.spec import Run

HEAD = "Traceback (most recent call last):\n"
SCRIPT = Run(script="train.py")


def frames(*places: tuple[str, int]) -> str:
    return HEAD + "".join(f'  File "{path}", line {line}, in f\n    f()\n' for path, line in places)


@pytest.mark.parametrize(
    ("places", "line"),
    [
        ([("/src/train.py", 40), ("/src/train.py", 12)], "/src/train.py, line 12"),
        ([("/src/train.py", 40), ("/src/data/read.py", 7)], "/src/data/read.py, line 7"),
        ([("/src/train.py", 40), ("/v/lib/python3.12/site-packages/torch/nn.py", 3)], "/src/train.py, line 40"),
        ([("/src/train.py", 40), ("/v/dist-packages/torch/nn.py", 3)], "/src/train.py, line 40"),
        ([("/src/train.py", 40), ("/usr/lib/python3.11/json/decoder.py", 3)], "/src/train.py, line 40"),
        ([("/src/train.py", 40), ("/srcs/helper.py", 3)], "/src/train.py, line 40"),
        ([("/src/train.py", 40), ("/checkout/torch/nn.py", 3), ("/src/loss.py", 9)], "/src/loss.py, line 9"),
        ([("<frozen runpy>", 198), ("/src/train.py", 40), ("<string>", 1)], "/src/train.py, line 40"),
        ([("train.py", 40), ("data/read.py", 7)], "train.py, line 40"),
        ([("/v/site-packages/torch/nn.py", 3)], None),
        ([("/src/" + "x" * 300, 3)], None),
        ([("/src/train.py", 10**9)], None),
        ([], None),
    ],
)
def test_the_frame_nearest_to_the_error_in_the_scripts_folder_counts(
    places: list[tuple[str, int]], line: str | None
) -> None:
    assert find_script_line(f"{frames(*places)}KeyError: 1\n", SCRIPT) == line


def test_the_last_chained_exception_with_a_line_counts() -> None:
    inner, outer = frames(("/src/train.py", 3)), frames(("/src/train.py", 5))
    library = frames(("/v/site-packages/torch/nn.py", 9))
    chained = "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert find_script_line(f"{inner}{chained}{outer}ValueError: 2\n", SCRIPT) == "/src/train.py, line 5"
    assert find_script_line(f"{inner}{chained}{library}ValueError: 2\n", SCRIPT) == "/src/train.py, line 3"


def test_a_data_workers_quoted_traceback_leads_to_the_dataset() -> None:
    quoted = frames(("/v/site-packages/torch/utils/data/fetch.py", 54), ("/src/data.py", 8))
    text = (
        f"{frames(('/src/train.py', 40))}KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal {quoted}"
    )
    assert find_script_line(text, SCRIPT) == "/src/data.py, line 8"


def test_a_syntax_error_and_a_group_of_exceptions_have_their_lines() -> None:
    assert find_script_line('  File "/src/train.py", line 3\n    x = = 1\nSyntaxError: bad\n', SCRIPT) == (
        "/src/train.py, line 3"
    )
    group = f'  + Exception Group {HEAD}  |   File "/src/train.py", line 4, in f\n'
    assert find_script_line(group, SCRIPT) == "/src/train.py, line 4"


def test_the_stacks_of_a_crash_are_no_traceback() -> None:
    crash = 'Fatal Python error: Segmentation fault\n  File "/src/train.py", line 3 in main\n'
    assert find_script_line(crash, SCRIPT) is None


@pytest.mark.parametrize(
    ("task", "path", "line"),
    [
        ("my_task:task", "/src/my_task.py", "/src/my_task.py, line 7"),
        ("my_task:task", "my_task.py", "my_task.py, line 7"),
        ("tasks.my_task:task", "/src/tasks/my_task.py", "/src/tasks/my_task.py, line 7"),
        ("tasks:task", "/src/tasks/__init__.py", "/src/tasks/__init__.py, line 7"),
        ("my_task:task", "/src/not_my_task.py", None),
        (None, "/src/my_task.py", None),
    ],
)
def test_with_the_bundled_trainer_the_line_is_the_tasks(task: str | None, path: str, line: str | None) -> None:
    run = Run(trainer={} if task is None else {"task": task})
    text = frames(("/checkout/trainer/train.py", 70), (path, 7), ("/checkout/trainer/stepping.py", 30))
    assert find_script_line(text, run) == line
