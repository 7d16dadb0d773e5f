"""Jobs without a file: `run`, `init`, `resubmit`."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml
from pydantic import BaseModel

from orchestrator.cli import follow
from orchestrator.cli.common import INTERRUPTED
from orchestrator.cli.init import TEMPLATE
from orchestrator.client import Client
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec, Placement, Resources, Run, Snapshot, Supervise
from orchestrator.domain.specs.sweep import expand, parse_array
from orchestrator.domain.specs.validation import parse_spec
from tests.cli.conftest import Run as RunCli
from tests.cli.fake_service import FakeService, make_job

PROGRAM = Path(sys.executable).with_name("orchestrator")


def submitted(service: FakeService) -> JobSpec:
    return list(service.jobs.values())[-1].spec


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "2", "train.py", "--lr", "3e-4"], {"script": "train.py", "args": ("--lr", "3e-4")}),
        (["train.py", "-n", "2", "--json"], {"script": "train.py", "args": ("-n", "2", "--json")}),
        (["-m", "pkg.train", "-m", "x"], {"module": "pkg.train", "args": ("-m", "x")}),
        (["--", "python", "-m", "pkg"], {"command": ("python", "-m", "pkg"), "args": ()}),
        (["./train.sh", "--", "a b"], {"command": ("./train.sh", "--", "a b"), "args": ()}),
    ],
)
def test_what_follows_the_program_belongs_to_it(
    run: RunCli, service: FakeService, tmp_path: Path, arguments: list[str], expected: dict[str, object]
) -> None:
    done = run("run", "--detach", *arguments)
    spec = submitted(service)
    assert (done.returncode, done.stdout) == (0, f"{list(service.jobs)[-1]}\n")
    assert {name: getattr(spec.run, name) for name in expected} == expected
    assert spec.run.workdir == str(tmp_path)


def test_options_become_fields(run: RunCli, service: FakeService) -> None:
    more = ["--gpus", "8", "--nodes", "2:4", "--env", "SEED=007", "--set", "supervise.max_runtime_s=60"]
    run("run", "--detach", "--name", "mine", "--cluster", "lab", *more, "src/My_Train.py")
    spec = submitted(service)
    assert (spec.name, spec.cluster, spec.topology.nodes, spec.resources.gpus) == ("mine", "lab", "2:4", 8)
    assert (spec.topology.workers_per_node, spec.run.env, spec.supervise.max_runtime_s) == ("gpu", {"SEED": "007"}, 60)
    run("run", "-d", "src/My_Train.py")
    assert (submitted(service).name, submitted(service).topology.workers_per_node) == ("my-train", 1)


def test_a_member_of_an_array_is_submitted_again_on_its_own(run: RunCli, service: FakeService) -> None:
    document = {"name": "lr", "run": {"script": "a.py", "workdir": "/src"}, "sweep": {"product": {"--lr": [1]}}}
    service.add(make_job(spec=expand(parse_array(document), "lr-aaaaaaaa")[0], name="lr-1"))
    assert run("resubmit", "gpt-0001", "--name", "123", "--detach").returncode == 0
    spec = submitted(service)
    assert (spec.name, spec.array, spec.labels, spec.run.args) == ("123", None, {}, ("--lr", "1"))


@pytest.mark.parametrize("wrong", [["-n", "0"], ["--gpus", "-1"], ["--env", "SEED"]])
def test_wrong_options_are_refused_by_their_name(run: RunCli, service: FakeService, wrong: list[str]) -> None:
    done = run("run", *wrong, "train.py")
    assert done.returncode == 2
    assert wrong[0] in done.stderr
    assert not service.jobs


@pytest.mark.parametrize("program", ["__.py", "/", ""])
def test_a_program_that_names_no_job_is_refused(run: RunCli, service: FakeService, program: str) -> None:
    done = run("run", program)
    assert done.returncode == 2
    assert "it needs a letter or a digit" in done.stderr


@pytest.mark.parametrize("folder", ["d", "./d", "d.py"])
def test_a_folder_is_refused(run: RunCli, service: FakeService, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    done = run("run", "--detach", folder)
    assert (done.returncode, service.jobs) == (2, {})
    assert f"{folder} is a folder; name a Python file or a program in it" in done.stderr


def test_a_program_on_the_path_and_a_module_may_have_the_name_of_a_folder(
    run: RunCli, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "sh").mkdir()
    for arguments in (["sh"], ["-m", "sh"]):
        assert run("run", "--detach", *arguments).returncode == 0


def test_the_exit_status_is_the_jobs(run: RunCli, service: FakeService) -> None:
    service.next_view = {"state": JobState.FAILED, "reason": "rank 0 failed"}
    assert run("run", "train.py").returncode == 1
    service.next_view = {"state": JobState.SUCCEEDED}
    assert run("run", "train.py").returncode == 0


def test_a_job_is_submitted_again_with_changes(run: RunCli, service: FakeService) -> None:
    old = parse_spec({"name": "gpt", "run": {"script": "a.py", "env": {"A": "1"}, "workdir": "/src"}, "priority": 3})
    service.add(make_job(spec=old))
    done = run("resubmit", "gpt-0001", "--name", "again", "--set", "run.env.B=2", "--detach")
    assert done.returncode == 0
    spec = submitted(service)
    assert spec == old.model_copy(
        update={"name": "again", "run": old.run.model_copy(update={"env": {"A": "1", "B": "2"}})}
    )


@pytest.mark.parametrize(
    ("answer", "cancelled", "status"), [(b"y\n", True, 1), (b"\n", False, 130), (None, False, 130)]
)
def test_ctrl_c_on_a_terminal_asks(
    environment: dict[str, str], service: FakeService, answer: bytes | None, cancelled: bool, status: int
) -> None:
    service.next_view = {"state": JobState.RUNNING, "reason": "trains"}
    service.before_answer = lambda _: _end_cancelled(service)
    shown, code = _interrupt_on_a_terminal(environment, answer)
    job = list(service.jobs.values())[-1]
    assert (job.cancelling or job.state is JobState.CANCELLED) is cancelled, shown
    assert f"Cancel {job.id}? y: cancel it. Enter: leave it running." in shown
    assert code == status, shown
    assert ("The job continues." in shown) is not cancelled
    assert "Traceback" not in shown


@pytest.mark.parametrize("place", ["isatty", "echo", "readline"])
def test_a_second_ctrl_c_at_any_moment_leaves_the_job_running(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def ask(text: str, **_: object) -> None:
        if text.startswith("\nCancel"):
            interrupt()
        print(text)

    typed, theirs = os.pipe()
    os.write(theirs, b"y\n")
    terminal = {"isatty": lambda: True, "fileno": lambda: typed, "readline": lambda: "y\n"}
    if place == "echo":
        monkeypatch.setattr(follow, "echo", ask)
    else:
        terminal[place] = interrupt
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(**terminal))
    monkeypatch.setattr(follow, "_wait", interrupt)
    with Client(service.url) as client, pytest.raises(typer.Exit) as ended:
        follow.attend(client, make_job(), follow=False, as_json=False, old_lines=0, ask=True)
    os.close(typed)
    os.close(theirs)
    assert ended.value.exit_code == INTERRUPTED
    assert "The job continues." in "".join(capsys.readouterr())


def _end_cancelled(service: FakeService) -> None:
    for job in list(service.jobs.values()):
        if job.cancelling:
            service.add(job.model_copy(update={"state": JobState.CANCELLED, "cancelling": False}))


def _interrupt_on_a_terminal(environment: dict[str, str], answer: bytes | None) -> tuple[str, int]:
    """Run a job, interrupt the command when it follows the job, and answer its question, or interrupt it again."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "run", "train.py"],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore SIGINT
    )
    os.close(theirs)
    shown = _read_until(ours, b"RUNNING")
    process.send_signal(signal.SIGINT)
    shown += _read_until(ours, b"leave it running. ")
    if answer is None:
        process.send_signal(signal.SIGINT)
    else:
        os.write(ours, answer)
    shown += _read_until(ours, None)
    os.close(ours)
    return shown.decode(), process.wait(300)


