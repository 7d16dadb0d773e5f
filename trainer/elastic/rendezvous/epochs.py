"""Which agent serves the rendezvous store, and for which group.

Each epoch is a file in the attempt's folder, created exclusively. The first store has the first epoch. Each group that
forms, and each store that replaces a lost one, claims the next. If the network is cut in two, only one side gets it.
The other can only join the store that the file names.

Files also say which nodes have finished, because a store that is lost may have been the only one that knew it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.contract import layout
from trainer.elastic.records.claim import LONGEST_BYTES, create_once
from trainer.elastic.records.files import read_small

_WRITTEN_WITHIN_S = 10.0  # a file that is empty or torn for longer will stay so
_EPOCH = re.compile(r"[1-9][0-9]{0,17}")
_KINDS = {"node": str, "address": str, "port": int, "nodes": list, "closed": str}


@dataclass(frozen=True, kw_only=True)
class Served:
    """A store, and the agent that serves it. `nodes` may claim the next epoch if the store is lost; none: all may."""

    node: str
    address: str
    port: int
    nodes: Sequence[str] = field(default=(), compare=False)
    closed: str = ""  # why no group may follow; then there is no store


class Epochs:
    """The epochs of one attempt. Methods raise OSError if the folder cannot be read or written."""

    def __init__(self, attempt_dir: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._monotonic = attempt_dir, monotonic
        self._torn: dict[int, float] = {}  # since when this agent has seen a file without a store, by epoch

    def newest(self) -> tuple[int, Served] | None:
        """The newest epoch and its store. None before the first."""
        return next(((epoch, served) for epoch, served in self._listed() if served is not None), None)

    def claim(self, served: Served, above: int, holder: Served | None = None) -> int | None:
        """Claim the next epoch for `served`, and return its number. None if a store other than `holder` has an epoch
        after `above`.

        `holder` is the store that the claiming agents use. Its later epochs were claimed by them, for groups that did
        not form.
        """
        while True:
            epoch, newest = next(iter(self._listed()), (0, None))
            if epoch > above and newest is not None and newest != holder:
                return None
            content = json.dumps(asdict(served) | {"claim": os.urandom(8).hex()})
            number = max(epoch, above) + 1
            if create_once(self._folder / f"{layout.STORE}{number}", content) == content:
                return number

    def newest_generation(self) -> int:
        """The highest generation that any agent of the attempt has begun."""
        folders = (folder.name for folder in self._folder.glob("replica-*/*/g*"))
        return max((int(name[1:]) for name in folders if name[1:].isdecimal()), default=0)

    def note_finished(self, generation: int, node: str) -> None:
        """Note that all workers of a node succeeded in a generation. Idempotent."""
        create_once(self._folder / f"{layout.FINISHED}{generation}-{node}", node)

    def finished_in(self, generation: int) -> frozenset[str]:
        """The nodes whose workers all succeeded in a generation."""
        prefix = f"{layout.FINISHED}{generation}-"
        return frozenset(path.name.removeprefix(prefix) for path in self._folder.glob(f"{prefix}*"))

    def _listed(self) -> Iterator[tuple[int, Served | None]]:
        """The newest first. It lists the folder, because NFS may deny for half a minute that a single file exists."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  # only names are needed
        except FileNotFoundError:
            return
        numbers = (name.removeprefix(layout.STORE) for name in names if name.startswith(layout.STORE))
        for epoch in sorted((int(number) for number in numbers if _EPOCH.fullmatch(number)), reverse=True):
            yield epoch, self._read(epoch)

    def _read(self, epoch: int) -> Served | None:
        """None for what is no epoch, such as the file of a writer that crashed. Raises OSError while it may be written.

        If a file's time is in the future, its age is how long this agent has seen it.
        """
        path = self._folder / f"{layout.STORE}{epoch}"
        text = read_small(path, LONGEST_BYTES)
        try:
            return None if text is None else _parse(json.loads(text))
        except RecursionError:
            return None
        except ValueError:
            now_s = self._monotonic()
            seen_s = now_s - self._torn.setdefault(epoch, now_s)
            if max(seen_s, time.time() - path.stat().st_mtime) < _WRITTEN_WITHIN_S:
                raise BlockingIOError(f"{path} is being written") from None
            return None


def _parse(document: object) -> Served | None:
    """None for what no agent has written."""
    given: dict[str, Any] = {name: document.get(name) for name in _KINDS} if isinstance(document, dict) else {}
    if not given or not all(isinstance(value, _KINDS[name]) for name, value in given.items()):
        return None
    return Served(**given) if given["port"] in range(1 << 16) else None
