"""A user's own task trains as the bundled one does: one curve on any number of ranks, through stops and restores."""

import os

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from orchestrator.domain.specs.spec import JobSpec
from tests.trainer.alone import OPTIONS, train_alone
from tests.trainer.harness import ROOT, read_lines, start_group
from tests.trainer.user_task import Net, OwnInit, Points, masked_loss, task
from trainer.contract import env, layout
from trainer.contract.config import ConfigError, parse_config
from trainer.errors import DataError, TaskError
from trainer.loop.beginning import refuse_different
from trainer.loop.task import open_task
from trainer.model.initial import draft_model, named_tensors
from trainer.parallel.materialize import allocate

SHARDED = DistributedSampler(Points(8), 2, 0)
EVALUATED = {"width": 8, "sgd": True, "evaluate": 7}


def losses_of(metrics):
    return {step: values["loss"] for step, values in metrics.items()}


def evaluations(replica_dir):
    lines = [line for line in read_lines(replica_dir / layout.PROGRESS) if "metrics" in line]
    return {line["step"]: value for line in lines if (value := line["metrics"].get("evaluation_loss")) is not None}


def worst_relative(found, expected):
    assert found.keys() <= expected.keys()
    return max(abs(loss - expected[step]) / expected[step] for step, loss in found.items())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses and evaluations of one rank that nobody disturbs."""
    job_dir = tmp_path_factory.mktemp("alone")
    metrics, _ = train_alone(job_dir, steps=24, evaluate_every=12, task_config=EVALUATED)
    return losses_of(metrics), evaluations(layout.replica_dir(job_dir, 1, 0) / "1")


@pytest.fixture(scope="module")
def alone(undisturbed):
    return undisturbed[0]


def test_it_learns(alone):
    assert sum(alone[step] for step in (22, 23, 24)) < 0.6 * sum(alone[step] for step in (1, 2, 3))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_three_ranks_follow_the_curve_of_one(undisturbed, strategy, tmp_path):
    """With weights that differ by sample, dropout, noise in the dataset and a rank that comes short.

    Of the 7 samples of the evaluation, in microbatches of 2, the last is short, and so is the last rank.
    """
    losses, evaluated = undisturbed
    options = {**OPTIONS, "strategy": strategy, "steps": 24, "snapshot_interval": 100, "evaluate_every": 12}
    with start_group(tmp_path, 3, task_config=EVALUATED, **options) as group:
        assert group.wait(120) == [0, 0, 0], group.outputs()
    assert worst_relative(group.losses(), losses) <= 1e-5
    assert sorted(evaluated) == [12, 24]
    assert worst_relative(evaluations(group.replica_dir), evaluated) <= 1e-5


def test_a_restored_run_goes_on_as_if_it_had_not_stopped(alone, tmp_path):
    """An optimizer of the user's own comes back with its momentum, the schedule by the step."""
    train_alone(tmp_path, steps=5, task_config={"width": 8, "sgd": True})
    metrics, events = train_alone(tmp_path, 2, steps=24, task_config={"width": 8, "sgd": True})
    assert next(event["kind"] for event in events if event["kind"] != "setting.ignored") == "restored"
    assert sorted(metrics) == list(range(6, 25))
    assert worst_relative(losses_of(metrics), alone) <= 1e-6
    assert metrics[24]["learning_rate"] == pytest.approx(0.1 / 3.3)


def test_processes_that_read_ahead_change_nothing_but_the_time(alone, tmp_path):
    metrics, _ = train_alone(tmp_path, steps=24, data_workers=2, task_config={"width": 8, "sgd": True})
    assert losses_of(metrics) == alone
    assert all(values["data_s"] >= 0 for values in metrics.values())


def test_a_buffer_that_no_snapshot_holds_is_there_after_a_restore(tmp_path):
    options = {"task_config": {"width": 8, "own_init": True}}
    whole, _ = train_alone(tmp_path / "whole", steps=6, **options)
    train_alone(tmp_path / "cut", steps=3, **options)
    rest, _ = train_alone(tmp_path / "cut", 2, steps=6, snapshot_interval=100, **options)
    assert worst_relative(losses_of(rest), losses_of(whole)) <= 0.2, "the cosine ends elsewhere, and no more"


