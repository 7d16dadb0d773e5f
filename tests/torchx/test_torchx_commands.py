"""torchx's own command line with the plug-in installed, and the plug-in as torchx's runner calls it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torchx.runner import get_runner
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import Stream
from torchx.specs import AppState

from orchestrator.domain.job import JobState
from orchestrator.torchx_scheduler import scheduler as plugin
from orchestrator.wire import Problem
from tests.cli.fake_service import Answer, FakeService, make_failure, make_job

HANDLE = "orchestrator://torchx/gpt-0001"


@pytest.fixture
def here(service: FakeService, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ORCHESTRATOR_ROOT", "ORCHESTRATOR_PORT", "HOME"):
        monkeypatch.setenv(name, environment[name])
    return tmp_path


def torchx(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("torchx")
    return subprocess.run(
        [program, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def test_run_submits_the_script_and_waits_for_its_success(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    service.before_answer = lambda path: (
        service.add(service.jobs["train-0000"].model_copy(update={"state": JobState.SUCCEEDED}))
        if path.endswith("/train-0000")
        else None
    )
    command = (
        "run",
        "-s",
        "orchestrator",
        "-cfg",
        "priority=3",
        "--wait",
        "dist.ddp",
        "-j",
        "1x2",
        "--script",
        "train.py",
    )
    done = torchx(*command, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "orchestrator://torchx/train-0000\n")
    spec = service.jobs["train-0000"].spec
    assert (spec.run.script, spec.run.workdir, spec.topology.workers_per_node) == ("train.py", str(tmp_path), 2)
    assert spec.priority == 3


def test_run_with_wait_fails_with_the_job(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    service.before_answer = lambda path: (
        service.add(service.jobs["train-0000"].model_copy(update={"state": JobState.FAILED, "failure": make_failure()}))
        if path.endswith("/train-0000")
        else None
    )
    done = torchx(
        "run", "-s", "orchestrator", "--wait", "dist.ddp", "--script", "train.py", env=environment, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
    assert "Traceback (most recent" not in done.stderr


def test_dryrun_prints_the_spec_and_submits_nothing(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    done = torchx(
        "run", "-s", "orchestrator", "--dryrun", "dist.ddp", "--script", "train.py", env=environment, cwd=tmp_path
    )
    assert "=== SCHEDULER REQUEST ===\nname: train\nrun:\n" in done.stdout
    assert service.requests == []


def test_status_list_describe_log_and_cancel(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    service.add(make_job(state=JobState.RUNNING, reason="trains", labels={"torchx/role": "train"}))
    service.log = "one\ntwo\n"
    said = {
        command[0]: torchx(*command, env=environment, cwd=tmp_path)
        for command in (
            ("status", HANDLE),
            ("list", "-s", "orchestrator"),
            ("describe", HANDLE),
            ("log", "--regex", "tw", HANDLE),
            ("cancel", HANDLE),
        )
    }
    assert all(done.returncode == 0 for done in said.values()), said
    assert "State: RUNNING" in said["status"].stdout
    assert "train[0]:RUNNING" in said["status"].stdout
    assert "Msg: trains" in said["status"].stdout
    assert f"UI URL: http://127.0.0.1:{service.port}/jobs/gpt-0001" in said["status"].stdout
    assert HANDLE in said["list"].stdout
    assert "'entrypoint': 'train.py'" in said["describe"].stdout
    assert said["log"].stdout.endswith("two\n")
    assert "one" not in said["log"].stdout
    assert service.jobs["gpt-0001"].cancelling


def test_an_unknown_job_has_no_status(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    done = torchx("status", HANDLE, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert "does not exist" in done.stderr


def test_torchx_still_knows_its_own_schedulers(environment: dict[str, str], tmp_path: Path) -> None:
    assert {"local_cwd", "local_docker", "slurm", "kubernetes", "orchestrator"} <= set(get_scheduler_factories())
    said = torchx("run", "--help", env=environment, cwd=tmp_path).stdout
    assert "{kubernetes,local_cwd,local_docker,orchestrator,slurm}" in said
    options = torchx("runopts", "orchestrator", env=environment, cwd=tmp_path).stdout
    for name in ("url", "project", "cluster", "priority", "launcher", "idempotency_key"):
        assert f"{name}=" in options


def test_what_is_refused_is_one_line_and_no_traceback(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    command = ("run", "-s", "orchestrator", "-cfg", "cluster=No Such", "dist.ddp", "--script", "train.py")
    done = torchx(*command, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("orchestrator: /cluster: ")
    assert "Traceback" not in done.stderr


def test_one_key_is_one_job(here: Path, service: FakeService) -> None:
    with get_runner() as runner:
        args = ["--script", "train.py"]
        first, second = (
            runner.run_component("dist.ddp", args, "orchestrator", cfg={"idempotency_key": "k1"}) for _ in range(2)
        )
    assert first == second
    assert len(service.jobs) == 1


def test_wait_goes_on_over_a_restart_on_another_port_and_503s(here: Path, service: FakeService) -> None:
    service.add(make_job(state=JobState.RUNNING))

    def restart() -> None:
        service.stop()
        time.sleep(0.5)
        service.refusals = [Answer(503, Problem(type="x", title="busy", status=503, detail="starting"))]
        service.add(make_job(state=JobState.SUCCEEDED))
        service.start()

    with get_runner() as runner:
        assert runner.status(HANDLE).state is AppState.RUNNING
        threading.Thread(target=restart).start()
        assert runner.wait(HANDLE, wait_interval=0.05).state is AppState.SUCCEEDED


def test_no_service_is_a_short_error_and_never_an_unknown_job(
    here: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.stop()
    monkeypatch.setattr(plugin, "_FIRST_PATIENCE_S", 0.2)
    with pytest.raises(plugin.SchedulerError, match="cannot be reached") as caught:
        plugin.create_scheduler("torchx", ntext_name="cli_run").describe("gpt-0001")
    assert isinstance(caught.value, Exception)  # programs catch it


def test_the_address_may_stand_in_torchxconfig(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    service.add(make_job())
    (tmp_path / ".torchxconfig").write_text(f"[orchestrator]\nurl = http://127.0.0.1:{service.port}\n")
    env = {**environment, "ORCHESTRATOR_ROOT": str(tmp_path / "elsewhere")}
    for command in (("status", HANDLE), ("list", "-s", "orchestrator")):
        done = torchx(*command, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_list_takes_the_argument_of_the_nightly(here: Path, service: FakeService) -> None:
    service.add(make_job())
    scheduler = plugin.create_scheduler("torchx")
    assert [app.app_id for app in scheduler.list({"of": "the nightly"})] == ["gpt-0001"]


def test_a_tailed_log_ends_with_the_job_and_separate_streams_are_refused(here: Path, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.log = "one\n\ntwo\n"
    scheduler = plugin.create_scheduler("torchx")
    assert [*scheduler.log_iter("gpt-0001", "train", 0, should_tail=True)] == ["one\n", "\n", "two\n"]
    assert [*scheduler.log_iter("gpt-0001", "train", 0, regex="^t", streams=Stream.COMBINED)] == ["two\n"]
    with pytest.raises(ValueError, match="must be combined"):
        scheduler.log_iter("gpt-0001", "train", 0, streams=Stream.STDERR)


def test_the_plug_in_is_light() -> None:
    heavy = "torch", "fastapi", "sqlalchemy", "uvicorn", "alembic", "typer"
    program = f"import sys, orchestrator.torchx_scheduler.scheduler; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
