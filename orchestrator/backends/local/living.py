"""Remember attempts whose agents are all alive, so that passes need not look at them again (pidfd_open(2)).

An attempt is forgotten when one of its agents ends, and after 225 to 300 s in any case.
"""

from __future__ import annotations

import os
import resource
import select
import time
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from orchestrator.backends.local import client
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.checks import check_after_s
from orchestrator.domain.observation.observation import Sighting
from trainer.contract.agent_record import ProcessIdentity

_LIMIT_DIVISOR = 2  # pidfds may use half of the descriptors that this process may open


class _Seen(NamedTuple):
    sighting: Sighting
    descriptors: Sequence[int]
    look_at: float


class LivingAgents:
    """Not thread-safe. Where the kernel has no pidfd, or descriptors are short, nothing is remembered."""

    def __init__(self, *, max_agents: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """By default, `max_agents` is half of this process's soft limit of open files."""
        self._max_agents = (
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _LIMIT_DIVISOR if max_agents is None else max_agents
        )
        self._monotonic = monotonic
        self._epoll = select.epoll()
        self._seen: dict[AttemptKey, _Seen] = {}
        self._keys: dict[int, AttemptKey] = {}  # by pidfd
        weakref.finalize(self, _close, self._epoll, self._keys)

    def refresh(self, launched: Set[AttemptKey]) -> Mapping[AttemptKey, Sighting]:
        """Return the sightings of the launched attempts whose agents are still alive."""
        ended = {self._keys[descriptor] for descriptor, _ in self._epoll.poll(0, max(1, len(self._keys)))}
        now = self._monotonic()
        due = {key for key, seen in self._seen.items() if seen.look_at <= now}
        for key in ended | due | (self._seen.keys() - launched):
            self._forget(key)
        return {key: seen.sighting for key, seen in self._seen.items()}

    def remember(self, key: AttemptKey, sighting: Sighting, agents: Sequence[ProcessIdentity]) -> None:
        """Remember the sighting of an attempt. `agents` are all its agents, which were just seen alive."""
        if len(self._keys) + len(agents) > self._max_agents:
            return
        descriptors: list[int] = []
        self._seen[key] = _Seen(sighting, descriptors, self._monotonic() + check_after_s(key.job_id))
        try:
            for agent in agents:
                descriptor = os.pidfd_open(agent.pid)
                descriptors.append(descriptor)
                self._keys[descriptor] = key
                self._epoll.register(descriptor, select.EPOLLIN)
            # The pidfds may be of other processes, if agents ended before they were opened.
            if not all(map(client.runs, agents)):
                self._forget(key)
        except OSError:
            self._forget(key)

    def _forget(self, key: AttemptKey) -> None:
        for descriptor in self._seen.pop(key).descriptors:
            del self._keys[descriptor]
            with suppress(OSError):  # not registered yet
                self._epoll.unregister(descriptor)
            os.close(descriptor)


def _close(epoll: select.epoll, descriptors: Mapping[int, AttemptKey]) -> None:
    epoll.close()
    for descriptor in descriptors:
        os.close(descriptor)
