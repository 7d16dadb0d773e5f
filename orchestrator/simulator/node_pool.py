"""The nodes of a simulated cluster: free, taken or down, and their spares."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


class NodePool:
    """`population` has the nodes that a failure trace can hit. Spares are unlimited if `spares` is None."""

    def __init__(self, count: int, spares: int | None) -> None:
        self.population = [_name(number) for number in range(count + (spares or 0))]
        self._unlimited = spares is None
        self._free = set(self.population)
        self._order = list(self.population)  # a heap; entries of nodes that are not free are stale
        self._down: set[str] = set()
        self._places = {name: place for place, name in enumerate(self.population)}
        self._named = len(self.population)

    @property
    def up(self) -> int:
        return len(self.population) if self._unlimited else len(self.population) - len(self._down)

    @property
    def free(self) -> Collection[str]:
        return self._free

    def is_up(self, name: str) -> bool:
        return name not in self._down

    def take(self, count: int, avoided: Collection[str]) -> list[str] | None:
        """Take the first free nodes by name. If there are too few, take none and return None."""
        taken: list[str] = []
        passed_over: list[str] = []
        avoided = frozenset(avoided)
        while len(taken) < count and (self._order or self._unlimited):
            name = heapq.heappop(self._order) if self._order else self._add()
            if name not in self._free:
                continue
            if name in avoided:
                passed_over.append(name)
            else:
                taken.append(name)
                self._free.remove(name)
        for name in passed_over:
            heapq.heappush(self._order, name)
        if len(taken) == count:
            return taken
        self.give_back(taken)
        return None

    def give_back(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._down and name not in self._free:
                self._free.add(name)
                heapq.heappush(self._order, name)

    def fail(self, name: str) -> None:
        """Mark a node as down. With unlimited spares, a new node takes its place at once."""
        self._down.add(name)
        self._free.discard(name)
        if self._unlimited and name in self._places:
            fresh = self._add()
            heapq.heappush(self._order, fresh)
            place = self._places.pop(name)
            self.population[place], self._places[fresh] = fresh, place

    def repair(self, name: str) -> None:
        self._down.discard(name)
        self.give_back([name])

    def _add(self) -> str:
        name = _name(self._named)
        self._named += 1
        self._free.add(name)
        return name


def _name(number: int) -> str:
    return f"n{number:06d}"
