"""Any JSON in journals and exit records is stored within limits or skipped, and the job can still be read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import rundir
from orchestrator.domain.accounting.chronicle import read_life
from orchestrator.domain.accounting.goodput import add_up
from orchestrator.domain.accounting.life import lay_out
from orchestrator.domain.explanation.why import explain
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.ports.journals import JournalBatch
from orchestrator.store.sanitize import MAX_EVIDENCE_BYTES
from tests.builders import NOW, at
from tests.documents import WILD, mutated
from tests.examples import examples
from tests.store.harness import Stores
from tests.unit.test_hostile_documents import EVENT, EXIT, PROGRESS
from trainer.contract.exit_record import (
    EventKind,
    ExitRecord,
    parse_exit_record,
    render_exit_record,
    render_journal_event,
)
from trainer.contract.progress import render_progress

PROGRESS_FIELDS = tuple(render_progress(PROGRESS))
EVENTS = st.sampled_from([kind.value for kind in EventKind]).flatmap(
    lambda kind: mutated({**render_journal_event(EVENT), "kind": kind})
)
EVIDENCE = mutated({"name": "step-00000001-a1-g1", "step": 1, "size_bytes": 2, "world_size": 1, "pids": {"0": 1}})
EVENTS_WITH_EVIDENCE = st.builds(lambda event, evidence: {**event, "evidence": evidence}, EVENTS, EVIDENCE)


def lines_of(documents: list[dict[str, object]]) -> list[rundir.Line]:
    text = "".join(json.dumps(document) + "\n" for document in documents)
    return rundir.split_lines(text.encode(), 0)[0]


def exit_record_of(document: Mapping[str, object]) -> ExitRecord | None:
    try:
        return parse_exit_record(document)
    except rundir.UNREADABLE:
        return None


def batch_of(job_id: str, lines: list[rundir.Line], event_lines: list[rundir.Line]) -> JournalBatch:
    """A batch of replica 0. The lines are those of its files."""
    return JournalBatch(
        key=AttemptKey(job_id, 1),
        replica=0,
        incarnation=1,
        progress=rundir.parse_progress_lines(lines),
        progress_to=lines[-1][0] if lines else 0,
        events=rundir.parse_event_lines(event_lines),
        events_to=event_lines[-1][0] if event_lines else 0,
        exit_record=None,
    )


@settings(max_examples=examples(15, 500), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    progress=st.lists(mutated(render_progress(PROGRESS)), max_size=4),
    events=st.lists(EVENTS | EVENTS_WITH_EVIDENCE, max_size=4),
    ending=mutated(render_exit_record(EXIT)),
)
def test_any_lines_are_stored_or_skipped_and_the_job_can_be_read(
    stores: Stores,
    new_job: Callable[[], str],
    progress: list[dict[str, object]],
    events: list[dict[str, object]],
    ending: dict[str, object],
) -> None:
    job_id = new_job()
    stores.add_with_attempt(job_id)
    lines, event_lines = lines_of(progress), lines_of(events)
    batch = batch_of(job_id, lines, event_lines)
    stores.journals.ingest([batch._replace(exit_record=exit_record_of(ending))], arrived_at=NOW)
    found = stores.offsets(job_id)[0, 1]
    assert (found.progress, found.events) == (lines[-1][0], event_lines[-1][0])
    read_all(stores, job_id)


def read_all(stores: Stores, job_id: str) -> None:
    """Read what the supervisor, the pages and `why` read."""
    assert job_id in {each.job.id for each in stores.supervisor.supervised("local", stores.supervisor.at_work("local"))}
    stores.supervisor.journaled(AttemptKey(job_id, 1))
    history = stores.history
    for page in (history.attempts, history.snapshots, history.workers, history.replicas):
        page(job_id, limit=100, cursor=None)
    history.metrics(job_id, since_step=-(2**62), points=50)
    chronicle = stores.chronicles.chronicle(job_id)
    life = read_life(chronicle)
    explain(chronicle, life, add_up(lay_out(life, at(100))), NOW)
    for event in stores.events(job_id):
        assert len(json.dumps(event.evidence, ensure_ascii=False).encode()) <= MAX_EVIDENCE_BYTES + 1024
        assert len(event.sentence) + len(event.kind) < 3000


def test_each_field_may_have_any_value(stores: Stores) -> None:
    stores.add_with_attempt()
    good = render_journal_event(EVENT)
    lines = lines_of([{**render_progress(PROGRESS), field: value} for field in PROGRESS_FIELDS for value in WILD])
    event_lines = lines_of(
        [
            {**good, "kind": kind.value, **change}
            for kind in EventKind
            for value in WILD
            for change in ({"at": value}, {"sentence": value}, {"generation": value}, {"evidence": {"name": value}})
        ]
    )
    for start, end in itertools.pairwise(range(0, max(len(lines), len(event_lines)) + 500, 500)):
        stores.journals.ingest([batch_of("job-1", lines[start:end], event_lines[start:end])], arrived_at=NOW)
    read_all(stores, "job-1")
