"""What a worker's command runs, and whether a forked process can run it as Python would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.elastic.workers.program import Program, find_shadowed, parse_program


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('hello')")
    return str(path)


def test_a_script_of_this_python_is_a_program(script: str) -> None:
    program = parse_program([sys.executable, "-u", script, "--lr", "-u"])
    assert program == Program(target=script, is_module=False, arguments=("--lr", "-u"))
    assert program.folder == Path(script).parent


def test_a_module_is_a_program_and_looks_into_the_current_folder_first() -> None:
    program = parse_program([sys.executable, "-u", "-m", "my.module", "x"])
    assert program == Program(target="my.module", is_module=True, arguments=("x",))
    assert program.folder == Path.cwd()


def test_a_linked_script_looks_where_it_really_lies(script: str, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.py"
    link.parent.mkdir()
    link.symlink_to(script)
    program = parse_program([sys.executable, str(link)])
    assert isinstance(program, Program)
    assert program.folder == tmp_path


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (["-O", "x.py"], "Python gets the option -O"),
        (["-u", "-c", "pass"], "Python gets the option -c"),
        (["-m"], "Python gets no script"),
        ([], "Python gets no script"),
        (["nowhere.py"], "nowhere.py is not a file"),
    ],
)
def test_what_a_fork_cannot_be_is_said(rest: list[str], why: str) -> None:
    assert parse_program([sys.executable, *rest]) == why


def test_a_folder_with_a_main_needs_a_python_of_its_own(tmp_path: Path) -> None:
    assert parse_program([sys.executable, str(tmp_path)]) == f"{tmp_path} is not a file"


def test_another_program_is_named() -> None:
    assert parse_program(["bash", "-c", "true"]) == "bash is not this Python"
    assert parse_program(["no-such-program-anywhere"]) == "no-such-program-anywhere is not this Python"


def test_the_python_of_another_environment_is_another_python(tmp_path: Path, script: str) -> None:
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(Path(sys.executable).resolve())
    assert parse_program([str(other), script]) == f"{other} is not this Python"


@pytest.mark.parametrize("name", ["random.py", "random.pyc", "random/__init__.py", "random/__init__.pyc", "random.so"])
def test_a_file_that_would_have_gone_before_an_imported_module_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert find_shadowed(tmp_path, {"random", "json.decoder"}) == "random"


@pytest.mark.parametrize(
    "name", ["random", "random.txt", "random.py/data", "random/data.py", "random-1.py", "time.py", "sys/__init__.py"]
)
def test_what_python_would_not_import_goes_before_nothing(tmp_path: Path, name: str) -> None:
    """For example a file `token`, as the standard library has a module of that name."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert find_shadowed(tmp_path, {"random", "time", "sys"}) is None
    assert find_shadowed(tmp_path, {"random", "time", "sys"}) == _what_python_takes(tmp_path, ["random", "time", "sys"])


def _what_python_takes(folder: Path, names: list[str]) -> str | None:
    """Which of the names a fresh Python imports from the folder."""
    code = f"import {', '.join(names)}\nfor one in {names}: print(one, getattr(globals()[one], '__file__', ''))"
    (folder / "main.py").write_text(code)
    told = subprocess.run([sys.executable, "main.py"], cwd=folder, capture_output=True, text=True, check=True).stdout
    found = dict(line.split(" ", 1) for line in told.splitlines())
    return next((name for name, file in found.items() if Path(file).is_relative_to(folder)), None)


def test_what_shadows_nothing_is_left_in_peace(tmp_path: Path) -> None:
    for name in ("helper.py", "random.txt", "__main__.py", "trainer.py"):
        (tmp_path / name).touch()
    (tmp_path / "json").mkdir()  # a namespace package: a regular package later on the path takes precedence
    assert find_shadowed(tmp_path, {"random", "json", "trainer.x", "__main__"}) is None
    assert find_shadowed(tmp_path / "nowhere", {"random"}) is None
