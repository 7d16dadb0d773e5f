"""The command line against a fake service."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from orchestrator.cli import common
from orchestrator.cli.main import COMMANDS, build_app
from orchestrator.domain.job.job import JobState
from orchestrator.wire.problems import Problem
from tests.cli.conftest import Run
from tests.cli.fake_service import Answer, FakeService, make_event, make_failure, make_job, make_snapshot

SPEC = "name: gpt\nrun: {script: train.py}\n"
ENDED = {JobState.SUCCEEDED: 0, JobState.FAILED: 1, JobState.CANCELLED: 1}


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "job.yaml").write_text(SPEC)
    return "job.yaml"


def test_submit_prints_the_id_and_sends_an_absolute_workdir(
    run: Run, service: FakeService, spec: str, tmp_path: Path
) -> None:
    done = run("submit", spec, "--set", "run.env.A=x", "--set", "topology.nodes=2:8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "gpt-0000\n", f"submitted to {service.url}\n")
    sent = service.jobs["gpt-0000"].spec
    assert (sent.run.workdir, sent.run.env, sent.topology.nodes) == (str(tmp_path), {"A": "x"}, "2:8")


def test_submit_prints_warnings_on_standard_error(run: Run, service: FakeService, spec: str) -> None:
    service.warnings = ["priority has no effect"]
    done = run("submit", spec)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "gpt-0000\n",
        f"warning: priority has no effect\nsubmitted to {service.url}\n",
    )
    done = run("submit", spec, "--json")
    assert json.loads(done.stdout)["warnings"] == ["priority has no effect"]


def test_submit_reads_standard_input(run: Run, service: FakeService) -> None:
    done = run("submit", "-", "--json", stdin='{"name": "gpt", "run": {"command": ["true"]}}')
    assert json.loads(done.stdout)["id"] == "gpt-0000"


@pytest.mark.parametrize(("state", "status"), ENDED.items())
@pytest.mark.parametrize("how", ["--wait", "--follow"])
def test_the_exit_status_is_the_jobs(run: Run, service: FakeService, state: JobState, status: int, how: str) -> None:
    service.add(make_job(state=state, reason="it ended so"))
    done = run("show", "gpt-0001", how)
    assert done.returncode == status
    assert str(state) in done.stdout
    assert "it ended so" in done.stdout
    assert ("orchestrator why gpt-0001" in done.stderr) == (state is JobState.FAILED)


def test_submit_and_wait_prints_one_document_of_the_ended_job(run: Run, service: FakeService, spec: str) -> None:
    service.before_answer = lambda path: _end_all(service) if path.endswith("0000") else None
    done = run("submit", spec, "--wait", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "FAILED"


def _end_all(service: FakeService) -> None:
    for job in list(service.jobs.values()):
        service.add(job.model_copy(update={"state": JobState.FAILED, "failure": make_failure()}))


def test_following_prints_events_once_and_in_plain_lines_when_piped(run: Run, service: FakeService) -> None:
    running = {"state": JobState.RUNNING, "attempts": 1, "attempt": 1}
    service.add(
        make_job(),
        make_job(**running, step=1, total_steps=9, loss=2.5, tokens_per_s=1200.0, eta_s=61.0),
        make_job(**running, step=2, total_steps=9),
        make_job(state=JobState.SUCCEEDED, step=9, total_steps=9, reason="all workers ended well"),
    )
    service.events["gpt-0001"] = [make_event(number, f"Sentence {number}.") for number in range(1, 6)]
    service.log, service.log_ends_with_job = "".join(f"output {number}\n" for number in range(30)), True
    done = run("show", "gpt-0001", "--follow")
    assert done.returncode == 0
    assert [done.stdout.count(f"Sentence {number}.") for number in range(1, 6)] == [1] * 5
    assert "RUNNING  step 1/9  loss 2.5000  1,200 tokens/s  61s left" in done.stdout
    output = [line for line in done.stdout.splitlines() if line.startswith("output")]
    assert output == service.log.splitlines()[-10:]
    assert done.stdout.splitlines()[-1] == "SUCCEEDED  step 9/9  all workers ended well"
    assert "\x1b" not in done.stdout


def test_followed_events_end_with_their_job(run: Run, service: FakeService) -> None:
    def happen(path: str) -> None:
        if path == "/api/v1/jobs/gpt-0001" and len(service.script["gpt-0001"]) == 1:
            service.events["gpt-0001"] = [make_event(number, f"Sentence {number}.") for number in range(1, 6)]

    service.before_answer = happen
    for tail, first in ((), 1), (("--tail", "2"), 2), (("--tail", "0"), 4):
        service.events["gpt-0001"] = [make_event(number, f"Sentence {number}.") for number in range(1, 4)]
        service.add(make_job(), make_job(), make_job(state=JobState.SUCCEEDED))
        done = run("events", "gpt-0001", "--follow", *tail)
        assert done.returncode == 0
        sentences = [line.partition("  ")[2] for line in done.stdout.splitlines()]
        assert sentences == [f"Sentence {number}." for number in range(first, 6)]


def test_followed_events_are_one_json_document_in_each_line(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.events["gpt-0001"] = [make_event(number, "Sentence.") for number in (1, 2)]
    lines = [json.loads(line) for line in run("events", "gpt-0001", "-f", "--json").stdout.splitlines()]
    assert [line["event"]["id"] for line in lines] == [1, 2]


def test_following_as_json_prints_one_document_in_each_line(run: Run, service: FakeService) -> None:
    service.add(make_job(), make_job(state=JobState.SUCCEEDED))
    service.events["gpt-0001"] = [make_event(1, "Sentence.")]
    service.log, service.log_ends_with_job = "printed\n", True
    lines = [json.loads(line) for line in run("show", "gpt-0001", "--follow", "--json").stdout.splitlines()]
    assert [next(iter(line)) for line in lines if "line" not in line] == ["event", "job", "job"]
    assert {"line": "printed"} in lines
    assert lines[-1]["job"]["state"] == "SUCCEEDED"


def test_following_on_a_terminal_shows_a_live_line_and_honours_no_color(
    environment: dict[str, str], service: FakeService
) -> None:
    service.log, service.log_ends_with_job = "printed\n", True
    for extra, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
        service.add(make_job(state=JobState.RUNNING, step=3, total_steps=9), make_job(state=JobState.SUCCEEDED, step=9))
        shown = _on_a_terminal(["show", "gpt-0001", "--follow"], {**environment, "TERM": "xterm-256color", **extra})
        assert "step 3/9" in shown
        assert "printed\r\n" in shown
        assert ("\x1b[34m" in shown) is colored


def _on_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    program = Path(sys.executable).with_name("orchestrator")
    process = subprocess.Popen([program, *arguments], env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # on Linux: the other end is closed
            break
    os.close(ours)
    assert process.wait(300) == 0
    return shown.decode()


@pytest.mark.parametrize("how", ["--wait", "--follow"])
def test_ctrl_c_leaves_the_job_running(environment: dict[str, str], service: FakeService, how: str) -> None:
    service.add(make_job(state=JobState.RUNNING))
    watched = threading.Event()
    service.before_answer = lambda path: watched.set() if len(service.requests) > 2 else None
    program = Path(sys.executable).with_name("orchestrator")
    process = subprocess.Popen(
        [program, "show", "gpt-0001", how],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore SIGINT
    )
    try:
        assert watched.wait(300)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "The job continues." in told
    assert "orchestrator cancel gpt-0001" in told
    assert "Traceback" not in told
    assert not service.jobs["gpt-0001"].cancelling


def test_following_survives_a_restart_on_another_port(environment: dict[str, str], service: FakeService) -> None:
    service.add(make_job(state=JobState.RUNNING))
    service.events["gpt-0001"] = [make_event(1, "Before.")]
    program = Path(sys.executable).with_name("orchestrator")
    process = subprocess.Popen(
        [program, "show", "gpt-0001", "--follow"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    service.stop()
    time.sleep(0.5)
    service.events["gpt-0001"].append(make_event(2, "After."))
    service.add(make_job(state=JobState.SUCCEEDED))
    service.start()
    shown = first + process.communicate(timeout=300)[0]
    assert process.returncode == 0
    assert (shown.count("Before."), shown.count("After.")) == (1, 1)


def test_an_unreachable_service_exits_with_status_3(run: Run, service: FakeService) -> None:
    service.stop()
    assert "cannot be reached" in run("ls", ORCHESTRATOR_URL=service.url).stderr
    done = run("ls")
    assert done.returncode == 3
    assert "no service uses the run directory" in done.stderr
    assert "orchestrator serve" in done.stderr
    assert "ORCHESTRATOR_URL" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_submitting_without_any_service_waits_for_no_restart(
    run: Run, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "WRITE_PATIENCE_S", 3600.0)
    assert run("submit", spec).returncode == 3


def test_a_request_to_a_busy_service_is_retried(run: Run, service: FakeService, spec: str) -> None:
    problem = Problem(type="x", title="busy", status=503, detail="the database does not answer")
    service.refusals = [Answer(503, problem)]
    done = run("submit", spec)
    assert (done.returncode, done.stdout) == (0, "gpt-0000\n")
    assert "; trying again" in done.stderr


def test_a_refused_spec_shows_every_field_with_its_pointer(run: Run, service: FakeService, spec: str) -> None:
    done = run("submit", spec, "--set", "prioritie=3", "--set", "topology.nodes=0")
    assert done.returncode == 2
    assert "/prioritie: is not a known field" in done.stderr
    assert "/topology/nodes:" in done.stderr
    assert done.stdout == ""


def test_an_error_is_json_where_json_is_asked_for(run: Run, service: FakeService, spec: str) -> None:
    done = run("submit", spec, "--set", "prioritie=3", "--json")
    error = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, done.stdout) == (2, "")
    assert any(each.startswith("/prioritie: is not a known field") for each in error["details"])
    missing = run("show", "nothing", "--json")
    assert json.loads(missing.stderr)["error"].startswith("there is no job 'nothing'")


def list_commands() -> list[list[str]]:
    """Every command and subcommand, as words."""
    found: list[list[str]] = []
    for name in COMMANDS:
        command = get_command(build_app([name])).commands[name]  # type: ignore[attr-defined]
        found += [[name, *([inner] if inner else [])] for inner in getattr(command, "commands", {"": None})]
    return found


ALL_COMMANDS = list_commands()


@pytest.mark.parametrize("command", [*ALL_COMMANDS, []], ids=" ".join)
def test_help_names_the_value_of_each_option_and_argument_and_fits_80_columns(
    command: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(*command, "--help", COLUMNS="80", TERMINAL_WIDTH="80")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert max(map(len, lines)) <= 80
    assert not re.search(r"<(list\[)?(str|int|float|bool|Path)", done.stdout), "a type of Python"
    options = lines[lines.index("Options:") :]
    values = [found for line in options if (found := re.match(r"  (?:-\w, )?--[\w-]+ ([^ ].*?)(?:  |$)", line))]
    for found in values:
        value = found[1]
        assert re.fullmatch(r"[A-Z=.:|\[\]]+|<\w+(\|\w+)+>|/ --no-\w+", value), value
    assert "ID" not in {found[1] for found in values}


def test_an_option_has_the_same_value_name_in_every_command() -> None:
    names: dict[str, set[str]] = {}
    for name in COMMANDS:
        command = get_command(build_app([name])).commands[name]  # type: ignore[attr-defined]
        for each in (command, *getattr(command, "commands", {}).values()):
            for option in each.params:
                if option.metavar is not None and option.opts[0].startswith("-"):
                    names.setdefault(max(option.opts, key=len), set()).add(option.metavar)
    assert {option: found for option, found in names.items() if len(found) > 1} == {}


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=" ".join)
def test_wrong_usage_is_one_json_object_where_json_is_asked_for(command: list[str], run: Run) -> None:
    done = run(*command, "--no-such-option", "--json")
    error = json.loads(done.stderr)
    assert (done.returncode, done.stdout) == (2, "")
    assert error["error"].startswith("No such option: --no-such-option")
    usage, advice = error["details"]
    assert usage.startswith(f"Usage: orchestrator {' '.join(command)} [OPTIONS]")
    assert advice == f"Try 'orchestrator {' '.join(command)} --help' for help."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ls", "--state", "LOST"], "Invalid value for '--state': 'LOST' is not one of 'queued', "),
        (["chaos", "x", "fire"], "'fire' is not one of 'kill', "),
        (["show"], "Missing argument"),
        (["logs", "x", "--tail", "many"], "Invalid value for '--tail': "),
        (["ls", "--limit", "0"], "Invalid value for '--limit': "),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["token", "frobnicate"], "No such command 'frobnicate'"),
        (["simulate", "--nodes", "x"], "Invalid value for --nodes: is 'x'"),
        (["--profile", "absent", "ls"], "absent"),
    ],
)
def test_wrong_values_are_told_alike_as_text_and_as_json(
    arguments: list[str], says: str, run: Run, service: FakeService
) -> None:
    text, as_json = run(*arguments), run(*arguments, "--json")
    error = json.loads(as_json.stderr)
    assert (text.returncode, as_json.returncode, as_json.stdout) == (2, 2, "")
    assert says in error["error"]
    assert error["error"] in text.stderr
    assert not re.search("Value error|Input should", text.stderr + as_json.stderr)


def test_a_warning_of_the_service_is_printed_once_on_standard_error(run: Run, service: FakeService) -> None:
    service.add(make_job())
    service.warning = "The service cannot write its database."
    for arguments in (["ls"], ["show", "gpt-0001"], ["why", "gpt-0001"], ["logs", "gpt-0001"]):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, f"orchestrator: {service.warning}\n")
    service.warning = ""
    assert run("ls").stderr == ""


def test_an_error_of_the_service_prints_no_traceback(run: Run, service: FakeService) -> None:
    service.refusals = [Answer(500, Problem(type="x", title="oh", status=500, detail="KeyError"))]
    done = run("ls")
    assert done.returncode == 3
    assert "failed: KeyError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["show"], ["ls", "--state", "LOST"], ["logs", "x", "--tail", "-1"]]
)
def test_wrong_usage_exits_with_status_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Usage: orchestrator" in done.stderr


def test_events_snapshots_cancel_retry_and_plan(run: Run, service: FakeService, spec: str) -> None:
    service.add(make_job())
    service.events["gpt-0001"] = [make_event(number, f"Sentence {number}.") for number in range(1, 6)]
    service.snapshots["gpt-0001"] = [make_snapshot("step-2", 2)]
    assert run("events", "gpt-0001").stdout.count("Sentence") == 5
    assert [item["id"] for item in json.loads(run("events", "gpt-0001", "--json").stdout)["items"]] == [1, 2, 3, 4, 5]
    assert "step-2" in run("snapshots", "gpt-0001").stdout
    assert "2.05 kB" in run("snapshots", "gpt-0001").stdout
    assert "is being cancelled" in run("cancel", "gpt-0001").stdout
    assert run("retry", "gpt-0001", "--restore-from", "step-2").returncode == 0
    assert service.bodies[-1] == {"restore_from": "step-2"}
    planned = run("plan", spec).stdout
    assert "mind the gap" in planned
    assert "memory about 7 GB on each of 2 devices\n  7 GB = optimizer 6 GB, overhead 1 GB\n" in planned
    assert json.loads(run("plan", spec, "--json").stdout)["native_kind"] == "processes"


def test_a_closed_pipe_is_no_error_message(environment: dict[str, str], service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.log = "line\n" * 200_000
    program = Path(sys.executable).with_name("orchestrator")
    command = f"{program} logs gpt-0001 -f | head -n 1"
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr) == ("line\n", "")


def test_help_imports_little_and_shows_each_commands_summary() -> None:
    heavy = "httpx", "pydantic", "rich.console", "yaml", "fastapi", "sqlalchemy", "torch", "orchestrator.client"
    loaded = f"[m for m in {heavy} if m in sys.modules]"
    program = f"import sys, orchestrator.cli.main as c; c.build_app(['--help']); print({loaded})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
    for name, (_, summary) in COMMANDS.items():
        if name in ("array", "db", "nodes", "secret", "token", "webhook"):  # groups of commands
            continue
        command = next(info for info in build_app([name]).registered_commands if info.name == name)
        assert command.callback is not None
        assert (command.callback.__doc__ or "").splitlines()[0] == summary


def test_serve_loads_nothing_that_only_other_commands_need() -> None:
    needless = "alembic", "mako", "pygments", "rich.console", "torch"
    loaded = f"[m for m in {needless} if m in sys.modules]"
    program = f"import sys, atexit, orchestrator.cli.main as c; atexit.register(lambda: print({loaded})); c.main()"
    printed = subprocess.check_output([sys.executable, "-c", program, "serve", "--help"], text=True)
    assert printed.startswith("Usage: ")
    assert printed.splitlines()[-1] == "[]"


def test_what_serve_does_not_load_can_still_be_imported_afterwards() -> None:
    program = "import atexit, orchestrator.cli.main as c; atexit.register(lambda: __import__('rich.table')); c.main()"
    done = subprocess.run([sys.executable, "-c", program, "serve", "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command", [[], ["db", "upgrade"], ["db", "check"], ["db", "backup"], *([name] for name in COMMANDS)]
)
def test_every_command_has_help(command: list[str]) -> None:
    arguments = [*command, "--help"]
    done = CliRunner().invoke(build_app(arguments), arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith("Usage: ")
