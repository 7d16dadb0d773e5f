"""Follow the steps of a training in the file that its workers write."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.clock import parse_time
from trainer.contract.progress import Phase

_PRINTED = re.compile(rb"^(\d+\.\d+) rank (\d+) pid (\d+) step (\d+) loss", re.MULTILINE)
_LOOK_S = 0.002


@dataclass(frozen=True)
class Step:
    """A completed optimizer step of a rank. `at_s` is by the wall clock of the worker."""

    at_s: float
    rank: int
    pid: int
    number: int
    generation: int = 0  # these two only from the trainer
    world_size: int = 0

    @property
    def life(self) -> tuple[int, int]:
        """A process in one generation: after a restart it is another process, or the same in another generation."""
        return self.pid, self.generation


class Follower:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def news(self) -> list[Step]:
        """The steps since the previous call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(chunk)
        whole, _, self._rest = (self._rest + chunk).rpartition(b"\n")
        if self._path.suffix == ".jsonl":
            return [step for line in whole.splitlines() if (step := _parse(line)) is not None]
        return [Step(float(at), int(rank), int(pid), int(number)) for at, rank, pid, number in _PRINTED.findall(whole)]

    def until(self, enough: Callable[[list[Step]], bool], timeout_s: float) -> list[Step] | None:
        """Collect steps until there are enough. None on timeout."""
        deadline = time.monotonic() + timeout_s
        seen: list[Step] = []
        while not enough(seen):
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S)
            seen += self.news()
        return seen


def _parse(line: bytes) -> Step | None:
    try:
        reported = json.loads(line)
    except ValueError:
        return None
    if reported.get("phase") != Phase.STEP.value or "step" not in reported:
        return None
    rest = (reported[name] for name in ("rank", "pid", "step", "generation", "world_size"))
    return Step(parse_time(reported["at"]).timestamp(), *rest)
