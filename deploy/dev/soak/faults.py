"""The faults, with their targets and how each is undone."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from deploy.dev.killing import kill_at_once
from deploy.dev.soak.stage import Stage

DISK_FULL = "disk full"
_WEIGHTS = {
    "worker killed": 30,
    "agent killed": 15,
    "replica killed": 15,
    "service killed": 15,
    "service stopped": 8,
    "database restarted": 10,
    DISK_FULL: 7,
}
_CHUNK_BYTES = 1 << 20
_FULL_S = 6.0


@dataclass(frozen=True)
class InjectedFault:
    """One fault. `agents_of` are the jobs of which an agent was killed or could not write."""

    kind: str
    what: str
    agents_of: frozenset[str] = frozenset()


class Faults:
    """Injects faults from the main thread. `undo_due` undoes those that last, such as a pause or a full disk."""

    def __init__(self, stage: Stage, dice: random.Random, *, pause_s: float) -> None:
        self._stage = stage
        self._dice = dice
        self._pause_s = pause_s
        self._due: list[tuple[float, Callable[[], bool]]] = []
        self._full = False

    def plan(self, count: int) -> list[str]:
        """Return `count` kinds in random order: each kind once, the rest by weight."""
        kinds = [kind for kind in _WEIGHTS if kind != DISK_FULL or self._stage.disk]
        rest = self._dice.choices(kinds, [_WEIGHTS[kind] for kind in kinds], k=max(0, count - len(kinds)))
        planned = [*kinds, *rest][:count]
        self._dice.shuffle(planned)
        return planned

    def inject(self, kind: str) -> InjectedFault | None:
        """Inject a fault. Returns None if there is no target now."""
        match kind:
            case "service killed":
                return self._kill_service()
            case "service stopped":
                return self._stop_service()
            case "database restarted":
                return self._restart_database()
            case "disk full":
                return self._fill_disk()
        return self._kill(kind.removesuffix(" killed"))

    def undo_due(self, *, everything: bool = False) -> None:
        """Undo the faults that are due. One that cannot be undone yet is tried again."""
        for entry in list(self._due):
            at, undo = entry
            if everything or at <= time.monotonic():
                self._due.remove(entry)
                if not undo():
                    self._due.append((time.monotonic() + 1, undo))

    @property
    def pending(self) -> bool:
        return bool(self._due)

    def _kill(self, what: str) -> InjectedFault | None:
        ended = {job_id for job_id, job in self._stage.jobs.items() if job.ended}
        found = [one for one in self._stage.processes() if one.job_id not in ended]
        chosen = [one for one in found if (one.local_rank is not None if what == "worker" else one.is_agent)]
        if not chosen:
            return None
        one = self._dice.choice(chosen)
        victims = self._stage.others_of(one) if what == "replica" else [one]
        kill_at_once(victim.pid for victim in victims)
        if what == "worker":
            return InjectedFault(
                "worker killed", f"worker of {one.job_id}, replica {one.replica}, rank {one.local_rank}"
            )
        return InjectedFault(
            f"{what} killed", f"{what} of {one.job_id}, replica {one.replica}", frozenset({one.job_id})
        )

    def _kill_service(self) -> InjectedFault | None:
        place = self._place()
        if place is None:
            return None
        self._stage.services[place].kill()
        self._stage.down.add(place)
        self._due.append((time.monotonic() + self._dice.uniform(0, 4), lambda: self._stage.revive(place)))
        return InjectedFault("service killed", self._name(place))

    def _stop_service(self) -> InjectedFault | None:
        place = self._place(prefer_holder=True)
        if place is None:
            return None
        name = self._name(place)
        self._stage.services[place].pause()
        self._stage.down.add(place)

        def wake() -> bool:
            self._stage.services[place].wake()
            self._stage.down.discard(place)
            return True

        self._due.append((time.monotonic() + self._pause_s, wake))
        return InjectedFault("service stopped", f"{name}, for {self._pause_s:.0f} s")

    def _restart_database(self) -> InjectedFault:
        away_s = self._dice.uniform(0, 3)
        self._stage.server.stop()
        time.sleep(away_s)
        self._stage.server.start()
        return InjectedFault("database restarted", f"away for {away_s:.1f} s")

    def _fill_disk(self) -> InjectedFault | None:
        if self._full:
            return None
        ballast = self._stage.root / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(b"\0" * _CHUNK_BYTES)
                file.flush()
        self._full = True

        def empty() -> bool:
            ballast.unlink(missing_ok=True)
            self._full = False
            return True

        self._due.append((time.monotonic() + _FULL_S, empty))
        live = frozenset(job_id for job_id, job in self._stage.jobs.items() if not job.ended)
        return InjectedFault(DISK_FULL, f"for {_FULL_S:.0f} s", live)

    def _place(self, *, prefer_holder: bool = False) -> int | None:
        """Choose a service. None unless both run, so that one always runs."""
        if self._stage.down:
            return None
        holder = self._stage.holder()
        if prefer_holder and holder is not None and self._dice.random() < 0.8:
            return holder
        return self._dice.randrange(len(self._stage.services))

    def _name(self, place: int) -> str:
        role = "which held the lease" if self._stage.holder() == place else "which was waiting"
        return f"{('first', 'second')[place]} service, {role}"
