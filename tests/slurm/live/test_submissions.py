"""Each attempt trains once, whatever happens to its submission. A job that can never start says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.client.transport import RequestRefused
from tests.slurm.live.lab import BY_REST, Lab, soon

pytestmark = pytest.mark.timeout(1200)
SHORT = {"steps": 40}


def stub(folder: Path, text: str) -> str:
    """Make a folder with a `sbatch` that wraps the real one."""
    if BY_REST:
        pytest.skip("slurmrestd needs no sbatch")
    folder.mkdir()
    path = folder / "sbatch"
    path.write_text(f"#!/bin/bash\nreal={shutil.which('sbatch')}\n{text}\n")
    path.chmod(0o755)
    return str(folder)


def test_an_accepted_submission_whose_answer_was_lost_is_found(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    once = tmp_path / "once"
    text = f'if [ -e {once} ]; then exec "$real" "$@"; fi; touch {once}; "$real" "$@" >/dev/null; sleep 30'
    lab = open_lab(bin_dir=stub(tmp_path / "bin", text), command_timeout_s=3)
    job = lab.submit(trainer=SHORT)
    done = lab.succeeded(job)
    assert (done.attempts, len(lab.slurm_jobs(job))) == (1, 1)


def test_only_one_of_two_submissions_of_an_attempt_trains(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    script = tmp_path / "script"
    text = f'cat >{script}; "$real" "$@" <{script} >/dev/null; exec "$real" "$@" <{script}'
    lab = open_lab(bin_dir=stub(tmp_path / "bin", text))
    job = lab.submit(trainer=SHORT)
    done = lab.succeeded(job)
    rows = lab.slurm_jobs(job)
    assert (done.attempts, len(rows)) == (1, 2)
    assert lab.steps(job) == list(range(1, 41))
    soon(lambda: {state for _, _, state in lab.slurm_jobs(job)} == {"COMPLETED", "FAILED"}, str(lab.slurm_jobs(job)))
    assert "is held by another submission" in lab.printed(job)


@pytest.mark.smoke
def test_a_service_that_is_killed_during_the_submission_starts_the_job_once(
    open_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    text = f'"$real" "$@" >{answer}.part && mv {answer}.part {answer}; sleep 4; cat {answer}'
    lab = open_lab(bin_dir=stub(tmp_path / "bin", text), command_timeout_s=8)
    job = lab.submit(trainer=SHORT)
    soon(answer.exists, "nothing was submitted")
    lab.service.kill()
    lab.service.start()
    done = lab.succeeded(job)
    assert (done.attempts, len(lab.slurm_jobs(job))) == (1, 1)
    assert lab.steps(job) == list(range(1, 41))


def test_a_job_that_ends_while_the_service_is_down_succeeds(lab: Lab) -> None:
    job = lab.submit(trainer=SHORT)
    lab.at_step(job, 5)
    lab.service.kill()
    soon(lambda: [state for _, _, state in lab.slurm_jobs(job)] == ["COMPLETED"], "it does not end")
    lab.service.start()
    assert lab.succeeded(job).attempts == 1


def test_nodes_that_cannot_reach_the_service_report_through_the_run_directory(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab({"ORCHESTRATOR_ADVERTISE_URL": "http://10.255.255.1:9"})
    job = lab.submit(trainer=SHORT)
    done = lab.succeeded(job)
    assert (done.step, done.attempts) == (40, 1)


def test_a_job_that_can_never_start_says_why(lab: Lab, tmp_path: Path) -> None:
    nowhere = lab.submit(placement={"partition": "nowhere"})
    too_many = lab.submit(topology={"nodes": "9"})
    too_large = lab.submit(resources={"memory_gb": 900})
    sentences = {}
    for job in (nowhere, too_many, too_large):
        ended = lab.until(job, lambda job: job.ended)
        assert ended.state == "FAILED"
        # Slurm may keep a failed job for a refused submission.
        assert {state for _, _, state in lab.slurm_jobs(job)} <= {"FAILED"}
        assert ended.failure is not None
        assert ended.failure.kind == "launch"
        sentences[job] = ended.reason
    assert "Invalid partition name" in sentences[nowhere]
    assert "needs 9 nodes; partition main has 4" in sentences[too_many]
    too_much = (
        "Requested node configuration is not available" if BY_REST else "Memory specification can not be satisfied"
    )
    assert too_much in sentences[too_large]
    with pytest.raises(RequestRefused) as refusal:
        lab.submit(placement={"time_limit_s": 0})
    assert "/placement/time_limit_s" in str(refusal.value.problem)
    code = tmp_path / "code"
    code.mkdir()
    with pytest.raises(RequestRefused) as refusal:
        lab.submit(run={"script": "gone.py", "workdir": str(code)})
    assert "/run/script" in str(refusal.value.problem)


def test_a_script_that_disappears_is_a_failed_launch(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = open_lab(prolog="rm -f /tmp/never && cd /")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('never')\n")
    blocker = lab.slurm.run("sbatch", "--parsable", "-N4", "--cpus-per-task=4", "--wrap=sleep 60", "-o", "/dev/null")
    job = lab.submit(run={"script": "train.py", "workdir": str(code)}, topology={"nodes": "1"})
    lab.until(job, lambda job: "waits in Slurm's queue" in job.reason)
    for packed in (lab.service.root / ".workdirs").glob("*/train.py"):
        packed.unlink()
    lab.slurm.run("scancel", blocker.strip())
    ended = lab.until(job, lambda job: job.ended)
    assert ended.state == "FAILED"
    assert "train.py' does not exist" in ended.reason


def test_a_missing_python_is_a_failed_launch(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab(python="/opt/none/python3")
    ended = lab.until(lab.submit(), lambda job: job.ended)
    assert ended.state == "FAILED"
    assert "no Python 3.10 or newer: /opt/none/python3 on n1" in ended.reason


def test_a_workdir_that_is_not_shared_is_copied_once(lab: Lab, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import pathlib, sys; print(pathlib.Path.cwd(), sys.argv)\n")
    for _ in range(2):
        job = lab.submit(run={"script": "train.py", "args": ["a b"], "workdir": str(code)}, topology={"nodes": "1"})
        lab.succeeded(job)
        assert "['train.py', 'a b']" in lab.client.logs(job)
    packed = [path for path in (lab.service.root / ".workdirs").iterdir() if not path.name.startswith(".")]
    assert [path.name for path in packed[0].iterdir()] == ["train.py"]
    assert len(packed) == 1
