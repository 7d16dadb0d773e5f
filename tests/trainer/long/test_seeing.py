"""What two ranks report of a run: the parts of a step, slow ranks and a profile. None of it ends a run."""

import gzip
import json

import pytest

from tests.trainer.alone import OPTIONS, train_alone
from tests.trainer.harness import start_group
from trainer.contract import layout

STEPS, LATE_S = 13, 0.5  # more than a step takes on a busy machine


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def run(request, tmp_path_factory):
    """Rank 1 is late in every step, and three steps are profiled. Returns the steps' metrics and the group."""
    options = {**OPTIONS, "micro_batch": 4, "strategy": request.param, "steps": STEPS, "snapshot_interval": 5}
    options |= {"task_config": {"width": 8, "slow_rank_s": LATE_S}, "profile": "4:6"}
    entry = ("-m", "tests.trainer.slow_rank_entry")
    with start_group(tmp_path_factory.mktemp(request.param), 2, entry=entry, **options) as group:
        assert group.wait() == [0, 0], group.outputs()
    return [line["metrics"] for line in group.steps()], group


def test_the_parts_of_a_step_add_up_to_no_more_than_the_step(run):
    steps, _ = run
    for metrics in steps:
        assert min(metrics[part] for part in ("data_s", "compute_s", "communication_s", "snapshot_s")) >= 0
        assert metrics["compute_s"] + metrics["communication_s"] <= metrics["step_s"] * 1.000001


def test_waiting_for_a_late_rank_counts_as_communication(run):
    steps, _ = run
    assert sum(metrics["communication_s"] for metrics in steps) > 0.5 * STEPS * LATE_S


def test_the_cost_of_a_snapshot_is_reported_with_the_next_step(run):
    steps, _ = run
    behind = [number for number, metrics in enumerate(steps, start=1) if metrics["snapshot_s"] > 0]
    assert behind == [6, 11]


@pytest.mark.smoke
def test_a_late_rank_is_reported_once(run):
    steps, group = run
    (event,) = group.events("rank.slow")
    evidence = event["evidence"]
    assert (evidence["rank"], evidence["step"]) == (1, 12)
    assert evidence["computed_s"] >= LATE_S
    assert [metrics.get("slowest_rank") for metrics in steps][3::4] == [1, 1, 1]
    assert [number for number, metrics in enumerate(steps, start=1) if "slowest_rank" in metrics] == [4, 8, 12]


def test_each_rank_writes_a_trace_and_rank_0_summarizes_it(run):
    _, group = run
    (event,) = group.events("profiled")
    assert 0 < event["evidence"]["exposed"] <= event["evidence"]["communication"] <= 1
    for local_rank in range(2):
        path = layout.worker_dir(group.replica_dir, 1, local_rank) / layout.PROFILE
        names = {event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
        assert any(str(name).startswith("gloo:") for name in names)
        assert "aten::addmm" in names or "aten::mm" in names


def test_an_unwritable_trace_is_reported_and_training_continues(tmp_path):
    folder = layout.replica_dir(tmp_path, 1, 0) / "1"
    folder.mkdir(parents=True)
    (folder / "g1").touch()
    metrics, events = train_alone(tmp_path, steps=4, profile="2:3")
    assert sorted(metrics) == [1, 2, 3, 4]
    (reported,) = [event["sentence"] for event in events if event["kind"] == "setting.ignored"]
    assert reported.startswith("no profile of this rank: ")


def test_a_window_that_ends_with_the_run_is_written(tmp_path):
    _, events = train_alone(tmp_path, steps=3, profile="3:9")
    assert [event["kind"] for event in events].count("profiled") == 1


def batch_changes(trained):
    return [event["sentence"] for event in trained[1] if event["kind"] == "batch.changed"]


def test_a_larger_batch_is_reported_with_the_learning_rate(tmp_path):
    train_alone(tmp_path, steps=2)
    (reported,) = batch_changes(train_alone(tmp_path, 2, steps=3, global_batch=16))
    assert reported.startswith(
        "since step-00000002-a1-g1 a step's batch was 8 samples and is 16, but the learning rate is still 0.001: "
    )
    assert batch_changes(train_alone(tmp_path, 3, steps=4, global_batch=16)) == [], "it is reported once"
