"""TensorBoard files: each step is shown once, and their failure ends no run."""

import shutil
import sys
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.trainer.alone import train_alone
from trainer.contract import layout
from trainer.loop.tensorboard_files import FOLDER, TensorBoardFiles


def read_files(folder):
    """Steps and values by name, as TensorBoard shows them."""
    shown = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    shown.Reload()
    return {name: [(event.step, event.value) for event in shown.Scalars(name)] for name in shown.Tags()["scalars"]}


def test_a_repeated_step_is_shown_once(tmp_path):
    """The last snapshot is lost, so the second run repeats steps of the first."""
    options = {"tensorboard": True, "snapshot_interval": 4, "evaluate_every": 4}
    task_config = {"width": 8, "evaluate": 7}
    train_alone(tmp_path, steps=10, task_config=task_config, **options)
    for step in (8, 10):
        shutil.rmtree(layout.snapshots_dir(tmp_path) / f"step-{step:08}-a1-g1")
    metrics, _ = train_alone(tmp_path, 2, steps=12, task_config=task_config, **options)
    assert sorted(metrics) == list(range(5, 13))
    shown = read_files(tmp_path / FOLDER)
    assert [step for step, _ in shown["loss"]] == list(range(1, 13))
    for step, value in shown["loss"][4:]:
        assert value == pytest.approx(metrics[step]["loss"], rel=1e-6)
    assert [step for step, _ in shown["evaluation_loss"]] == [4, 8, 12]
    assert {"grad_norm", "samples_per_s", "step_s", "data_s", "compute_s"} <= shown.keys()


def test_no_files_are_written_by_default(tmp_path):
    train_alone(tmp_path, steps=1)
    assert not (tmp_path / FOLDER).exists()


def test_a_missing_library_is_reported_and_training_continues(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    metrics, events = train_alone(tmp_path, steps=2, tensorboard=True)
    assert sorted(metrics) == [1, 2]
    (reported,) = [event["sentence"] for event in events if event["kind"] == "setting.ignored"]
    assert "pip install 'elastic-orchestrator[tensorboard]'" in reported


def test_incompatible_libraries_do_not_end_a_run(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise TypeError("Descriptors cannot be created directly.")

    reported = []
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", fail)
    TensorBoardFiles(tmp_path, reported.append).write(1, {"loss": 1.0})
    assert reported == ["no TensorBoard files: TypeError: Descriptors cannot be created directly."]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the library
def test_a_full_disk_stops_the_files_and_not_the_run(small_disk):
    reported = []
    files = TensorBoardFiles(small_disk / "tensorboard", reported.append)
    files.write(1, {"loss": 1.0})
    (small_disk / "rest").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    for step in range(2, 20_000):
        files.write(step, {f"metric_{number}": 1.0 for number in range(10)})
        if reported:
            break
    files.write(20_000, {"loss": 1.0})
    files.close()
    for thread in threading.enumerate():
        if type(thread).__name__ == "_AsyncWriterThread":
            thread.join(300)  # it ends by an exception within this test
    (sentence,) = reported
    assert sentence.startswith("no more TensorBoard files: ")
