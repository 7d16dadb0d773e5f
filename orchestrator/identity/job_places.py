"""Where jobs are: their project and who submitted them. Neither ever changes, so that each is asked for once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.store.place_reader import PlaceReader

_MOST = 100_000  # jobs that are remembered


class JobPlaces:
    """For several threads. An unknown job is asked for again: it may come."""

    def __init__(self, reader: PlaceReader) -> None:
        self._reader = reader
        self._known: dict[str, JobPlace] = {}

    def recall(self, job_id: str) -> JobPlace | None:
        """None: not known here; the store may know it."""
        return self._known.get(job_id)

    def find(self, job_id: str) -> JobPlace | None:
        """None: there is no such job. Raises StoreUnavailable."""
        return self.find_all([job_id]).get(job_id)

    def find_all(self, job_ids: Collection[str]) -> Mapping[str, JobPlace]:
        """Those that exist. Raises StoreUnavailable."""
        found = {job_id: place for job_id in job_ids if (place := self._known.get(job_id)) is not None}
        asked = set(job_ids) - found.keys()
        if asked:
            if len(self._known) > _MOST:
                self._known.clear()
            fresh = self._reader.places(asked)
            self._known.update(fresh)
            found.update(fresh)
        return found
