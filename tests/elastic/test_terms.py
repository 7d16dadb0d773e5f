"""The terms of an attempt, claimed by several agents at once."""

from __future__ import annotations

import threading
from pathlib import Path

from trainer.elastic.rendezvous.terms import Served, Terms


def served(node: str, port: int = 1) -> Served:
    return Served(node=node, address=f"host-{node}", port=port)


def test_one_of_many_stores_gets_a_term_and_all_agents_see_which(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    won: list[str] = []
    together = threading.Barrier(len(names))

    def claim(name: str) -> None:
        together.wait()
        if Terms(tmp_path).claim(served(name), above=0) is not None:
            won.append(name)

    threads = [threading.Thread(target=claim, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert Terms(tmp_path).newest() == (1, served(won[0]))


def test_a_claim_is_idempotent_and_later_terms_follow(tmp_path: Path) -> None:
    terms = Terms(tmp_path)
    assert [terms.claim(served("a"), above=0) for _ in range(3)] == [1, 1, 1]
    assert terms.claim(served("b"), above=0) is None
    assert [terms.claim(served("b"), above=1), terms.claim(served("a"), above=1)] == [2, None]


def test_an_empty_file_and_other_files_are_no_terms(tmp_path: Path) -> None:
    terms = Terms(tmp_path)
    assert terms.newest() is None
    (tmp_path / "store-1").touch()
    (tmp_path / "store-x").write_text("{}")
    (tmp_path / "store-9z").write_text("{}")
    assert terms.newest() is None
    assert terms.claim(served("a"), above=0) == 2
    (tmp_path / "store-3").write_text('{"node": "b"}')
    assert terms.newest() == (2, served("a"))
    assert terms.claim(served("a"), above=2) == 4


def test_after_the_end_nobody_gets_a_term(tmp_path: Path) -> None:
    terms = Terms(tmp_path)
    terms.claim(served("a"), above=0)
    end = Served(node="", address="", port=0, closed="no progress")
    assert terms.claim(end, above=1) == 2
    assert terms.claim(served("a"), above=1) is None


def test_the_newest_generation_is_the_highest_that_any_agent_began(tmp_path: Path) -> None:
    for name in ("replica-0/1/g1", "replica-0/2/g7", "replica-3/1/g12", "replica-3/1/gx", "replica-3/1/g3"):
        (tmp_path / name).mkdir(parents=True)
    assert Terms(tmp_path).newest_generation() == 12
    assert Terms(tmp_path / "absent").newest_generation() == 0
