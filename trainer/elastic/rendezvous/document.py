"""The group's document in the store: a text that all agents change by compare-and-swap, and a version number.

The text grows with the group, so an agent reads it only if the version has changed. A change to a higher epoch is
written only after the epoch is claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch.distributed import Store

from trainer.elastic.rendezvous.round_document import Round, parse_round, render_round


def count_key(key: str, node: str) -> str:
    """Where an agent counts its heartbeats in the store."""
    return f"{key}/beat/{node}"


def write_first(store: Store, key: str, first: Round) -> None:
    """Write the first document of a new store, and the counts that are read before all agents have arrived."""
    waiting = {member.node for member in first.waiting}
    for node in first.nodes | first.awaited | waiting:
        store.add(count_key(key, node), 0)
    store.set(key, render_round(first))


class Document:
    """One agent's view of the document under `key`. Methods raise the store's errors, and ValueError."""

    def __init__(self, store: Store, key: str, claim: Callable[[Round, Round], int]) -> None:
        """`claim(before, after)` claims the next epoch for `after`, and returns its number."""
        self._store, self._key, self._version_key, self._claim = store, key, f"{key}/version", claim
        self._version = -1  # `_text` is of this version or newer
        self.round, self._text = Round(), ""
        self._take(store.get(key).decode())
        # The connection may have broken after this agent's last change and before it was counted.
        self._count_change()

    def refresh(self) -> Round:
        """The current document."""
        version = self._store.add(self._version_key, 0)
        if version != self._version:
            self._take(self._store.get(self._key).decode())
            self._version = version
        return self.round

    def amend(self, change: Callable[[Round], Round]) -> Round:
        """Apply a change to the current document, and return the result. Raises what `claim` raises."""
        self._take(self._store.get(self._key).decode())
        while (after := change(self.round)) != self.round:
            if after.epoch > self.round.epoch:
                after = replace(after, epoch=self._claim(self.round, after))
            text = render_round(after)
            found = self._store.compare_set(self._key, self._text, text).decode()
            self._take(found)
            if found == text:
                self._count_change()
                break
        return self.round

    def _count_change(self) -> None:
        """Raise the version. If another agent has raised it meanwhile, the next refresh reads the text again."""
        version = self._store.add(self._version_key, 1)
        if version == self._version + 1:
            self._version = version

    def _take(self, text: str) -> None:
        if text != self._text:
            self.round, self._text = parse_round(text), text
