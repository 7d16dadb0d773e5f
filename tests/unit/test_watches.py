"""Watches of run directories: no change of an attempt is missed, whoever creates which folder when."""

from __future__ import annotations

import fcntl
import shutil
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inotify_simple import INotify, flags

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.checks import CHECK_S
from orchestrator.intake import kernel_queue, watches
from orchestrator.intake.kernel_queue import KernelQueue
from orchestrator.intake.watches import Watches
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.rundir import Grown, IncarnationKey
from orchestrator.simulator.virtual_clock import VirtualClock
from trainer.contract import layout

KEYS = [AttemptKey(f"job-{number}", 1) for number in range(3)]
REPLICAS = 2
MOST_QUEUED = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


class Agents:
    """They write into the run directories, and know who has written what since it was read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.appended: set[tuple[AttemptKey, IncarnationKey, str]] = set()
        self.ended: set[AttemptKey] = set()

    def life(self, key: AttemptKey, replica: int, incarnation: int) -> Path:
        return layout.replica_dir(self.root / key.job_id, key.number, replica) / str(incarnation)

    def append(self, key: AttemptKey, replica: int, incarnation: int, name: str) -> None:
        life = self.life(key, replica, incarnation)
        life.mkdir(parents=True, exist_ok=True)
        with (life / name).open("a") as file:
            file.write("{}\n")
        self.appended.add((key, (replica, incarnation), name))

    def exit(self, key: AttemptKey, replica: int, incarnation: int) -> None:
        life = self.life(key, replica, incarnation)
        life.mkdir(parents=True, exist_ok=True)
        (life / "draft").write_text("{}")
        (life / "draft").rename(life / layout.EXIT)
        self.ended.add(key)

    def replace(self, key: AttemptKey, replica: int, incarnation: int) -> None:
        """Put another folder of the same name in place."""
        life = self.life(key, replica, incarnation)
        if life.exists():
            shutil.rmtree(life)
        self.append(key, replica, incarnation, layout.EVENTS)


WHOLE = None


class Reader:
    """Reads as intake does."""

    def __init__(self, root: Path, clock: VirtualClock) -> None:
        self.root = root
        self.watches = Watches(monotonic=clock.monotonic)

    def read(self) -> set[AttemptKey]:
        """Return the attempts that were read."""
        return set(self.read_exactly())

    def read_exactly(self) -> dict[AttemptKey, Grown | None]:
        """Return which journals were read of each attempt, or WHOLE."""
        found: dict[AttemptKey, Grown | None] = {}
        for key in self.watches.changed(set(KEYS)):
            found[key] = self.watches.take_grown(key)
            if found[key] is WHOLE:
                self.watches.watch(JobFolder(self.root, key.job_id), key, REPLICAS)
        return found


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def reader(tmp_path: Path, clock: VirtualClock) -> Reader:
    return Reader(tmp_path, clock)


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    mine = Agents(tmp_path)
    for key in KEYS:
        for replica in range(REPLICAS):
            mine.append(key, replica, 1, layout.PROGRESS)
    return mine


places = st.tuples(st.sampled_from(KEYS), st.integers(0, REPLICAS - 1), st.integers(1, 3))
acts: st.SearchStrategy[Callable[[Agents], None]] = st.one_of(
    st.builds(
        lambda place, name: lambda agents: agents.append(*place, name),
        places,
        st.sampled_from([layout.PROGRESS, layout.EVENTS]),
    ),
    st.builds(lambda place: lambda agents: agents.exit(*place), places),
    st.builds(lambda place: lambda agents: agents.replace(*place), places),
)


@settings(max_examples=60)
@given(rounds=st.lists(st.lists(acts, max_size=4), min_size=1, max_size=8))
def test_a_changed_attempt_is_read(tmp_path_factory: pytest.TempPathFactory, rounds: list[list[object]]) -> None:
    root = tmp_path_factory.mktemp("runs")
    agents, reader = Agents(root), Reader(root, VirtualClock())
    for acts_ in rounds:
        for act in acts_:
            act(agents)  # type: ignore[operator]
        read = reader.read_exactly()
        whole = {key for key, grown in read.items() if grown is WHOLE}
        exact = {
            (key, place, name)
            for key, grown in read.items()
            for place, names in (grown or {}).items()
            for name in names
        }
        assert whole >= agents.ended
        assert exact >= {one for one in agents.appended if one[0] not in whole}
        agents.appended.clear()
        agents.ended.clear()
    shutil.rmtree(root)


def test_a_quiet_attempt_is_not_read(reader: Reader, agents: Agents) -> None:
    assert reader.read() == set(KEYS)
    assert reader.read() == set()
    agents.append(KEYS[1], 0, 1, layout.PROGRESS)
    (agents.life(KEYS[2], 0, 1) / layout.RESOURCES).write_text("{}\n")  # intake does not read it
    (agents.life(KEYS[2], 0, 1).parent / layout.AGENT_LOG).write_text("a word\n")
    assert reader.read() == {KEYS[1]}
    assert reader.read() == set()


def test_only_journals_that_have_grown_are_read(reader: Reader, agents: Agents) -> None:
    reader.read()
    for _ in range(2):
        agents.append(KEYS[0], 1, 1, layout.PROGRESS)
        agents.append(KEYS[1], 0, 1, layout.EVENTS)
        assert reader.read_exactly() == {
            KEYS[0]: {(1, 1): {layout.PROGRESS}},
            KEYS[1]: {(0, 1): {layout.EVENTS}},
        }
    agents.append(KEYS[0], 1, 1, layout.PROGRESS)
    agents.exit(KEYS[0], 1, 1)
    agents.append(KEYS[1], 0, 2, layout.PROGRESS)
    assert reader.read_exactly() == {KEYS[0]: WHOLE, KEYS[1]: WHOLE}
    assert reader.read_exactly() == {}


def test_what_is_written_during_a_read_is_a_change_again(reader: Reader, agents: Agents) -> None:
    reader.read()
    agents.append(KEYS[0], 0, 1, layout.PROGRESS)
    reader.watches.watch(JobFolder(reader.root, KEYS[0].job_id), KEYS[0], REPLICAS)
    agents.append(KEYS[0], 0, 1, layout.PROGRESS)
    assert reader.read() == {KEYS[0]}


def test_an_attempt_that_was_not_read_to_its_end_stays_changed(reader: Reader, agents: Agents) -> None:
    reader.read()
    reader.watches.mark_changed([KEYS[2]])
    assert reader.read() == {KEYS[2]}


def test_a_quiet_attempt_is_read_from_time_to_time(reader: Reader, agents: Agents, clock: VirtualClock) -> None:
    reader.read()
    clock.advance(0.75 * CHECK_S - 1)
    assert reader.read() == set()
    passes = []
    for _ in range(80):
        clock.advance(1)
        passes.append(reader.read())
    assert set[AttemptKey]().union(*passes) == set(KEYS)
    assert set(KEYS) not in passes, "not all in one pass"


def test_an_attempt_that_always_writes_is_read_whole_from_time_to_time(
    reader: Reader, agents: Agents, clock: VirtualClock
) -> None:
    reader.read()
    whole = 0
    for _ in range(int(CHECK_S)):
        agents.append(KEYS[0], 0, 1, layout.PROGRESS)
        clock.advance(1)
        whole += reader.read_exactly()[KEYS[0]] is WHOLE
    assert whole == 1


def test_an_attempt_without_folders_is_always_read(reader: Reader) -> None:
    assert [reader.read() for _ in range(3)] == [set(KEYS)] * 3


def test_on_a_file_system_of_other_machines_every_attempt_is_always_read(
    reader: Reader, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "file_system_of", lambda *_: "nfs4")
    assert [reader.read() for _ in range(3)] == [set(KEYS)] * 3


def test_a_folder_that_is_a_link_is_not_watched(reader: Reader, agents: Agents, tmp_path: Path) -> None:
    """By such a link, a job could let the service watch any folder."""
    target = agents.life(KEYS[0], 0, 1)
    moved = tmp_path / "moved"
    target.rename(moved)
    target.symlink_to(moved)
    reader.read()
    with (moved / layout.PROGRESS).open("a") as file:
        file.write("{}\n")
    assert reader.read() == set()


def write_many(agents: Agents, count: int) -> None:
    """Write so that the kernel has an event for each line. It merges equal events that follow each other."""
    files = [(agents.life(KEYS[0], 0, 1) / name).open("ab", buffering=0) for name in (layout.PROGRESS, layout.EVENTS)]
    for number in range(count):
        files[number % 2].write(b"\n")
    for file in files:
        file.close()


def test_after_an_overflow_of_the_kernels_queue_everything_is_read(reader: Reader, agents: Agents) -> None:
    reader.read()
    assert reader.watches._queue is not None
    with reader.watches._queue._turn:
        write_many(agents, MOST_QUEUED + 2)
    assert reader.read() == set(KEYS)
    assert reader.read() == set()


def test_the_kernels_queue_is_read_between_two_passes(reader: Reader, agents: Agents) -> None:
    reader.read()
    for _ in range(3):
        write_many(agents, MOST_QUEUED // 2)
        while queued_bytes(reader) > 0:
            time.sleep(0.01)
    assert reader.read_exactly() == {KEYS[0]: {(0, 1): {layout.PROGRESS, layout.EVENTS}}}


def test_files_that_a_job_creates_for_itself_are_not_remembered(tmp_path: Path) -> None:
    queue = KernelQueue(inotify := INotify(nonblocking=True), watches._NAMES)
    inotify.add_watch(tmp_path, flags.CREATE)
    for name in ("3", "replica-12", layout.PROGRESS, "core.4711", f"{'9' * 20}", f"{layout.EVENTS}.bak"):
        (tmp_path / name).touch()
    assert {change.name for change in queue.take()} == {"3", "replica-12", layout.PROGRESS}
    queue.stop()


def test_more_different_events_than_are_remembered_are_an_overflow(
    reader: Reader, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.read()
    monkeypatch.setattr(kernel_queue, "_MOST", 1)
    write_many(agents, 2)
    assert reader.read() == set(KEYS)


def test_the_thread_ends_with_the_watches(reader: Reader, agents: Agents) -> None:
    reader.read()
    assert reader.watches._queue is not None
    thread = reader.watches._queue._thread
    assert thread is not None
    del reader.watches
    thread.join(timeout=60)
    assert not thread.is_alive()


def queued_bytes(reader: Reader) -> int:
    assert reader.watches._inotify is not None
    answer = fcntl.ioctl(reader.watches._inotify.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def test_the_watches_of_ended_attempts_are_given_back(reader: Reader, agents: Agents) -> None:
    reader.read()
    descriptor = reader.watches._inotify.fileno()
    count = lambda: Path(f"/proc/self/fdinfo/{descriptor}").read_text().count("inotify wd:")  # noqa: E731
    assert count() == len(KEYS) * (1 + 2 * REPLICAS)
    reader.watches.changed(set(KEYS[:1]))
    assert count() == 1 + 2 * REPLICAS
