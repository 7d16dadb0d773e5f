"""A task that does not exist is found by reading the job's code, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.commands.submission import check_submission
from orchestrator.commands.task_finder import why_no_task as find
from orchestrator.commands.tasks import why_no_task
from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.specs.spec import JobSpec
from tests.examples import examples
from tests.unit.desk import Desk

CODE = "raise SystemExit('the code of a job must not run')\ndef task(config):\n    return {}\n"


def a_spec(workdir: Path, task: str, **run: object) -> JobSpec:
    fields = {"trainer": {"task": task}, "workdir": str(workdir), **run}
    return JobSpec.model_validate({"name": "own", "run": fields, "topology": {"workers_per_node": 1}})


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # a module may be there
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "inner.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize("task", ["mine:task", "pkg.inner:task", "json:dumps", "sys:exit", "os.path:join"])
def test_a_task_that_exists_or_is_installed_is_accepted(task: str, workdir: Path) -> None:
    assert why_no_task(a_spec(workdir, task), task) is None


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("mine:tusk", "{}/mine.py has no function tusk; did you mean task?"),
        ("mine:zzzz", "{}/mine.py has no function zzzz"),
        ("mien:task", "there is no module mien in {}; did you mean mine?"),
        ("pkg.iner:task", "there is no module pkg.iner in {}/pkg; did you mean pkg.inner?"),
        ("pkg.inner:Task", "{}/pkg/inner.py has no function Task; did you mean task?"),
        ("pkg:inner_task", "{}/pkg/__init__.py has no function inner_task"),
    ],
)
def test_a_missing_module_or_function_is_named_with_the_nearest_name(task: str, says: str, workdir: Path) -> None:
    assert why_no_task(a_spec(workdir, task), task) == says.format(workdir)


def test_a_submission_names_the_field(workdir: Path) -> None:
    cluster = Desk(workdir).cluster
    with pytest.raises(InvalidSpec) as refused:
        check_submission(a_spec(workdir, "mine:tusk"), cluster)
    assert [(each.pointer, each.message) for each in refused.value.problems] == [
        ("/run/trainer/task", f"'mine:tusk': {workdir}/mine.py has no function tusk; did you mean task?")
    ]
    check_submission(a_spec(workdir, "mine:task"), cluster)


@pytest.mark.parametrize("place", ["env", "secrets"])
def test_a_module_may_be_on_a_path_that_only_the_job_knows(place: str, workdir: Path) -> None:
    given: object = {"PYTHONPATH": "/opt/ours"} if place == "env" else ["PYTHONPATH"]
    assert why_no_task(a_spec(workdir, "mien:task", **{place: given}), "mien:task") is None
    assert why_no_task(a_spec(workdir, "mine:tusk", **{place: given}), "mine:tusk") is not None


@pytest.mark.parametrize(
    "text",
    [
        "from other import *",
        "def __getattr__(name): ...",
        "globals()['tusk'] = 1",
        "import sys\nsetattr(sys.modules[__name__], 'tusk', 1)",
        "exec('tusk = 1')",
        "if True:\n    tusk = 1",
        "for tusk in range(1): ...",
        "with open('x') as tusk: ...",
        "try: ...\nexcept ImportError:\n    from a import b as tusk",
        "def make():\n    global tusk\n    tusk = 1",
        "(tusk := 1)",
        "a, (b, tusk) = 1, (2, 3)",
        "import tusk.inner",
        "tusk: object = 1",
        "match 1:\n    case tusk: ...",
        "async def tusk(config): ...",
        "def broken(:",
        "\0",
        "1" + "+1" * 100_000,
        "-" * 100_000 + "1",
        "# " + "x" * 1_000_000,
    ],
)
def test_nothing_is_said_of_code_that_may_have_the_name_or_cannot_be_parsed(text: str, workdir: Path) -> None:
    (workdir / "mine.py").write_text(text)
    assert why_no_task(a_spec(workdir, "mine:tusk"), "mine:tusk") is None


def test_nothing_is_said_of_a_package_that_changes_its_path_or_of_a_compiled_module(workdir: Path) -> None:
    (workdir / "pkg" / "__init__.py").write_text("__path__.append('/elsewhere')")
    assert find(str(workdir), "pkg.absent:task", sees_path=True) is None
    (workdir / "fast.so").write_bytes(b"")
    assert find(str(workdir), "fast:task", sees_path=True) is None
    assert find(str(workdir), "mine.inner:task", sees_path=True) is None


_NAMES = st.from_regex(r"[a-c]{1,2}", fullmatch=True)


@settings(max_examples=examples(60, 2000), deadline=None)
@given(st.lists(_NAMES, min_size=1), _NAMES)
def test_a_function_is_missing_if_and_only_if_importing_the_module_shows_that(
    tmp_path_factory: pytest.TempPathFactory, defined: list[str], wanted: str
) -> None:
    folder = tmp_path_factory.mktemp("code")
    text = "\n".join(f"def {name}(config): ..." for name in defined)
    (folder / "mine.py").write_text(text)
    module: dict[str, object] = {}
    exec(text, module)
    assert (find(str(folder), f"mine:{wanted}", sees_path=True) is None) == (wanted in module)
