"""What `plan` prints besides the launch."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.fake_service import FakeService, make_job

SPEC = "name: gpt\nrun: {script: train.py, workdir: /src}\n"


def test_a_plan_shows_what_fits_and_the_queue(run: Run, service: FakeService) -> None:
    told = run("plan", "-", stdin=SPEC).stdout
    assert " * DDP: 7 GB, fits" in told
    assert "queue  the job would wait: needs 2 slots; 1 of 4 is free; 3 jobs ahead of it" in told
    assert "avoids n7, which have recorded failures" in told
    assert "starts from /runs/a/step-00000010-a1-g1" in told


def test_a_plan_of_local_processes_shows_each_command_once(run: Run, service: FakeService) -> None:
    for kind, times in (("processes", 1), ("sbatch", 2)):
        service.native_kind, service.native_request = kind, "A=1 python train.py"
        told = run("plan", "-", stdin=SPEC).stdout
        assert told.count("python train.py") == times
        assert told.endswith(f"\n{kind}\nA=1 python train.py\n")


def test_a_diff_shows_changes_and_repeated_steps(run: Run, service: FakeService, tmp_path: Path) -> None:
    service.add(make_job())
    done = run("plan", "-", "--diff", "gpt-0001", stdin=SPEC)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "spec of gpt-0001, attempt 2: changes",
        '-  "workers_per_node": 2',
        '+  "workers_per_node": 3',
        "request of gpt-0001, attempt 2: no change",
        "its next attempt starts from step-00000010-a1-g1 and repeats 4 steps, in about 8s",
    ]
    assert service.queries[-1] == {"against": "gpt-0001"}