def _read_until(terminal: int, words: bytes | None) -> bytes:
    """Read until the words were printed, or until the program has ended."""
    shown = b""
    while words is None or words not in shown:
        assert select.select([terminal], [], [], 300)[0], shown
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # on Linux: the other end is closed
            return shown
    return shown


def uncommented(text: str) -> str:
    return re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE)


def test_the_file_of_init_is_a_job_with_the_defaults(run: RunCli, tmp_path: Path) -> None:
    assert run("init", "src/my_train.py").returncode == 0
    text = (tmp_path / "job.yaml").read_text()
    plain = parse_spec(yaml.safe_load(text))
    assert plain == JobSpec.model_validate({"name": "my-train", "run": {"script": "src/my_train.py"}})
    shown = dict(_leaves(yaml.safe_load(uncommented(text))))
    examples = set(re.findall(r"^ *#?(\w+):.*# e\.g\.", text, flags=re.MULTILINE))
    defaults = dict(_leaves(plain.model_dump(mode="json")))
    parse_spec(yaml.safe_load(uncommented(text)))
    for path, value in shown.items():
        if path.rpartition(".")[2] not in examples and not path.startswith(("run.env", "labels")):
            assert path == "run.workdir" or value == defaults[path], path


def test_init_names_only_fields_that_there_are() -> None:
    document = yaml.safe_load(uncommented(TEMPLATE.format(file="f", name="n", script="s.py")))
    assert document.keys() <= JobSpec.model_fields.keys()
    parts: dict[str, type[BaseModel]] = {"run": Run, "resources": Resources, "placement": Placement}
    parts |= {"snapshot": Snapshot, "supervise": Supervise}
    for name, model in parts.items():
        assert document[name].keys() <= model.model_fields.keys()


@pytest.mark.parametrize("script", ["it's.py", "a: b.py", "# x.py", "0.py", "true.py", "ü b.py", "a.b/c-d_e.py"])
def test_init_quotes_any_script(run: RunCli, tmp_path: Path, script: str) -> None:
    assert run("init", script, "-o", "x.yaml").returncode == 0
    assert parse_spec(yaml.safe_load((tmp_path / "x.yaml").read_text())).run.script == script


def test_init_replaces_no_file(run: RunCli, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    done = run("init")
    assert (done.returncode, done.stderr) == (2, "orchestrator: job.yaml exists; choose another name with -o FILE\n")
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert "cannot write no/where.yaml: No such file or directory" in run("init", "-o", "no/where.yaml").stderr


def _leaves(document: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from _leaves(value, f"{path}.{key}".removeprefix("."))
    else:
        yield path, document
