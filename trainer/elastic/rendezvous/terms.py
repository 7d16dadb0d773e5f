"""Who serves the rendezvous store: one file in the attempt's folder for each term, created exclusively.

A term belongs to one store. The first term is the first agent's. A side that lost contact with other nodes needs the
next term before a group may form without them. If the network is cut in two, one side gets it. The other side finds
that it is taken, and can only join the store that the file names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.contract import layout
from trainer.elastic.records.claim import create_once
from trainer.elastic.records.files import numbered, read_document


@dataclass(frozen=True, kw_only=True)
class Served:
    """A store, and the agent that serves it. `nodes`: those that may claim the next term if the store is lost."""

    node: str
    address: str
    port: int
    nodes: Sequence[str] = field(default=(), compare=False)
    closed: str = ""  # why no group may follow; then there is no store


class Terms:
    """The terms of one attempt. Methods raise OSError if the folder cannot be written."""

    def __init__(self, attempt_dir: Path) -> None:
        self._folder = attempt_dir

    def newest(self) -> tuple[int, Served] | None:
        """The newest term and its store. None before the first."""
        return next(((term, served) for term, served in self._listed() if served is not None), None)

    def claim(self, served: Served, above: int) -> int | None:
        """Claim the term after `above` for a store, and return its number. Idempotent.

        None if another store has a term above it. A number whose file is empty, because its writer's machine crashed,
        is nobody's term.
        """
        while True:
            term, holder = next(iter(self._listed()), (0, None))
            if term > above and holder is not None:
                return term if holder == served else None
            create_once(self._folder / f"{layout.STORE}{max(term, above) + 1}", json.dumps(asdict(served)))

    def newest_generation(self) -> int:
        """The highest generation that any agent of the attempt has begun."""
        folders = (folder.name for folder in self._folder.glob("replica-*/*/g*"))
        return max((int(name[1:]) for name in folders if name[1:].isdecimal()), default=0)

    def _listed(self) -> list[tuple[int, Served | None]]:
        """From the newest on. It lists the folder: NFS may deny for half a minute that a single file exists."""
        return [(term, _read(path)) for term, path in reversed(numbered(self._folder, layout.STORE))]


def _read(path: Path) -> Served | None:
    document = read_document(path)
    try:
        return None if document is None else Served(**document)  # type: ignore[arg-type]
    except TypeError:
        return None