def test_a_bad_sample_is_named_by_its_index(tmp_path):
    with pytest.raises(
        DataError, match=r"sample 3 of the dataset \(position \d+ of the run\).*ValueError: cannot decode"
    ):
        train_alone(tmp_path, steps=24, task_config={"width": 8, "bad": [3]})


def test_a_bad_sample_in_a_process_that_reads_ahead_is_named_too(tmp_path):
    with pytest.raises(DataError, match=r"sample 3 of the dataset.*cannot decode 3.*user_task\.py:"):
        train_alone(tmp_path, steps=24, data_workers=1, task_config={"width": 8, "bad": [3]})


def told(events):
    return [event["evidence"]["index"] for event in events if event["kind"] == "sample.skipped"]


def test_bad_samples_are_skipped_as_far_as_the_job_allows_and_each_is_told_once(tmp_path):
    """Over two epochs each comes twice."""
    _, events = train_alone(tmp_path, steps=10, skip_bad_samples=2, task_config={"width": 8, "bad": [3, 4]})
    assert sorted(told(events)) == [3, 4]


def test_one_bad_sample_too_many_ends_the_run(tmp_path):
    with pytest.raises(DataError, match="3 samples could not be read, more than skip_bad_samples = 2"):
        train_alone(tmp_path, steps=10, skip_bad_samples=2, task_config={"width": 8, "bad": [3, 14, 29]})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:task", "there is no module no_such_module"),
        ("tests.trainer.user_task:absent", "user_task.py has no function absent"),
        ("tests.trainer.user_task:no_dictionary", "returned a int, must return a dictionary"),
    ],
)
def test_a_task_that_cannot_be_found_is_one_sentence(name, message):
    with pytest.raises(TaskError, match=message) as raised:
        open_task(parse_config({**OPTIONS, "task": name}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"loss": None}, "has no 'loss'; there are model, data, loss, and optionally"),
        ({"modle": 1}, "has a key 'modle'"),
        ({"model": Net(2)}, r"model is a Net already; give what builds it: lambda: Net\(...\)"),
        ({"schedule": 0.1}, "schedule is a float, must be a function"),
        ({"data": iter([1])}, "is iterable only"),
        ({"data": 5}, "data: is a int, must be a dataset"),
        ({"data": type("NoLength", (), {"__getitem__": lambda self, i: i})()}, "NoLength has no __len__"),
        ({"data": DataLoader(Points(8), batch_size=3)}, "batch_size 3 is the microbatch: it must divide"),
        (
            {"data": DataLoader(Points(8), batch_size=2, sampler=SHARDED)},
            "DistributedSampler shards for a fixed number of ranks.*leave it",
        ),
    ],
    ids=["missing", "unknown", "instance", "no-function", "iterator", "number", "no-length", "batch-size", "sharded"],
)
def test_wrong_parts_are_one_sentence_each(replaced, message):
    with pytest.raises(TaskError, match=message) as raised:
        open_task(parse_config({**OPTIONS, "micro_batch": None, "task_config": {"width": 8, "replace": replaced}}))
    assert "\n" not in str(raised.value)


def test_an_empty_dataset_is_refused():
    with pytest.raises(DataError, match="Points is empty"):
        open_task(parse_config({**OPTIONS, "task_config": {"width": 8, "samples": 0}}))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: (model(batch["x"]) - batch["y"]).square(), r"a tensor of shape \(2, 8\)"),
        (lambda model, batch: 0.5, "returned a float"),
        (lambda model, batch: torch.ones(()), "depends on no parameter"),
    ],
)
def test_a_loss_that_is_no_number_of_the_model_is_refused(loss, message):
    own = open_task(parse_config({**OPTIONS, "task_config": {"width": 8, "replace": {"loss": loss}}}))
    batch = {"x": torch.ones(2, 8, 4), "y": torch.ones(2, 8)}
    with pytest.raises(TaskError, match=message):
        own.loss(Net(8), batch, 2)


def test_a_mean_counts_by_its_samples_and_a_sum_by_its_weight():
    batch = {"x": torch.ones(2, 8, 4), "y": torch.ones(2, 8)}
    model = Net(8).eval()

    def parts(**replaced):
        return open_task(parse_config({**OPTIONS, "task_config": {"width": 8, "replace": replaced}}))

    mean = parts(loss=lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean())
    total = parts(loss=lambda model, batch: model(batch["x"]).sum(), weight=lambda batch: 5.0)
    value, weight = mean.loss(model, batch, 2)
    assert weight == 2
    assert value.item() == pytest.approx(2 * (model(batch["x"]) - 1).square().mean().item())
    assert total.loss(model, batch, 2)[1] == 5.0


