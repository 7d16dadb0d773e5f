"""The events of all jobs after an id, with their projects."""

from __future__ import annotations

from orchestrator.store.event_reader import EventReader
from tests.builders import make_event, make_spec
from tests.store.harness import Stores


def test_events_of_all_jobs_are_read_once_and_in_order(stores: Stores) -> None:
    reader = EventReader(stores.database)
    before = reader.newest()
    first = stores.add("job-1", spec=make_spec(project="research"))
    stores.add("job-2")
    stores.apply(first, None, make_event("job.state"))
    found = reader.after(before, limit=9)
    assert [(each.job_id, each.project, each.kind) for each in found] == [
        ("job-1", "research", "job.submitted"),
        ("job-2", "default", "job.submitted"),
        ("job-1", "research", "job.state"),
    ]
    assert [each.id for each in found] == sorted(each.id for each in found)
    assert reader.newest() == found[-1].id
    assert reader.after(found[0].id, limit=1) == [found[1]]
    assert reader.after(found[-1].id, limit=9) == []
