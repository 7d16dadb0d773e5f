"""What ranks use, over HTTP, from files that a job may have written."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.queries import resource_files
from orchestrator.queries.resource_files import SamplesRead, read_samples
from tests.api.conftest import World
from tests.builders import NOW, make_attempt
from tests.documents import mutated
from tests.examples import examples
from trainer.contract.clock import render_time
from trainer.contract.resource_sample import MOST_RANKS, RankSample, Sample, render_sample


def line(second: float, *memory: int, generation: int = 1) -> str:
    at = render_time(NOW + timedelta(seconds=second))
    ranks = tuple(RankSample(rank=rank, memory_bytes=used, cpu_cores=0.5) for rank, used in enumerate(memory))
    return json.dumps(render_sample(Sample(at=at, generation=generation, ranks=ranks)))


def started(world: World, **fields: object) -> str:
    job_id = world.submit()
    world.start(job_id, state=AttemptState.RUNNING, created_at=NOW, **fields)
    return job_id


def test_the_newest_values_and_the_series_of_each_rank_are_shown(world: World) -> None:
    job_id = started(world)
    lines = [line(0, 5, 6), line(10, 7, 8), line(20, 9, 4, generation=2)]
    world.write_log(job_id, "\n".join(lines) + "\n", "1/resources.jsonl")
    found = world.client.get(f"/api/v1/jobs/{job_id}/resources").json()
    assert [(each["rank"], each["memory_bytes"]) for each in found["ranks"]] == [(0, [5, 7, 9]), (1, [6, 8, 4])]
    assert [(each["attempt"], each["generation"]) for each in found["starts"]] == [(1, 1), (1, 2)]
    assert [(each["rank"], each["memory_bytes"], each["generation"]) for each in found["newest"]] == [
        (0, 9, 2),
        (1, 4, 2),
    ]
    assert found["newest"][0]["gpu_memory_bytes"] is None
    assert (found["sampled_ranks"], found["partial"]) == (2, False)
    one = world.client.get(f"/api/v1/jobs/{job_id}/resources?rank=1&points=1").json()
    assert [(each["rank"], each["memory_bytes"]) for each in one["ranks"]] == [(1, [8])]


def test_a_job_without_samples_shows_nothing(world: World) -> None:
    for job_id in (world.submit(), started(world)):
        found = world.client.get(f"/api/v1/jobs/{job_id}/resources").json()
        assert (found["at"], found["ranks"], found["newest"], found["starts"]) == ([], [], [], [])
    assert world.client.get("/api/v1/jobs/none/resources").status_code == 404


def test_a_job_whose_cluster_is_gone_shows_nothing(world: World) -> None:
    job_id = started(world)
    world.write_log(job_id, line(0, 5) + "\n", "1/resources.jsonl")
    world.clusters.clear()
    assert world.client.get(f"/api/v1/jobs/{job_id}/resources").json()["ranks"] == []


def test_samples_of_all_attempts_and_incarnations_are_shown(world: World) -> None:
    job_id = started(world)
    world.start(job_id, 2, state=AttemptState.RUNNING, created_at=NOW)
    for second, (where, attempt) in enumerate([("1", 1), ("2", 1), ("1", 2)]):
        world.write_log(job_id, line(second, 5) + "\n", f"{where}/resources.jsonl", attempt)
    found = world.client.get(f"/api/v1/jobs/{job_id}/resources").json()
    assert len(found["at"]) == 3
    assert [each["attempt"] for each in found["starts"]] == [1, 2]


def test_the_older_half_of_a_pods_samples_comes_first(world: World) -> None:
    job_id = started(world)
    world.write_log(job_id, line(1, 5) + "\n", "1/resources.jsonl.1")
    world.write_log(job_id, line(2, 6) + "\n", "1/resources.jsonl")
    assert world.client.get(f"/api/v1/jobs/{job_id}/resources").json()["ranks"][0]["memory_bytes"] == [5, 6]


@pytest.mark.parametrize(
    "planted",
    [
        line(-7200, 9),  # before the attempt
        line(7200, 9),  # in the future
        line(1, 9).replace("+00:00", "").replace("Z", ""),  # no zone
        line(1, 9).replace('"ranks": [0]', '"ranks": [64]'),  # more ranks than a node may have
        line(1, 9).replace('"ranks": [0]', f'"ranks": {list(range(MOST_RANKS + 1))}'),
        line(1, 9) + " " * 70_000,
        "[" * 100_000,
        '{"at": ' * 10_000,
        "\x00\x01",
        "9" * 5000,
    ],
)
def test_a_planted_line_costs_only_itself(world: World, planted: str) -> None:
    job_id = started(world)
    world.write_log(job_id, "\n".join([line(0, 5), planted, line(1, 6), '{"at": "2026']), "1/resources.jsonl")
    found = world.client.get(f"/api/v1/jobs/{job_id}/resources").json()
    assert [(each["rank"], each["memory_bytes"]) for each in found["ranks"]] == [(0, [5, 6])]


def read(root: Path, *, nodes: str = "1", attempts: int = 1) -> SamplesRead:
    newest_first = [make_attempt("j", number, nodes=nodes, created_at=NOW) for number in range(attempts, 0, -1)]
    return read_samples(JobFolder(root, "j"), newest_first, NOW)


def place(root: Path, attempt: int = 1, replica: int = 0, incarnation: int = 1) -> Path:
    folder = root / f"j/attempts/{attempt}/replica-{replica}/{incarnation}"
    folder.mkdir(parents=True)
    return folder / "resources.jsonl"


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(line(0, 5) + "\n")
    place(tmp_path).symlink_to(tmp_path / "outside")
    os.mkfifo(place(tmp_path, 1, 0, 2))
    place(tmp_path, 1, 0, 3).mkdir()
    assert read(tmp_path).taken == []


def test_a_sparse_file_is_read_from_its_end(tmp_path: Path) -> None:
    with place(tmp_path).open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line(0, 5).encode() + b"\n")
    assert [each.ranks[0].memory_bytes for each in read(tmp_path).taken] == [5]


def test_the_number_of_values_is_limited_and_the_newest_are_read(tmp_path: Path) -> None:
    wide = line(0, *[1] * MOST_RANKS)
    place(tmp_path).write_text("\n".join([*[wide] * 900, line(1, 5)]) + "\n")
    found = read(tmp_path)
    assert sum(len(each.ranks) for each in found.taken) < resource_files._MOST_VALUES
    assert found.taken[-1].ranks[0].memory_bytes == 5


def test_the_number_of_files_is_limited_and_the_newest_attempt_is_read_first(tmp_path: Path) -> None:
    for attempt in (1, 2):
        for replica in range(100):
            place(tmp_path, attempt, replica).write_text(line(0, 5) + "\n")
    found = read(tmp_path, nodes="100", attempts=2)
    assert len(found.taken) == resource_files.MOST_FILES
    assert [each.attempt for each in found.taken] == [2] * 100 + [1] * 28
    assert found.partial
    assert not read(tmp_path, nodes="50", attempts=2).partial
    assert read(tmp_path, nodes="1", attempts=17).partial


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30, 500))
@given(document=mutated(json.loads(line(0, 5, 6))), noise=st.binary(max_size=200))
def test_any_file_is_read_to_its_end(tmp_path: Path, document: dict[str, object], noise: bytes) -> None:
    path = tmp_path / "j/attempts/1/replica-0/1/resources.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(noise + b"\n" + json.dumps(document).encode() + b"\n" + line(0, 5).encode() + b"\n")
    found = read(tmp_path)
    assert found.taken[-1].ranks[0].memory_bytes == 5
    for taken in found.taken:
        for sample in taken.ranks:
            assert sample.gpu_utilization is None or 0 <= sample.gpu_utilization <= 1