def values(draft):
    allocate(draft.model, torch.device("cpu"), home=torch.device("cpu"))
    draft.write(draft.model, named_tensors(draft.model).keys())
    return named_tensors(draft.model)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("build", [lambda: Net(8), lambda: OwnInit(8), Tied], ids=["reset", "own", "tied"])
def test_first_values_are_a_function_of_the_seed(build):
    first, again, other = (values(draft_model(build, seed)) for seed in (1, 1, 2))
    for name, value in first.items():
        assert torch.isfinite(value).all()
        assert torch.equal(value, again[name])
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_modules_of_a_kind_draw_values_of_their_own():
    found = values(draft_model(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 1))
    assert not torch.equal(found["0.weight"], found["1.weight"])


def test_an_initialisation_of_the_users_own_is_kept():
    """Built on the meta device it would be lost without a word."""
    found = values(draft_model(lambda: OwnInit(64), 1))
    assert found["layers.1.weight"].std().item() == pytest.approx(0.2, rel=0.1)
    assert found["gain"].item() == 0.5


@pytest.mark.parametrize("build", [lambda: Net(8), lambda: OwnInit(8)], ids=["reset", "own"])
def test_a_rank_with_first_values_of_its_own_is_named(build):
    """As a generator makes them that nobody seeds, or a file that is another one on one of the nodes."""
    alike, again, other = (digests(draft_model(build, seed)) for seed in (1, 1, 2))
    refuse_different([alike, again])
    with pytest.raises(TaskError, match=r"rank 2 begins with other values of layers\.0\.weight than rank 0"):
        refuse_different([alike, again, other])


def digests(draft):
    allocate(draft.model, torch.device("cpu"), home=torch.device("cpu"))
    return draft.write(draft.model, [name for name in named_tensors(draft.model) if "weight" in name])


def test_a_model_that_is_wrapped_already_is_refused():
    with pytest.raises(TaskError, match="returned a DataParallel; return the model itself"):
        draft_model(lambda: nn.DataParallel(Net(8)), 1)


def test_ranks_that_begin_with_other_values_do_not_train(tmp_path):
    with start_group(tmp_path, 2, **{**OPTIONS, "task": "tests.trainer.user_task:own_values"}) as group:
        assert group.wait() == [1, 1]
        assert group.outputs().count("TaskError: model: rank 1 begins with other values of layers.0.weight") == 2


def test_the_rank_whose_samples_make_the_loss_no_number_is_named(tmp_path):
    with start_group(tmp_path, 2, **{**OPTIONS, "task_config": {"width": 8, "poisoned": True}}) as group:
        assert group.wait() == [1, 1]
        told = [line for line in group.outputs().splitlines() if "NonFiniteLoss: loss is nan" in line]
    assert sorted(line.partition("; ")[2] for line in told) == [
        "look at rank 1",
        "this rank's own share of it is no number",
    ]


def test_tied_weights_stay_tied():
    draft = draft_model(Tied, 1)
    values(draft)
    assert draft.model.head.weight is draft.model.embed.weight


def test_the_bundled_tasks_fields_are_refused_beside_a_task():
    with pytest.raises(ConfigError, match="data: belongs to the bundled task; give it to"):
        parse_config({**OPTIONS, "data": "corpus.txt"})
    with pytest.raises(ConfigError, match="task: is 'my_task', must be 'module:function'"):
        parse_config({"task": "my_task"})
    assert os.environ.get(env.JOB_DIR) is None
    assert callable(task)
    assert callable(masked_loss)


def test_the_example_in_the_documents_is_a_job_that_learns(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/examples")
    spec = JobSpec.model_validate(yaml.safe_load((ROOT / "docs/examples/own-task.yaml").read_text()))
    options = {**OPTIONS, "micro_batch": None, "learning_rate": 5e-3, **spec.run.trainer, "steps": 60}
    losses = losses_of(train_alone(tmp_path, **options)[0])
    assert losses[60] < 0.9 * losses[1]
