"""The plugin under torchx's command line and under torchx's runner."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from torchx.runner import get_runner
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import Stream
from torchx.specs import AppDef, AppState, Role

from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.torchx_scheduler import scheduler as plugin
from orchestrator.torchx_scheduler import workspace
from orchestrator.wire.problems import Problem
from tests.cli.fake_service import AT, Answer, FakeService, make_failure, make_job

HANDLE = "orchestrator://torchx/gpt-0001"


@pytest.fixture
def here(service: FakeService, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ORCHESTRATOR_ROOT", "HOME"):
        monkeypatch.setenv(name, environment[name])
    return tmp_path


def torchx(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("torchx")
    return subprocess.run(
        [program, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def end_when_polled(service: FakeService, **changes: object) -> None:
    service.before_answer = lambda path: (
        service.add(service.jobs["train-0000"].model_copy(update=changes)) if path.endswith("/train-0000") else None
    )


def test_run_submits_the_script_and_waits_for_its_success(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    end_when_polled(service, state=JobState.SUCCEEDED)
    command = "run -s orchestrator -cfg priority=3 --wait dist.ddp -j 1x2 --script train.py"
    done = torchx(*command.split(), env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "orchestrator://torchx/train-0000\n")
    spec = service.jobs["train-0000"].spec
    assert (spec.run.script, spec.topology.workers_per_node) == ("train.py", 2)
    assert spec.priority == 3


def test_run_with_wait_fails_with_the_job(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    end_when_polled(service, state=JobState.FAILED, failure=make_failure())
    command = "run -s orchestrator --wait dist.ddp --script train.py"
    done = torchx(*command.split(), env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
    assert "Traceback (most recent" not in done.stderr


DRY = ("run", "-s", "orchestrator", "--dryrun", "dist.ddp", "--script", "train.py")


def test_dryrun_prints_the_spec_with_the_native_request_and_submits_nothing(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    done = torchx(*DRY, env=environment, cwd=tmp_path)
    request = done.stdout.partition("=== SCHEDULER REQUEST ===\n")[2]
    assert request.startswith("name: train\nrun:\n")
    assert f"# as if from {tmp_path}, which will be copied\n# warning" in request
    assert request.endswith("# warning: mind the gap\n# processes:\n# text\n")
    assert parse_spec(yaml.safe_load(request)).name == "train", "the output is a valid job file"
    assert service.requests == [("POST", "/api/v1/plan")]
    assert service.bodies[-1]["run"]["workdir"] == str(tmp_path), "the original workspace, since nothing is copied yet"  # type: ignore[index]
    assert not list((tmp_path / "root").rglob(".workspaces")), "nothing was copied"


def test_dryrun_needs_no_service(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    service.stop()
    done = torchx(*DRY, env=environment, cwd=tmp_path)
    assert done.returncode == 0
    assert "# the native request is not known: no service uses" in done.stdout


def submit(folder: Path | None, **cfg: str) -> None:
    with get_runner() as runner:
        text = None if folder is None else f"file://{folder}"
        runner.run_component("dist.ddp", ["--script", "train.py"], "orchestrator", cfg=cfg, workspace=text)


def workdirs(service: FakeService) -> list[Path]:
    return [Path(job.spec.run.workdir) for job in service.jobs.values()]


def test_each_submission_copies_the_workspace_without_ignored_files(here: Path, service: FakeService) -> None:
    code = here / "code"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "a.py").write_text("a")
    (code / "big.bin").write_text("big")
    (code / ".torchxignore").write_text("*.bin\n")
    for text in ("first", "second"):
        (code / "train.py").write_text(text)
        submit(code)
    copies = workdirs(service)
    assert [(copy / "train.py").read_text() for copy in copies] == ["first", "second"]
    assert all(copy.parent == service.root / ".workspaces" for copy in copies)
    assert sorted(path.name for path in copies[0].rglob("*")) == [".torchxignore", "a.py", "pkg", "train.py"]


def test_a_run_directory_within_the_workspace_is_not_copied(here: Path, service: FakeService) -> None:
    assert service.root.parent == here
    (here / "train.py").touch()
    for _ in range(2):
        submit(here)
    assert [[path.name for path in copy.iterdir()] for copy in workdirs(service)] == [["train.py"], ["train.py"]]


def test_a_workspace_is_not_copied_if_no_folder_of_the_service_is_known(
    here: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_URL", f"http://127.0.0.1:{service.port}")
    monkeypatch.setenv("ORCHESTRATOR_ROOT", "/nowhere")
    (here / "train.py").touch()
    submit(here)
    submit(here, workspace_dir=str(here / "shared"))
    original, copied = workdirs(service)
    assert (original, copied.parent) == (here, here / "shared")
    assert (copied / "train.py").exists()


def test_a_large_workspace_is_not_copied_and_is_an_error_with_workspace_dir(
    here: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MOST_FILES", 1)
    for name in ("train.py", "data"):
        (here / name).touch()
    submit(here)
    assert workdirs(service) == [here]
    with pytest.raises(
        plugin.SchedulerError, match=r"more than 256 MB or 1 files: list what is not code in \.torchxignore"
    ):
        submit(here, workspace_dir=str(here / "shared"))


def test_without_a_workspace_the_job_runs_in_the_current_folder(here: Path, service: FakeService) -> None:
    submit(None)
    assert workdirs(service) == [here]


def test_status_list_describe_log_and_cancel(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    service.add(make_job(state=JobState.RUNNING, reason="trains", labels={"torchx/role": "train"}))
    service.log = "one\ntwo\n"
    results = {
        command[0]: torchx(*command, env=environment, cwd=tmp_path)
        for command in (
            ("status", HANDLE),
            ("list", "-s", "orchestrator"),
            ("describe", HANDLE),
            ("log", "--regex", "tw", HANDLE),
            ("cancel", HANDLE),
        )
    }
    assert all(done.returncode == 0 for done in results.values()), results
    assert "State: RUNNING" in results["status"].stdout
    assert "train[0]:RUNNING" in results["status"].stdout
    assert "Msg: trains" in results["status"].stdout
    assert f"UI URL: http://127.0.0.1:{service.port}/jobs/gpt-0001" in results["status"].stdout
    assert HANDLE in results["list"].stdout
    assert "'entrypoint': 'train.py'" in results["describe"].stdout
    assert results["log"].stdout.endswith("two\n")
    assert "one" not in results["log"].stdout
    assert service.jobs["gpt-0001"].cancelling


def test_an_unknown_job_has_no_status(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    done = torchx("status", HANDLE, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert "does not exist" in done.stderr


def test_torchx_keeps_its_own_schedulers(environment: dict[str, str], tmp_path: Path) -> None:
    assert {"local_cwd", "local_docker", "slurm", "kubernetes", "orchestrator"} <= set(get_scheduler_factories())
    output = torchx("run", "--help", env=environment, cwd=tmp_path).stdout
    assert "{kubernetes,local_cwd,local_docker,orchestrator,slurm}" in output
    options = torchx("runopts", "orchestrator", env=environment, cwd=tmp_path).stdout
    for name in ("url", "project", "cluster", "priority", "launcher", "idempotency_key", "workspace_dir"):
        assert f"{name}=" in options


def test_an_error_is_one_line_without_a_traceback(
    service: FakeService, environment: dict[str, str], tmp_path: Path
) -> None:
    command = ("run", "-s", "orchestrator", "-cfg", "cluster=No Such", "dist.ddp", "--script", "train.py")
    done = torchx(*command, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("orchestrator: /cluster: ")
    assert "Traceback" not in done.stderr


def test_one_idempotency_key_makes_one_job(here: Path, service: FakeService) -> None:
    with get_runner() as runner:
        args = ["--script", "train.py"]
        first, second = (
            runner.run_component("dist.ddp", args, "orchestrator", cfg={"idempotency_key": "k1"}, workspace=str(here))
            for _ in range(2)
        )
    assert first == second
    assert len(service.jobs) == 1


def test_wait_survives_a_restart_on_another_port_and_503s(here: Path, service: FakeService) -> None:
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


def test_an_unreachable_service_is_an_error_and_not_an_unknown_job(
    here: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.stop()
    monkeypatch.setattr(plugin, "_FIRST_PATIENCE_S", 0.2)
    with pytest.raises(plugin.SchedulerError, match="no service uses the run directory") as caught:
        plugin.create_scheduler("torchx", ntext_name="cli_run").describe("gpt-0001")
    assert isinstance(caught.value, Exception)  # programs catch it


def test_the_url_can_be_set_in_torchxconfig(service: FakeService, environment: dict[str, str], tmp_path: Path) -> None:
    service.add(make_job())
    (tmp_path / ".torchxconfig").write_text(f"[orchestrator]\nurl = http://127.0.0.1:{service.port}\n")
    env = {**environment, "ORCHESTRATOR_ROOT": str(tmp_path / "elsewhere")}
    for command in (("status", HANDLE), ("list", "-s", "orchestrator")):
        done = torchx(*command, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_the_calls_of_the_nightly_are_answered(here: Path, service: FakeService) -> None:
    service.add(make_job(state=JobState.RUNNING))
    scheduler = plugin.create_scheduler("torchx")
    assert [app.app_id for app in scheduler.list({"of": "the nightly"})] == ["gpt-0001"]
    native = scheduler.describe_native("gpt-0001")
    assert native is not None
    assert str(native).startswith("name: gpt\nrun:\n")
    assert scheduler.describe_native("none-1") is None


def test_delete_ends_the_job_first_and_then_removes_its_record(
    here: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nightly's `torchx delete`."""
    monkeypatch.setattr(plugin, "_END_S", 0.0)
    service.add(make_job(state=JobState.RUNNING))
    scheduler = plugin.create_scheduler("torchx")
    with pytest.raises(plugin.SchedulerError, match="is being cancelled; delete it once it has ended"):
        scheduler._delete_existing("gpt-0001")
    assert service.jobs["gpt-0001"].cancelling
    service.add(make_job(state=JobState.SUCCEEDED))
    scheduler._delete_existing("gpt-0001")
    assert "gpt-0001" not in service.jobs


