"""The epochs of an attempt, claimed by several agents at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from trainer.elastic.rendezvous.epochs import Epochs, Served


def served(node: str, port: int = 1) -> Served:
    return Served(node=node, address=f"host-{node}", port=port)


def test_one_of_many_stores_gets_an_epoch_and_all_agents_see_which(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    won: list[str] = []
    together = threading.Barrier(len(names))

    def claim(name: str) -> None:
        together.wait()
        if Epochs(tmp_path).claim(served(name), above=0) is not None:
            won.append(name)

    threads = [threading.Thread(target=claim, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert Epochs(tmp_path).newest() == (1, served(won[0]))


def test_the_agents_of_a_store_take_epoch_after_epoch_and_another_store_gets_none(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    assert epochs.claim(served("a"), above=0) == 1
    assert epochs.claim(served("a"), above=1, holder=served("a")) == 2
    assert epochs.claim(served("a"), above=1, holder=served("a")) == 3, "epoch 2 was claimed and not used"
    assert epochs.claim(served("b"), above=2) is None
    assert epochs.claim(served("b"), above=3) == 4
    assert epochs.claim(served("a"), above=3, holder=served("a")) is None


def test_an_old_empty_file_and_other_files_are_no_epochs(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    assert epochs.newest() is None
    for name in ("store-1", "store-x"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    assert epochs.newest() is None
    assert epochs.claim(served("a"), above=0) == 2
    (tmp_path / "store-3").write_text('{"node": "b"}')
    os.utime(tmp_path / "store-3", (0, 0))
    assert epochs.newest() == (2, served("a"))
    assert epochs.claim(served("a"), above=2, holder=served("a")) == 4


def test_while_a_file_may_still_be_written_nobody_claims_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "store-1").touch()
    with pytest.raises(OSError, match="is being written"):
        Epochs(tmp_path).claim(served("a"), above=0)


def test_after_the_closing_nobody_gets_an_epoch(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    epochs.claim(served("a"), above=0)
    end = Served(node="", address="", port=0, closed="no progress")
    assert epochs.claim(end, above=1) == 2
    assert epochs.claim(served("a"), above=1, holder=served("a")) is None


def test_the_newest_generation_is_the_highest_that_any_agent_began(tmp_path: Path) -> None:
    for name in ("replica-0/1/g1", "replica-0/2/g7", "replica-3/1/g12", "replica-3/1/gx", "replica-3/1/g3"):
        (tmp_path / name).mkdir(parents=True)
    assert Epochs(tmp_path).newest_generation() == 12
    assert Epochs(tmp_path / "absent").newest_generation() == 0


def test_who_has_finished_is_known_for_each_generation(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    for generation, node in ((1, "a"), (2, "b"), (2, "c"), (2, "c"), (22, "d")):
        epochs.note_finished(generation, node)
    assert epochs.finished_in(2) == {"b", "c"}
    assert epochs.finished_in(3) == set()
    assert Epochs(tmp_path / "absent").finished_in(1) == set()
