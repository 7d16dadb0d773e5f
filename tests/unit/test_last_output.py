"""When the workers of an attempt last printed, read from their log files."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.domain.explanation.quiet import Output
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.logs.output import MOST_LOOKED_AT, find_last_output, read_moment
from tests.builders import at

REPLICAS = 4


def write(root: Path, where: str, *, seconds: float, text: str = "step\n") -> Path:
    path = root / "job-1/attempts/1" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    moment = at(seconds).timestamp()
    os.utime(path, (moment, moment))
    return path


def look(root: Path, replicas: int = REPLICAS) -> Output | None:
    return find_last_output(JobFolder(root, "job-1"), 1, replicas)


def test_the_worker_that_printed_last_counts(tmp_path: Path) -> None:
    write(tmp_path, "replica-0/1/g1/local-0/log", seconds=5)
    write(tmp_path, "replica-1/1/g1/local-1/log", seconds=9)
    assert look(tmp_path) == Output(at=at(9), worker="replica 1, local rank 1")


def test_on_one_node_the_local_rank_is_the_rank(tmp_path: Path) -> None:
    write(tmp_path, "replica-0/1/g1/local-3/log", seconds=5)
    assert look(tmp_path, replicas=1) == Output(at=at(5), worker="rank 3")


def test_only_the_newest_generation_of_the_newest_incarnation_counts(tmp_path: Path) -> None:
    write(tmp_path, "replica-0/1/g7/local-0/log", seconds=90)
    write(tmp_path, "replica-0/2/g1/local-0/log", seconds=80)
    write(tmp_path, "replica-0/2/g10/local-0/log", seconds=3)
    write(tmp_path, "replica-0/2/g9/local-0/log", seconds=70)
    assert look(tmp_path, replicas=1) == Output(at=at(3), worker="rank 0")


def test_an_empty_log_is_no_output_but_a_shortened_one_is(tmp_path: Path) -> None:
    write(tmp_path, "replica-0/1/g1/local-0/log", seconds=50, text="")
    assert look(tmp_path) == Output(at=None, started_at=at(50))
    write(tmp_path, "replica-0/1/g1/local-0/log.1", seconds=40)
    assert look(tmp_path, replicas=1) == Output(at=at(40), worker="rank 0")


def test_a_missing_folder_has_no_output(tmp_path: Path) -> None:
    assert look(tmp_path) is None


def test_links_pipes_and_folders_instead_of_logs_are_skipped(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of somebody else\n")
    folder = write(tmp_path, "replica-0/1/g1/local-0/log", seconds=5).parent.parent
    for rank, make in ((1, lambda log: log.symlink_to(outside)), (2, os.mkfifo), (3, Path.mkdir)):
        (folder / f"local-{rank}").mkdir()
        make(folder / f"local-{rank}" / "log")
    (folder / "local-4").symlink_to(tmp_path)
    (tmp_path / "job-1/attempts/1/replica-1").symlink_to(tmp_path / "job-1/attempts/1/replica-0")
    assert look(tmp_path) == Output(at=at(5), worker="replica 0, local rank 0")


def test_a_time_beyond_the_calendar_is_no_output() -> None:
    assert [read_moment(seconds) for seconds in (1e18, -1e18, float("inf"))] == [None, None, None]


def test_only_the_first_of_very_many_workers_are_read(tmp_path: Path) -> None:
    write(tmp_path, "replica-0/1/g1/local-0/log", seconds=5)
    write(tmp_path, f"replica-{MOST_LOOKED_AT}/1/g1/local-0/log", seconds=9)
    assert look(tmp_path, replicas=MOST_LOOKED_AT + 1) == Output(at=at(5), worker="replica 0, local rank 0")
