"""The group's document in the store: one text that all agents change by compare-and-swap, and the count of its changes.

The text grows with the group. An agent that only looks reads its version first, which is a number.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import Store

from trainer.elastic.rendezvous.rounds import Round, parse_round, render_round


class Document:
    """One agent's view of the document under `key`. Methods raise what the store does, and ValueError."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._version_key = store, key, f"{key}/version"
        self._version = -1  # our text is of this version or newer
        self.round, self._text = Round(), ""
        self._take(store.compare_set(key, "", render_round(Round())).decode())

    def refresh(self) -> Round:
        """The document as it is now."""
        version = self._store.add(self._version_key, 0)
        if version != self._version:
            self._take(self._store.get(self._key).decode())
            self._version = version
        return self.round

    def amend(self, change: Callable[[Round], Round]) -> Round:
        """Apply a change to the document as it is now, and return it with the change."""
        self._take(self._store.get(self._key).decode())
        while (after := render_round(change(self.round))) != self._text:
            found = self._store.compare_set(self._key, self._text, after).decode()
            self._take(found)
            if found == after:
                self._count_change()
                break
        return self.round

    def _count_change(self) -> None:
        """If another agent has changed the text and counted meanwhile, the next refresh must read it."""
        version = self._store.add(self._version_key, 1)
        if version == self._version + 1:
            self._version = version

    def _take(self, text: str) -> None:
        if text != self._text:
            self.round, self._text = parse_round(text), text
