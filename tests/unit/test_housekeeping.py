"""What housekeeping removes, when, and what it must keep."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.domain.accounting.retention import DataKind, Retention, before, last_needed, tell_removal
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.domain.job.event import Event
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.store.records import EndedJob, EndedJobs
from orchestrator.upkeep.housekeeping import TRASH, Housekeeper
from orchestrator.upkeep.trash import TrashSweeper
from tests.builders import NOW

FOREVER = Retention(
    logs_days=None, metrics_days=None, events_days=None, snapshots_days=None, shipped_days=None, deliveries_days=None
)
DAY_S = 86400


@dataclass
class Registry:
    """A fake RetentionStore. `jobs` has the end of each ended job by id."""

    jobs: dict[str, datetime] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    oldest: datetime | None = None
    used: set[str] = field(default_factory=set)
    told: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)  # of metrics, by job
    lesser: dict[str, int] = field(default_factory=dict)  # events
    gone: list[str] = field(default_factory=list)
    owed: list[datetime] = field(default_factory=list)
    asked: int = 0
    unreadable: set[str] = field(default_factory=set)
    error: Exception | None = None

    def ended(
        self, cluster: str, kind: DataKind, *, before: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> EndedJobs:
        self.asked += 1
        if self.error is not None:
            raise self.error
        assert cluster == "local"
        found = sorted((at, name) for name, at in self.jobs.items() if at < before)
        looked = [EndedJob(name, at) for at, name in found if after is None or (at, name) > after][:limit]
        rows = {DataKind.METRICS: self.rows, DataKind.EVENTS: self.lesser}.get(kind)
        jobs = [job for job in looked if rows is None or rows.get(job.job_id)]
        return EndedJobs(jobs=jobs, last=(looked[-1].finished_at, looked[-1].job_id) if looked else None)

    def is_needed(self, job_id: str) -> bool:
        return job_id in self.needed

    def oldest_live(self) -> datetime | None:
        return self.oldest

    def workdirs(self, *, since: datetime) -> Collection[str]:
        return self.used

    def add_event(self, job_id: str, event: Event) -> None:
        self.told.append((job_id, event.sentence))

    def forget_metrics(self, job_id: str, event: Event, *, limit: int) -> int:
        if job_id in self.unreadable:
            raise ValueError("out of range")
        return self._take(self.rows, job_id, limit)

    def forget_events(self, job_id: str, *, limit: int) -> int:
        return self._take(self.lesser, job_id, limit)

    def forget_snapshots(self, job_id: str) -> None:
        self.gone.append(job_id)

    def forget_deliveries(self, *, before: datetime, limit: int) -> int:
        self.owed.append(before)
        return 0

    def _take(self, rows: dict[str, int], job_id: str, limit: int) -> int:
        taken = min(limit, rows.get(job_id, 0))
        rows[job_id] = rows.get(job_id, 0) - taken
        return taken


@dataclass
class World:
    root: Path
    clock: VirtualClock
    registry: Registry

    def job(self, name: str, *, days_ago: float) -> Path:
        folder = self.root / name
        for path in ("attempts/1/replica-0/1", "cache/inductor", "snapshots/step-1-a1-g1", "fence"):
            (folder / path).mkdir(parents=True)
        self.registry.jobs[name] = self.clock.now() - timedelta(days=days_ago)
        return folder

    def shipped(self, path: str, *, days_ago: float) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True)
        used = (self.clock.now() - timedelta(days=days_ago)).timestamp()
        os.utime(folder, (used, used))
        return folder

    def keeper(self, **keep: float | None) -> Housekeeper:
        kept = Retention(**{**dict.fromkeys(FOREVER.__slots__), **keep})  # type: ignore[arg-type]
        return Housekeeper("local", self.root, self.registry, self.clock, kept)

    def tidy(self, **keep: float | None) -> None:
        """Clean up until there is nothing left to do."""
        keeper, asked = self.keeper(**keep), -1
        for _ in range(100):
            if asked == self.registry.asked:
                return
            asked = self.registry.asked
            keeper.tidy()

    def trash(self) -> int:
        folder = self.root / TRASH
        return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, VirtualClock(NOW), Registry())


def test_logs_are_removed_after_their_time_and_snapshots_and_fence_stay(world: World) -> None:
    old, young = world.job("old", days_ago=91), world.job("young", days_ago=89)
    world.tidy(logs_days=90.0)
    assert sorted(path.name for path in old.iterdir()) == ["fence", "snapshots"]
    assert len(list(young.iterdir())) == 4
    assert world.registry.told == [("old", "its logs and journals are removed, 90 days after its end")]
    assert world.trash() == 2


def test_nothing_is_removed_if_everything_is_kept(world: World) -> None:
    folder = world.job("old", days_ago=10_000)
    world.shipped(".agents/abc", days_ago=10_000)
    world.tidy()
    assert len(list(folder.iterdir())) == 4
    assert world.trash() == 0
    assert world.registry.owed == []


def test_a_removed_folder_takes_its_snapshots_out_of_the_store(world: World) -> None:
    folder = world.job("old", days_ago=400)
    world.tidy(snapshots_days=365.0)
    assert not folder.exists()
    assert world.registry.gone == ["old"]
    assert "its whole folder with its snapshots is removed" in world.registry.told[0][1]


def test_a_needed_job_keeps_its_files(world: World) -> None:
    folder = world.job("source", days_ago=400)
    world.registry.needed = {"source"}
    world.tidy(snapshots_days=365.0, logs_days=90.0)
    assert len(list(folder.iterdir())) == 4
    assert (world.registry.told, world.registry.gone) == ([], [])


def test_a_needed_job_is_checked_again_after_a_day(world: World) -> None:
    folder, keeper = world.job("source", days_ago=400), world.keeper(logs_days=90.0)
    world.registry.needed = {"source"}
    keeper.tidy()
    world.registry.needed.clear()
    for passed_s in (61, 61, DAY_S):
        world.clock.advance(passed_s)
        keeper.tidy()
    assert not (folder / "attempts").exists()


def test_a_job_without_files_is_skipped_without_an_event(world: World) -> None:
    world.registry.jobs["elsewhere"] = NOW - timedelta(days=1000)
    world.tidy(logs_days=1.0, snapshots_days=1.0)
    assert (world.registry.told, world.trash()) == ([], 0)


def test_many_rows_are_removed_in_pieces(world: World) -> None:
    for name in ("a", "b"):
        world.registry.jobs[name] = NOW - timedelta(days=400)
    world.registry.rows = {"a": 5000, "b": 10}
    world.registry.lesser = {"a": 1, "b": 4001}
    world.tidy(metrics_days=365.0, events_days=365.0)
    assert (world.registry.rows, world.registry.lesser) == ({"a": 0, "b": 0}, {"a": 0, "b": 0})


def test_more_jobs_than_fit_into_one_piece_are_all_cleaned_up(world: World) -> None:
    folders = [world.job(f"job-{number:03}", days_ago=100) for number in range(45)]
    world.tidy(logs_days=90.0)
    assert not [folder for folder in folders if (folder / "attempts").exists()]


def test_a_round_that_takes_longer_than_a_day_is_finished(world: World) -> None:
    folders = [world.job(f"job-{number:03}", days_ago=100) for number in range(45)]
    keeper = world.keeper(logs_days=90.0)
    for _ in range(4):
        keeper.tidy()
        world.clock.advance(2 * DAY_S)
        for folder in folders[:20]:
            (folder / "attempts").mkdir(exist_ok=True)  # a new round would begin with these
    assert not [folder for folder in folders[20:] if (folder / "attempts").exists()]


def test_after_a_piece_without_work_it_pauses_for_a_minute(world: World) -> None:
    keeper = world.keeper(logs_days=90.0)
    keeper.tidy()
    world.clock.advance(59)
    keeper.tidy()
    assert world.registry.asked == 1
    world.clock.advance(1)
    keeper.tidy()
    assert world.registry.asked == 2


def test_shipped_files_are_removed_once_no_live_job_can_need_them(world: World) -> None:
    used = [world.shipped(f".agents/{days}", days_ago=days) for days in (20, 31, 50, 52)]
    world.registry.oldest = NOW - timedelta(days=50)
    world.tidy(shipped_days=30.0)
    assert [path.exists() for path in used] == [True, True, True, False]
    world.registry.oldest = None
    world.tidy(shipped_days=30.0)
    assert [path.exists() for path in used] == [True, False, False, False]


def test_a_workspace_in_use_stays(world: World) -> None:
    named, other = (world.shipped(f".workspaces/{name}", days_ago=99) for name in ("named", "other"))
    litter = world.shipped(".workdirs/.half.0123", days_ago=99)
    world.registry.used = {str(named / "src")}
    world.tidy(shipped_days=30.0)
    assert [path.exists() for path in (named, other, litter)] == [True, False, False]


def test_deliveries_are_removed_after_their_time(world: World) -> None:
    world.tidy(deliveries_days=30.0)
    assert world.registry.owed[0] == NOW - timedelta(days=30)


def test_errors_do_not_reach_the_pass(world: World) -> None:
    world.registry.error = StoreUnavailable("the database is away")
    world.keeper(logs_days=90.0).tidy()
    world.registry.error = OSError("a bad disk")
    world.keeper(logs_days=90.0).tidy()


def test_a_job_whose_data_cannot_be_removed_does_not_stop_the_others(world: World) -> None:
    for name, days_ago in (("bad", 101), ("good", 100)):
        world.job(name, days_ago=days_ago)
        world.registry.rows[name] = 3
    world.registry.unreadable = {"bad"}
    world.tidy(metrics_days=90.0)
    assert world.registry.rows == {"bad": 3, "good": 0}


def test_a_removal_that_a_crash_interrupted_is_finished_later(world: World) -> None:
    folder = world.job("old", days_ago=100)
    (world.root / TRASH).mkdir()
    (folder / "attempts").rename(world.root / TRASH / "from-before")
    world.tidy(logs_days=90.0)
    assert sorted(path.name for path in folder.iterdir()) == ["fence", "snapshots"]


def test_the_sweeper_empties_the_trash_without_following_links(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    trash = world.root / TRASH
    (trash / "folder" / "below").mkdir(parents=True)
    (trash / "folder" / "link").symlink_to(outside)
    (trash / "link").symlink_to(outside)
    (trash / "file").write_text("goes")
    TrashSweeper([world.root, world.root / "nowhere"]).sweep()
    assert list(trash.iterdir()) == []
    assert (outside / "precious").read_text() == "stays"


def test_periods_are_days_and_none_means_never() -> None:
    assert before(2.0, NOW) == NOW - timedelta(days=2)
    assert before(None, NOW) is None
    assert last_needed(None, NOW, NOW) is None
    assert last_needed(2.0, NOW, None) == NOW - timedelta(days=2)
    assert last_needed(2.0, NOW, NOW) == NOW - timedelta(days=2)
    assert last_needed(2.0, NOW, NOW - timedelta(days=5)) == NOW - timedelta(days=6)


def test_each_kind_of_leftover_has_a_period_and_a_sentence() -> None:
    keep = Retention(logs_days=1, metrics_days=2, events_days=3, snapshots_days=4)
    assert [keep.days(kind) for kind in (DataKind.LOGS, DataKind.METRICS, DataKind.EVENTS, DataKind.FOLDER)] == [
        1,
        2,
        3,
        4,
    ]
    assert len({tell_removal(kind, 1) for kind in DataKind}) == len(DataKind)
