"""The shared document over a real store, with other agents' calls between any two calls of one agent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from trainer.elastic.rendezvous.document import Document, write_first
from trainer.elastic.rendezvous.round_document import Round


class Interleaved:
    """A view of the store in which other agents may act before each call."""

    def __init__(self, store: HashStore, meanwhile: Callable[[], None]) -> None:
        self._store, self._meanwhile = store, meanwhile

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def act(*arguments: object) -> object:
            self._meanwhile()
            return call(*arguments)

        return act


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_no_agent_misses_or_undoes_a_change_of_another_agent(seed: int, turns: int) -> None:
    draw, store = random.Random(seed), HashStore()
    written: Counter[str] = Counter()
    level = 0  # the agent whose call runs; only agents above it are idle

    def act(agent: int) -> None:
        if draw.random() < 0.5:
            name = "abc"[agent]
            documents[agent].amend(lambda now: replace(now, reason=now.reason + name))
            written[name] += 1
        else:
            documents[agent].refresh()

    def meanwhile() -> None:
        nonlocal level
        if level + 1 < len(documents) and draw.random() < 0.5:
            level += 1
            act(level)
            level -= 1

    write_first(store, "run", Round())
    documents: list[Document] = []
    documents.extend(Document(Interleaved(store, meanwhile), "run", lambda _, after: after.epoch) for _ in "abc")  # type: ignore[arg-type]
    for _ in range(turns):
        act(0)
    level = len(documents)  # no agent acts any more
    assert [Counter(document.refresh().reason) for document in documents] == [written] * 3


class Cut:
    """A view of the store whose connection breaks after a call was carried out and before its answer arrives."""

    def __init__(self, store: HashStore, calls: int) -> None:
        self._store, self._left = store, calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def act(*arguments: object) -> object:
            answer = call(*arguments)
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("Connection was likely closed")
            return answer

        return act


@given(st.integers(0, 8))
def test_a_change_whose_answer_is_lost_is_seen_by_all_agents_once_its_agent_has_connected_again(calls: int) -> None:
    """Its agent tries the change again, and finds it done."""
    store = HashStore()
    write_first(store, "run", Round())

    def open_document(view: Any) -> Document:
        return Document(view, "run", lambda _, after: after.epoch)

    def change(now: Round) -> Round:
        return replace(now, reason="changed")

    reader = open_document(store)
    reader.refresh()
    try:
        open_document(Cut(store, calls)).amend(change)
    except RuntimeError:
        open_document(store).amend(change)
    assert reader.refresh().reason == "changed"
