"""The tracker writes to its job's journals and reads from the service."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from orchestrator.torchx_scheduler.tracker import JobTracker
from tests.cli.fake_service import FakeService, make_event, make_job
from tests.trainer.harness import read_lines
from trainer.contract.env import parse_place
from trainer.contract.progress import Phase
from trainer.worker.heartbeat import Heartbeat

HANDLE = "orchestrator://torchx/gpt-0001"


@pytest.fixture(autouse=True)
def no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeat, "current", None)


def place(folder: Path, rank: int = 0) -> dict[str, str]:
    return {
        "ORCHESTRATOR_JOB_ID": "gpt-0001",
        "ORCHESTRATOR_REPLICA_DIR": str(folder),
        "RANK": str(rank),
        "WORLD_SIZE": "2",
    }


def test_numbers_with_a_step_are_metrics_and_not_a_heartbeat(tmp_path: Path) -> None:
    tracker = JobTracker(None, place(tmp_path))
    tracker.add_metadata(HANDLE, step=3, accuracy=0.5)
    tracker.add_metadata(HANDLE, step=3, recall=1)
    first, second = read_lines(tmp_path / "progress.jsonl")
    assert (first["step"], first["metrics"], first["phase"]) == (3, {"accuracy": 0.5}, "note")
    assert second["metrics"] == {"accuracy": 0.5, "recall": 1.0}, "a later line of a step repeats its metrics"
    assert not (tmp_path / "events.jsonl").exists()


def test_a_numpy_scalar_is_a_number_and_an_array_is_not(tmp_path: Path) -> None:
    values = {"a": np.float32(0.5), "b": np.array([1.0, 2.0]), "c": True, "d": "1"}
    JobTracker(None, place(tmp_path)).add_metadata(HANDLE, step=3, **values)
    assert [line["metrics"] for line in read_lines(tmp_path / "progress.jsonl")] == [{"a": 0.5}]
    (event,) = read_lines(tmp_path / "events.jsonl")
    assert event["evidence"] == {"b": "[1. 2.]", "c": True, "d": "1"}


def test_metrics_are_merged_with_those_that_the_script_reports(tmp_path: Path) -> None:
    heartbeat = Heartbeat(parse_place(place(tmp_path)), 10)
    heartbeat.beat(Phase.STEP, 3, {"loss": 2.0})
    JobTracker(None, place(tmp_path)).add_metadata(HANDLE, step=3, accuracy=0.5)
    line = read_lines(tmp_path / "progress.jsonl")[-1]
    assert (line["phase"], line["metrics"], line["total_steps"]) == ("step", {"loss": 2.0, "accuracy": 0.5}, 10)


def test_everything_else_is_an_event_with_its_evidence(tmp_path: Path) -> None:
    tracker = JobTracker(None, place(tmp_path))
    tracker.add_metadata(HANDLE, dataset="c4", where=Path("/data"), worst=math.nan)
    tracker.add_metadata(HANDLE, step=4, note="late", loss=1.0)
    tracker.add_artifact(HANDLE, "model", "/data/model.pt", {"size": 3})
    tracker.add_source(HANDLE, "orchestrator://torchx/base-1", "model")
    events = read_lines(tmp_path / "events.jsonl")
    assert [(event["kind"], event["sentence"]) for event in events] == [
        ("metadata.noted", "dataset: c4, where: /data, worst: NaN"),
        ("metadata.noted", "note: late"),
        ("artifact.added", "artifact model: /data/model.pt"),
        ("source.added", "made from orchestrator://torchx/base-1, its model"),
    ]
    assert events[2]["evidence"] == {"name": "model", "path": "/data/model.pt", "metadata": {"size": 3}}
    assert [line["metrics"] for line in read_lines(tmp_path / "progress.jsonl")] == [{"loss": 1.0}]


def test_only_rank_0_writes(tmp_path: Path) -> None:
    tracker = JobTracker(None, place(tmp_path, rank=1))
    tracker.add_metadata(HANDLE, a=1)
    tracker.add_artifact(HANDLE, "model", "/m")
    assert list(tmp_path.iterdir()) == []


def test_a_job_cannot_write_to_another_run(tmp_path: Path) -> None:
    tracker = JobTracker(None, place(tmp_path))
    tracker.add_metadata("<UNDEFINED>", a=1)
    with pytest.raises(ValueError, match="run other-1 is not this job, gpt-0001"):
        tracker.add_metadata("other-1", a=1)


def test_outside_a_job_calls_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    tracker = JobTracker(None, {})
    for _ in range(2):
        tracker.add_metadata(HANDLE, a=1)
    assert [record.message for record in caplog.records] == [
        "this process is not a worker of an orchestrator job: tracker calls are ignored"
    ]


def test_reads_query_the_service(service: FakeService) -> None:
    service.add(make_job())
    events: list[tuple[str, dict[str, object]]] = [
        ("metadata.noted", {"dataset": "c4", "lr": 1}),
        ("metadata.noted", {"lr": 2}),
        ("artifact.added", {"name": "model", "path": "/m", "metadata": {}}),
        ("source.added", {"source": "base-1", "artifact": "model"}),
        ("job.state", {"state": "RUNNING"}),
    ]
    service.events["gpt-0001"] = [
        make_event(number, "").model_copy(update={"kind": kind, "evidence": evidence})
        for number, (kind, evidence) in enumerate(events, start=1)
    ]
    service.measured = {"loss": 1.5}
    tracker = JobTracker(f"http://127.0.0.1:{service.port}", {})
    assert tracker.metadata(HANDLE) == {"dataset": "c4", "lr": 2, "loss": 1.5}
    assert [(one.name, one.path, one.metadata) for one in tracker.artifacts(HANDLE).values()] == [("model", "/m", None)]
    assert [one.source_run_id for one in tracker.sources(HANDLE, "model")] == ["base-1"]
    assert list(tracker.sources(HANDLE, "dataset")) == []
    assert list(tracker.run_ids()) == [HANDLE]