def test_several_folders_travel_as_one_when_the_job_is_submitted(here: Path, service: FakeService) -> None:
    """The class stands in for torchx.specs.Workspace of the nightly build."""

    class Workspace:
        def is_unmapped_single_project(self) -> bool:
            return False

        def merge_into(self, folder: str) -> None:
            Path(folder, "merged.py").touch()

    scheduler, role = plugin.create_scheduler("torchx"), Role("train", "", entrypoint="./a")
    role.workspace = Workspace()
    scheduler.caching_build_workspace_and_update_role(role, {}, {})
    planned = scheduler.submit_dryrun(AppDef("train", [role]), {})
    assert not (service.root / ".workspaces").exists()
    job = service.jobs[scheduler.schedule(planned)]
    assert [path.name for path in Path(job.spec.run.workdir).iterdir()] == ["merged.py"]


def test_a_tailed_log_ends_with_the_job_and_separate_streams_are_refused(here: Path, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.log = "one\n\ntwo\n"
    scheduler = plugin.create_scheduler("torchx")
    assert [*scheduler.log_iter("gpt-0001", "train", 0, should_tail=True)] == ["one\n", "\n", "two\n"]
    assert [*scheduler.log_iter("gpt-0001", "train", 0, regex="^t", streams=Stream.COMBINED)] == ["two\n"]
    with pytest.raises(ValueError, match="must be combined"):
        scheduler.log_iter("gpt-0001", "train", 0, streams=Stream.STDERR)
    with pytest.raises(ValueError, match="keeps no times"):
        scheduler.log_iter("gpt-0001", "train", 0, since=AT)


def test_the_plug_in_imports_no_heavy_packages() -> None:
    heavy = "torch", "fastapi", "sqlalchemy", "uvicorn", "alembic", "typer"
    program = f"import sys, orchestrator.torchx_scheduler.scheduler; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
