"""`resources` against a fake service."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from orchestrator.domain.job.job import JobState
from orchestrator.wire.history_views import RankUseView, ResourcesView
from tests.cli.conftest import Run
from tests.cli.fake_service import FakeService, make_job

PATH = "jobs/gpt-0001/resources"


def sampled(*uses: RankUseView, partial: bool = False) -> ResourcesView:
    return ResourcesView(at=[], ranks=[], sampled_ranks=len(uses), starts=[], newest=list(uses), partial=partial)


def use(rank: int, *, gpu_bytes: int | None = None, share: float | None = None) -> RankUseView:
    return RankUseView(
        rank=rank,
        attempt=1,
        generation=2,
        at=datetime.now(UTC),
        memory_bytes=3_840_000_000,
        cpu_cores=1.5,
        gpu_memory_bytes=gpu_bytes,
        gpu_utilization=share,
    )


def test_the_newest_values_of_each_rank_are_listed(run: Run, service: FakeService) -> None:
    service.add(make_job())
    service.accounts[PATH] = sampled(use(0, gpu_bytes=70_000_000_000, share=0.93), use(1), partial=True)
    done = run("resources", "gpt-0001")
    header, first, second = done.stdout.splitlines()
    assert header.split("  ")[0] == "RANK"
    assert first.split()[:8] == ["0", "3.84", "GB", "1.50", "70", "GB", "93%", "2"]
    assert second.split()[:5] == ["1", "3.84", "GB", "1.50", "2"]
    assert done.stderr == "There are more nodes or attempts than one answer covers.\n"
    listed = json.loads(run("resources", "gpt-0001", "--json").stdout)
    assert [each["rank"] for each in listed["newest"]] == [0, 1]


@pytest.mark.parametrize(
    ("state", "launcher", "sentence"),
    [
        (JobState.RUNNING, "torchrun", "No samples: torchrun's agent takes none.\n"),
        (JobState.RUNNING, "elasticrun", "No samples yet. Agents take them while ranks run.\n"),
        (JobState.FAILED, "elasticrun", "No samples were taken.\n"),
    ],
)
def test_without_samples_the_reason_is_told(
    run: Run, service: FakeService, state: JobState, launcher: str, sentence: str
) -> None:
    spec = {"name": "gpt", "run": {"script": "train.py"}, "launcher": launcher}
    service.add(make_job(state=state, spec=spec))
    service.accounts[PATH] = sampled()
    done = run("resources", "gpt-0001")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", sentence)
