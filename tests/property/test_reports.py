"""Whatever a job writes into its progress journal, the service accepts the agent's reports, and they have the same
lines as the run directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestrator.api.bodies import REPORT
from orchestrator.api.documents import parse_document
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.specs.validation import parse_model
from orchestrator.intake.intake import parse_report
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.journals import JournalOffsets
from orchestrator.rundir import MAX_READ_BYTES, read_news
from tests.elastic.harness import build_record
from tests.examples import examples
from trainer.contract.progress import Progress
from trainer.elastic.records.record import Record
from trainer.elastic.records.report import Offsets, build_report

LINE = b'{"rank":0,"local_rank":0,"generation":1,"phase":"step","step":%d,"at":"2026-01-01T00:00:00+00:00"}\n'
PIECES = [
    *(LINE % step for step in range(3)),
    b"\n",
    b" \r\n",
    b"\0\n",
    b"\xff\xfe\n",
    b"\xed\xa0\x80\n",  # half of a surrogate pair
    "é\u2028😀\n".encode(),
    b"torn",
    b",",
    b"[",
]
BATCH_BYTES = 300_000  # more than a report has
pieces = st.sampled_from(PIECES) | st.binary(min_size=1, max_size=20)
written = st.builds(lambda piece, often: piece * (1 + often * BATCH_BYTES // len(piece)), pieces, st.booleans())


def lines_of_reports(record: Record) -> Iterator[tuple[int, Progress]]:
    offsets, moved = Offsets(), True
    while moved:
        document, after, _ = build_report(record, offsets)
        body = parse_document(json.dumps(document).encode(), "application/json", REPORT.most_values)
        yield from parse_report(parse_model(REPORT.model, body)).progress
        offsets, moved = after, after != offsets


def lines_of_the_run_directory(root: Path, record: Record) -> Iterator[tuple[int, Progress]]:
    key, place = AttemptKey(record.job_id, record.attempt), (record.replica, record.incarnation)
    offset, moved = 0, True
    while moved:
        known = {place: JournalOffsets(progress=offset)}
        (news,) = read_news(
            JobFolder(root, record.job_id), key, 1, known
        )  # one, because the events are always read from 0
        yield from news.progress
        offset, moved = news.progress_to, news.progress_to != offset


@settings(max_examples=examples(25, 500), deadline=None)
@given(st.lists(written, max_size=4))
def test_reports_are_accepted_and_have_the_lines_of_the_run_directory(journal: list[bytes]) -> None:
    whole = b"".join(journal)
    # After a longer line, the service may skip valid lines of the run directory's journal.
    assume(max(map(len, whole.split(b"\n"))) < MAX_READ_BYTES)
    with TemporaryDirectory() as name:
        record = build_record(Path(name) / "j")
        (record.incarnation_dir / "progress.jsonl").write_bytes(whole)
        assert list(lines_of_reports(record)) == list(lines_of_the_run_directory(Path(name), record))
