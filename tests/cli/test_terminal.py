"""Text of jobs and of the service cannot move the cursor of a terminal or appear in another order."""

from __future__ import annotations

import ast
import io
import json
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.cli import main
from orchestrator.domain.errors import OrchestratorError
from orchestrator.domain.terminal import clean, clean_line, dump_json
from orchestrator.torchx_scheduler.scheduler import OrchestratorScheduler, SchedulerError
from tests.cli.evil_service import EvilService
from tests.examples import examples

SEEN = "seen"
HIDDEN = ("Cc", "Cf", "Zl", "Zp")  # general categories of Unicode
HOSTILE = st.lists(
    st.one_of(
        st.characters(categories=HIDDEN),
        st.sampled_from(["\x1b[2J", "\x1b]0;title\x07", "\u202e", "\x9b31m", "é", "a"]),
    ),
    min_size=1,
    max_size=6,
).map("".join)
SPEC = "name: gpt\nrun: {script: train.py}\n"

COMMANDS = [
    *(
        ["ls"],
        ["show", "x"],
        ["events", "x"],
        ["events", "x", "--follow"],
        ["logs", "x"],
        ["logs", "x", "--follow"],
        ["snapshots", "x"],
        ["why", "x"],
    ),
    *(["goodput"], ["goodput", "x"], ["clusters"], ["nodes"], ["token", "ls"], ["secret", "ls"], ["webhook", "ls"]),
    *(["cancel", "x"], ["suspend", "x"], ["resume", "x"], ["retry", "x"], ["snapshot", "x"], ["scale", "x", "2"]),
    *(["delete", "x", "--yes"], ["plan", "job.yaml"], ["submit", "job.yaml"], ["stacks", "x", "--wait", "0"]),
    *(["webhook", "add", "pager", "https://h.example"], ["webhook", "rm", "pager"]),
]


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EvilService]:
    monkeypatch.setenv("ORCHESTRATOR_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(SPEC)
    service = EvilService(tmp_path / "root")
    service.start()
    yield service
    service.stop()


def told(*arguments: str) -> tuple[str, str]:
    """What a command writes to standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), suppress(SystemExit):
        try:
            main.build_app(arguments)(list(arguments), prog_name="orchestrator")
        except OrchestratorError as error:
            main._print_error(error)
    return out.getvalue(), err.getvalue()


def hidden_in(text: str) -> set[str]:
    return {char for char in text if unicodedata.category(char) in (*HIDDEN, "Cs")} - {"\n", "\t"}


def leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, str):
        yield value


def _state_for(command: list[str]) -> str:
    return "RUNNING" if command[0] == "stacks" else "FAILED"  # those of an ended job come from its logs


_patient = settings(max_examples=examples(3, 30), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@_patient
@given(text=HOSTILE)
def test_no_command_sends_hidden_characters_to_the_terminal(evil: EvilService, command: list[str], text: str) -> None:
    evil.text, evil.refuses, evil.state = text, False, _state_for(command)
    out, err = told(*command)
    assert hidden_in(out + err) == set()
    assert SEEN in out + err or command[0] == "webhook" or "logs" in command or "goodput" in command, (out, err)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each[:2] != ["webhook", "rm"]], ids=" ".join)
@_patient
@given(text=HOSTILE)
def test_json_escapes_them_and_loses_nothing(evil: EvilService, command: list[str], text: str) -> None:
    evil.text, evil.refuses, evil.state = text, False, _state_for(command)
    out, err = told(*command, "--json")
    assert hidden_in(out + err) == set()
    documents = [json.loads(each) for each in (out.splitlines() if "--follow" in command else [out])]
    assert any(text in leaf or leaf in text for leaf in leaves(documents)), out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@_patient
@given(text=HOSTILE)
def test_error_messages_are_cleaned_too(evil: EvilService, command: list[str], text: str) -> None:
    evil.text, evil.refuses = text, True
    out, err = told(*command)
    assert hidden_in(out + err) == set()
    assert SEEN in err


@given(st.text())
def test_text_is_cleaned_and_json_keeps_it(text: str) -> None:
    assert hidden_in(clean(text)) == set()
    assert hidden_in(clean_line(text)) | ({"\n"} & set(clean_line(text))) == set()
    assert hidden_in(dump_json({text: text})) == set()
    assert json.loads(dump_json({text: text})) == {text: text}


def test_json_keeps_every_hidden_character() -> None:
    characters = [char for char in map(chr, range(0x110000)) if unicodedata.category(char) in (*HIDDEN, "Cs")]
    assert json.loads(dump_json(characters)) == characters


def test_ordinary_text_is_not_changed() -> None:
    text = "naïve 日本語 🚀 ü\tline\nnext"
    assert clean(text) == text
    assert clean("\x1b[1;32mgreen\x1b[0m") == "green"
    assert clean("10%\r20%\r\n") == "10%\n20%\n"
    assert dump_json({"a": "é\u202e"}) == '{"a": "é\\u202e"}'


def test_the_command_line_prints_only_through_its_terminal_module() -> None:
    for file in Path(main.__file__).parent.glob("*.py"):
        if file.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            words = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert words not in ("typer.echo", "typer.secho", "click.echo", "print", "sys.stdout.write"), file.name
            assert words != "Console", file.name


@_patient
@given(text=HOSTILE)
def test_torchx_gets_no_hidden_characters(evil: EvilService, text: str) -> None:
    evil.text, evil.refuses = text, False
    scheduler = OrchestratorScheduler("torchx")
    described = scheduler.describe("x")
    assert described is not None
    lines = [*scheduler.log_iter("x", "trainer")]
    printed = [*map(str, scheduler.list()), described.msg, described.structured_error_msg, *map(str, described.roles)]
    assert hidden_in("".join([*printed, *lines])) == set()
    assert SEEN in described.msg
    evil.refuses = True
    with pytest.raises(SchedulerError) as refused:
        scheduler.list()
    assert hidden_in(str(refused.value)) == set()
