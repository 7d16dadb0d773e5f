"""Whatever a job puts in its folder, the service accesses nothing outside it."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.descriptors import count_descriptors
from tests.examples import examples
from tests.jobfolder.folder_access import CALLS, JOB, make_ground, use
from tests.jobfolder.outside import CANARY, Outside
from tests.jobfolder.plants import PLACES, PLANTS, TEXTS, plant, shuffle

pytestmark = pytest.mark.timeout(300)

PLANTED = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(list(PLANTS))), min_size=1, max_size=6)
USED = st.lists(st.sampled_from(list(CALLS)), min_size=1, max_size=6)
ROUNDS = 150
T = TypeVar("T")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    yield
    structlog.configure(**before)


@given(PLANTED, USED, st.booleans())
@settings(max_examples=examples(20, 300))
def test_nothing_outside_a_hostile_folder_is_touched(
    planted: Sequence[tuple[str, str]], used: Sequence[str], in_the_root: bool
) -> None:
    """Jobs that mount the whole run directory may also put entries beside their folder."""
    with tempfile.TemporaryDirectory() as folder:
        ground, outside = make_ground(Path(folder)), Outside(Path(folder, "outside"))
        neighbour = Outside(ground.root / "neighbour")
        for where, what in planted:
            plant(ground.root / JOB, where, what, outside.folder)
        if in_the_root:
            for name in (".trash", ".workdirs", ".agents"):
                plant(ground.root, name, planted[0][1], outside.folder)
        before = count_descriptors()
        answers = use(ground, used)
        assert count_descriptors() == before
        assert not [answer for answer in answers if CANARY in answer]
        outside.require_untouched()
        neighbour.require_untouched()
        _open_all(ground.root)


@pytest.mark.parametrize("name", CALLS)
def test_a_disk_that_fails_costs_no_descriptor(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of `fstat` and `stat` fails once."""
    ground, before = make_ground(tmp_path), count_descriptors()
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # root does not look at permissions
    good, has_failed = 0, True
    while has_failed:
        calls = itertools.count()
        with monkeypatch.context() as patch:
            for function in ("fstat", "stat"):
                patch.setattr(os, function, _failing_after(good, calls, getattr(os, function)))
            use(ground, [name])
        assert count_descriptors() == before, f"after {good} calls"
        good, has_failed = good + 1, next(calls) > good


def _failing_after(good: int, calls: Iterator[int], function: Callable[..., T]) -> Callable[..., T]:
    def called(*args: Any, **kwargs: Any) -> T:
        if next(calls) == good:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return function(*args, **kwargs)

    return called


@pytest.mark.parametrize("seed", range(3))
def test_a_change_between_check_and_open_gives_no_access(tmp_path: Path, seed: int) -> None:
    ground, outside, over = make_ground(tmp_path), Outside(tmp_path / "outside"), threading.Event()
    chance = random.Random(seed)

    def change() -> None:
        mine = random.Random(seed + 1000)
        while not over.is_set():
            shuffle(ground.root / JOB, outside.folder, mine)

    before = count_descriptors()
    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(ROUNDS):
            answers = use(ground, [chance.choice(list(CALLS))])
            assert not [answer for answer in answers if CANARY in answer]
    finally:
        over.set()
        changing.join()
    assert count_descriptors() == before
    outside.require_untouched()
    _open_all(tmp_path)
    shutil.rmtree(ground.root)


@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=() if each.endswith("printed.json") else pytest.mark.long) for each in PLACES]
)
def test_a_text_in_any_place_is_read_or_counts_as_none(tmp_path: Path, place: str) -> None:
    """Each text once in each place: the folder's owner may write anything."""
    for number, text in enumerate(TEXTS):
        ground = make_ground(tmp_path / str(number))
        file = ground.root / JOB / place
        if file.is_dir():
            shutil.rmtree(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        use(ground, list(CALLS))


def _open_all(folder: Path) -> None:
    """Let a user other than root remove the temporary folder."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
