"""What the agents of an attempt left in its folder, if a scheduler started them by `trainer.elastic.node`.

Each function that reads raises OSError.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from orchestrator import rundir
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, ReplicaSighting
from orchestrator.jobfolder.folder import Folder, JobFolder
from trainer.contract import layout
from trainer.contract.failure import describe_end
from trainer.contract.node import Departure, parse_departure, parse_departure_name

_LOOK = ".look"
_TEXT_BYTES = 256 * 1024
_MOST_CLAIMS = 8
MOST_NAMES = 1000  # limit, since a job can create any number of files


def read_text(attempt: Folder, name: str) -> str | None:
    content = attempt.read(Path(name), limit=_TEXT_BYTES)
    return None if content is None else content.decode(errors="replace").strip()


def read_claim(attempt: Folder) -> str | None:
    """Return the first claim that is not empty (trainer.elastic.records.claim)."""
    names = (layout.CLAIM, *(f"{layout.CLAIM}-{number}" for number in range(2, _MOST_CLAIMS + 1)))
    return next((text for name in names if (text := read_text(attempt, name))), None)


def read_departure(attempt: Folder, name: str, replicas: int) -> Departure | None:
    """Read a file of this name. None if it is no departure of one of the replicas."""
    replica = parse_departure_name(name)
    document = rundir.read_document(attempt, Path(name)) if replica is not None and replica < replicas else None
    with suppress(*rundir.UNREADABLE):
        found = None if document is None else parse_departure(document)
        return found if found is not None and found.replica == replica else None
    return None


def read_recorded(attempt: Folder, replicas: int) -> frozenset[int]:
    """Return the replicas whose agents left an exit record."""
    lives = rundir.incarnations(attempt, range(replicas))
    return frozenset(life.replica for life in lives if life.exit() is not None)


def last_sign(job: JobFolder, key: AttemptKey, replicas: int) -> float | None:
    """Return when an agent or worker of the attempt last wrote, by the file system's clock. None if never."""
    moments = []
    with rundir.open_attempt(job, key.number) as attempt:
        for life in rundir.incarnations(attempt, range(replicas)):
            for path in (
                life.path / layout.PROGRESS,
                life.path / layout.EVENTS,
                life.path.with_name(layout.AGENT_LOG),
            ):
                status = attempt.status(path)
                if status is not None:
                    moments.append(status.st_mtime)
    return max(moments, default=None)


def refresh(attempt: Folder, replicas: int) -> None:
    """Refresh a network file system's view. Its client drops the cache of a folder that it changes itself."""
    lives = [life.path for life in rundir.incarnations(attempt, range(replicas))]
    for folder in (Path(), *{path.parent for path in lives}, *lives):
        with suppress(OSError):
            attempt.touch(folder / _LOOK)
            attempt.remove(folder / _LOOK)


def sight_departed(departure: Departure, recorded: Collection[int]) -> ReplicaSighting:
    """Judge an agent that has left. Its exit record may not be visible to the service yet."""
    replica, code = departure.replica, departure.exit_code
    if departure.recorded and replica not in recorded:
        words = f"replica {replica}'s agent has ended; its exit record is not visible yet"
        return ReplicaSighting(replica=replica, liveness=Liveness.UNKNOWN, evidence=words, node=departure.node)
    words = f"replica {replica}'s agent on {departure.node} {describe_end(code)}"
    # The attempt is not over, so other processes of it may run, unless the agent succeeded.
    return ReplicaSighting(replica=replica, liveness=Liveness.DEAD, evidence=words, leftovers=code != 0)
