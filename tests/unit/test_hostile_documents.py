"""Any journal, document or report is parsed or skipped. A parser raises only the errors that it documents."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import rundir
from orchestrator.jobfolder.folder import Folder
from tests.documents import WILD, mutated
from tests.examples import examples
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, ProcessIdentity, parse_agent_record, render_agent_record
from trainer.contract.blame import parse_node_verdict
from trainer.contract.chaos import Chaos, Fault, parse_chaos, render_chaos
from trainer.contract.exit_record import (
    ExitRecord,
    JournalEvent,
    Outcome,
    parse_exit_record,
    parse_journal_event,
    render_exit_record,
    render_journal_event,
)
from trainer.contract.failure import Failure, FailureKind, parse_failure, parse_pattern, render_failure
from trainer.contract.fence import parse_term
from trainer.contract.launch import (
    DesiredDocument,
    LaunchPolicy,
    parse_desired,
    parse_policy,
    render_desired,
    render_policy,
)
from trainer.contract.manifest import FileEntry, Manifest, parse_manifest, parse_snapshot_name, render_manifest
from trainer.contract.node import (
    Departure,
    NodeLaunch,
    parse_departure,
    parse_departure_name,
    parse_node_launch,
    render_departure,
    render_node_launch,
)
from trainer.contract.pod import (
    LastWords,
    PodLaunch,
    parse_last_words,
    parse_pod_launch,
    render_last_words,
    render_pod_launch,
)
from trainer.contract.printed import parse_printed
from trainer.contract.progress import Phase, Progress, parse_progress, render_progress
from trainer.contract.resource_sample import (
    LastMinute,
    RankSample,
    Sample,
    parse_last_minute,
    parse_sample,
    render_sample,
)
from trainer.contract.verdict import parse_verdict

AT = "2026-11-20T12:00:00Z"
FAILURE = Failure(kind=FailureKind.APPLICATION, message="m", rank=0, exit_code=1, step=5, traceback="t")
EXIT = ExitRecord(outcome=Outcome.FAILED, at=AT, generation=1, restarts=0, failure=FAILURE)
POLICY = LaunchPolicy(max_restarts=1, stop_timeout_s=1.0, log_limit_bytes=1)
NODE = NodeLaunch(command=("a",), environment={"A": "b"}, workdir="/")
PROGRESS = Progress(
    at=AT,
    rank=0,
    local_rank=0,
    world_size=1,
    generation=1,
    pid=1,
    phase=Phase.STEP,
    step=1,
    total_steps=2,
    memory_bytes=3,
    utilisation=0.5,
    metrics={"loss": 1.0},
)
SAMPLE = Sample(at=AT, generation=1, ranks=(RankSample(rank=0, memory_bytes=1, cpu_cores=0.5),))
LAST_MINUTE = LastMinute(
    seconds=1.0, age_s=1.0, first_bytes=1, highest_bytes=1, node_bytes=1, limit_bytes=1, of_gpu=False
)
EVENT = JournalEvent(at=AT, kind="snapshot.committed", sentence="s", generation=1, evidence={"name": "x", "step": 1})
AGENT = AgentRecord(
    process=ProcessIdentity(pid=1, start_ticks=2, boot_id="b", host="h"), claim="c", incarnation=1, at=AT
)
MANIFEST = Manifest(
    step=1,
    attempt=1,
    generation=1,
    parent=None,
    at=AT,
    world_size=1,
    strategy="ddp",
    samples_seen=1,
    files={"a": FileEntry(size_bytes=1, checksum="xxh3-64:0")},
)
DEPARTURE = Departure(replica=0, node="n", claim="c", exit_code=1, recorded=True, at=AT)
DOCUMENTS: dict[str, tuple[Callable[[Any], object], Mapping[str, object]]] = {
    "progress": (parse_progress, render_progress(PROGRESS)),
    "sample": (parse_sample, render_sample(SAMPLE)),
    "last minute": (parse_last_minute, asdict(LAST_MINUTE)),
    "event": (parse_journal_event, render_journal_event(EVENT)),
    "exit record": (parse_exit_record, render_exit_record(EXIT)),
    "failure": (parse_failure, render_failure(FAILURE)),
    "agent record": (parse_agent_record, render_agent_record(AGENT)),
    "process": (lambda part: parse_agent_record({**render_agent_record(AGENT), "process": part}), vars(AGENT.process)),
    "policy": (parse_policy, render_policy(POLICY)),
    "pattern": (parse_pattern, {"text": "a", "kind": "node"}),
    "desired": (parse_desired, render_desired(DesiredDocument(chaos=Chaos(number=1, fault=Fault.KILL)))),
    "chaos": (parse_chaos, render_chaos(Chaos(number=1, fault=Fault.KILL, rank=1))),
    "manifest": (parse_manifest, render_manifest(MANIFEST)),
    "file of a manifest": (
        lambda part: parse_manifest({**render_manifest(MANIFEST), "files": {"a": part}}),
        {"size_bytes": 1, "checksum": "c"},
    ),
    "departure": (parse_departure, render_departure(DEPARTURE)),
    "node launch": (parse_node_launch, render_node_launch(NODE)),
    "pod launch": (parse_pod_launch, render_pod_launch(PodLaunch(node=NODE, policy=POLICY, replicas=1))),
    "last words": (
        lambda document: parse_last_words(json.dumps(document)),
        json.loads(render_last_words(LastWords(replica=0, incarnation=1, record=EXIT))),
    ),
}
# Names of files and lines of logs.
TEXTS: tuple[Callable[[str], object], ...] = (
    *(parse_term, parse_snapshot_name, parse_departure_name, parse_verdict, parse_node_verdict, parse_last_words),
    lambda text: parse_printed(text.encode(errors="surrogatepass")),
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_field_may_hold_each_wild_value(name: str) -> None:
    parse, good = DOCUMENTS[name]
    for field, value in itertools.product(good, WILD):
        with suppress(ValueError):
            parse({**good, field: value})


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
@settings(max_examples=examples(30, 500))
def test_a_document_is_parsed_or_refused_with_a_value_error(name: str, data: st.DataObject) -> None:
    parse, good = DOCUMENTS[name]
    document = data.draw(mutated(good))
    with suppress(ValueError):
        parse(document)


def test_the_texts_of_a_failure_are_as_long_as_a_page_can_show() -> None:
    long = "first" + "x" * 10**6 + "last"
    found = parse_failure({"kind": long, "message": long, "traceback": long, "signal": long})
    assert (found.message[:5], len(found.message)) == ("first", 4000)
    assert found.traceback is not None
    assert (found.traceback[-4:], len(found.traceback)) == ("last", 16 * 1024)
    assert found.signal is not None
    assert len(found.signal) == 100


@given(
    text=st.text() | st.from_regex(r"(term-|step-|departed-)?[0-9]{1,40}(-a[0-9]{1,40})?(-g[0-9]{1,40})?(\.json)?\n?")
)
def test_a_name_or_a_line_is_parsed_or_is_none_of_ours(text: str) -> None:
    for parse in TEXTS:
        parse(text)


@pytest.mark.parametrize("digits", ["9" * 5000, "٣"])
def test_a_name_with_wild_digits_is_none_of_ours(digits: str) -> None:
    for name in (f"step-{digits}-a1-g1", f"step-1-a{digits}-g1", f"departed-{digits}.json", f"a1-g{digits}.json"):
        assert parse_snapshot_name(name) is None
        assert parse_departure_name(name) is None
        assert parse_term(name) is None


def test_a_name_with_a_line_end_is_none_of_ours() -> None:
    assert parse_snapshot_name("step-00000001-a1-g1\n") is None
    assert parse_term("a00001-g0001.json\n") is None


@given(st.binary(max_size=200) | st.builds(lambda text: text.encode(errors="surrogatepass"), st.text(max_size=200)))
def test_a_journal_of_any_bytes_is_read_to_its_end(content: bytes) -> None:
    lines, end = rundir.split_lines(content, 0)
    rundir.parse_progress_lines(lines)
    rundir.parse_event_lines(lines)
    assert end == len(content) + 1


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000, '{"at": 1, "at": 2}', "NaN", "null"])
def test_a_line_that_no_parser_should_see_is_passed_over(line: str) -> None:
    encoded = [(len(line), line.encode())]
    assert rundir.parse_progress_lines(encoded) == []
    assert rundir.parse_event_lines(encoded) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15, 200))
@given(agent=mutated(render_agent_record(AGENT)), ending=mutated(render_exit_record(EXIT)))
def test_a_life_with_any_records_can_be_looked_at(
    tmp_path: Path, agent: dict[str, object], ending: dict[str, object]
) -> None:
    (tmp_path / layout.AGENT).write_text(json.dumps(agent))
    (tmp_path / layout.EXIT).write_text(json.dumps(ending))
    with Folder.of(tmp_path) as folder:
        life = rundir.Incarnation(0, 1, folder, Path())
        found, record = life.exit(), life.agent()
    assert record is None or isinstance(cast(object, record), AgentRecord)
    assert found is None or isinstance(cast(object, found), ExitRecord)
