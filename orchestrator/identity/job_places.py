"""A cache of jobs' projects and owners, which never change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.store.place_reader import PlaceReader

_MOST = 100_000  # cached jobs


class JobPlaces:
    """Thread-safe. An unknown job is not cached, because it may be submitted later."""

    def __init__(self, reader: PlaceReader) -> None:
        self._reader = reader
        self._known: dict[str, JobPlace] = {}

    def recall(self, job_id: str) -> JobPlace | None:
        """Return the cached place of a job. None if it is not cached."""
        return self._known.get(job_id)

    def find(self, job_id: str) -> JobPlace | None:
        """Return the place of a job. None if there is no such job. Raises StoreUnavailable."""
        return self.find_all([job_id]).get(job_id)

    def find_all(self, job_ids: Collection[str]) -> Mapping[str, JobPlace]:
        """Return the places of the jobs that exist. Raises StoreUnavailable."""
        found = {job_id: place for job_id in job_ids if (place := self._known.get(job_id)) is not None}
        asked = set(job_ids) - found.keys()
        if asked:
            if len(self._known) > _MOST:
                self._known.clear()
            fresh = self._reader.places(asked)
            self._known.update(fresh)
            found.update(fresh)
        return found
