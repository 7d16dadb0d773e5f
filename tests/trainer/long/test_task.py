"""A user's task has the same curve on any number of ranks, through stops and restores."""

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from orchestrator.domain.specs.spec import JobSpec
from tests.trainer.alone import OPTIONS, train_alone
from tests.trainer.harness import ROOT, read_lines, start_group
from tests.trainer.user_task import Net, OwnInit, Points
from trainer.contract import layout
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
    """Losses and evaluations of an undisturbed run on one rank."""
    job_dir = tmp_path_factory.mktemp("alone")
    metrics, _ = train_alone(job_dir, steps=24, evaluate_every=12, task_config=EVALUATED)
    return losses_of(metrics), evaluations(layout.replica_dir(job_dir, 1, 0) / "1")


@pytest.fixture(scope="module")
def alone(undisturbed):
    return undisturbed[0]


def test_the_loss_falls(alone):
    assert sum(alone[step] for step in (22, 23, 24)) < 0.6 * sum(alone[step] for step in (1, 2, 3))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_three_ranks_follow_the_curve_of_one(undisturbed, strategy, tmp_path):
    """With weights that differ by sample, dropout, noise in the dataset and a rank with fewer microbatches.

    The evaluation has 7 samples in microbatches of 2: the last one is short, and the last rank has fewer.
    """
    losses, evaluated = undisturbed
    options = {**OPTIONS, "strategy": strategy, "steps": 24, "snapshot_interval": 100, "evaluate_every": 12}
    with start_group(tmp_path, 3, task_config=EVALUATED, **options) as group:
        assert group.wait() == [0, 0, 0], group.outputs()
    assert worst_relative(group.losses(), losses) <= 1e-5
    assert sorted(evaluated) == [12, 24]
    assert worst_relative(evaluations(group.replica_dir), evaluated) <= 1e-5


def test_a_restored_run_continues_on_the_same_curve(alone, tmp_path):
    """The momentum of the user's optimizer is restored, and the schedule continues at the step."""
    train_alone(tmp_path, steps=5, task_config={"width": 8, "sgd": True})
    metrics, events = train_alone(tmp_path, 2, steps=24, task_config={"width": 8, "sgd": True})
    assert next(event["kind"] for event in events if event["kind"] != "setting.ignored") == "restored"
    assert sorted(metrics) == list(range(6, 25))
    assert worst_relative(losses_of(metrics), alone) <= 1e-6
    assert metrics[24]["learning_rate"] == pytest.approx(0.1 / 3.3)


def test_reading_ahead_does_not_change_the_losses(alone, tmp_path):
    metrics, _ = train_alone(tmp_path, steps=24, data_workers=2, task_config={"width": 8, "sgd": True})
    assert losses_of(metrics) == alone
    assert all(values["data_s"] >= 0 for values in metrics.values())


def test_a_buffer_that_is_in_no_snapshot_is_there_after_a_restore(tmp_path):
    options = {"task_config": {"width": 8, "own_init": True}}
    whole, _ = train_alone(tmp_path / "whole", steps=6, **options)
    train_alone(tmp_path / "cut", steps=3, **options)
    rest, _ = train_alone(tmp_path / "cut", 2, steps=6, snapshot_interval=100, **options)
    assert worst_relative(losses_of(rest), losses_of(whole)) <= 0.2, "only the end of the cosine differs"


def test_a_bad_sample_is_named_by_its_index(tmp_path):
    with pytest.raises(
        DataError, match=r"sample 3 of the dataset \(position \d+ of the run\).*ValueError: cannot decode"
    ):
        train_alone(tmp_path, steps=24, task_config={"width": 8, "bad": [3]})


def skipped_samples(events):
    return [event["evidence"]["index"] for event in events if event["kind"] == "sample.skipped"]


def test_allowed_bad_samples_are_skipped_and_reported_once(tmp_path):
    """Each sample occurs twice in two epochs."""
    _, events = train_alone(tmp_path, steps=10, skip_bad_samples=2, task_config={"width": 8, "bad": [3, 4]})
    assert sorted(skipped_samples(events)) == [3, 4]


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
def test_a_task_that_cannot_be_found_gives_one_line(name, message):
    with pytest.raises(TaskError, match=message) as raised:
        open_task(parse_config({**OPTIONS, "task": name}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"loss": None}, "has no 'loss'; the keys are model, data, loss, and optionally"),
        ({"modle": 1}, "has a key 'modle'"),
        ({"model": Net(2)}, r"model is a Net; give a function that builds it: lambda: Net\(...\)"),
        ({"schedule": 0.1}, "schedule is a float, must be a function"),
        ({"data": iter([1])}, "is iterable only"),
        ({"data": 5}, "data: is a int, must be a dataset"),
        ({"data": Points(0)}, "Points is empty"),
        ({"data": type("NoLength", (), {"__getitem__": lambda self, i: i})()}, "NoLength has no __len__"),
        ({"data": DataLoader(Points(8), batch_size=3)}, "batch_size 3 is the microbatch: it must divide"),
        (
            {"data": DataLoader(Points(8), batch_size=2, sampler=SHARDED)},
            "DistributedSampler shards for a fixed number of ranks.*leave it",
        ),
    ],
    ids=[
        "missing",
        "unknown",
        "instance",
        "no-function",
        "iterator",
        "number",
        "empty",
        "no-length",
        "batch-size",
        "sharded",
    ],
)
def test_each_wrong_part_of_a_task_gives_one_line(replaced, message):
    with pytest.raises((TaskError, DataError), match=message) as raised:
        open_task(parse_config({**OPTIONS, "micro_batch": None, "task_config": {"width": 8, "replace": replaced}}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: (model(batch["x"]) - batch["y"]).square(), r"a tensor of shape \(2, 8\)"),
        (lambda model, batch: 0.5, "returned a float"),
        (lambda model, batch: torch.ones(()), "depends on no parameter"),
    ],
)
def test_a_loss_that_does_not_depend_on_the_model_is_refused(loss, message):
    own = open_task(parse_config({**OPTIONS, "task_config": {"width": 8, "replace": {"loss": loss}}}))
    batch = {"x": torch.ones(2, 8, 4), "y": torch.ones(2, 8)}
    with pytest.raises(TaskError, match=message):
        own.loss(Net(8), batch, 2)


def test_a_mean_is_weighted_by_samples_and_a_sum_by_its_weight():
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
def test_initial_values_are_a_function_of_the_seed(build):
    first, again, other = (values(draft_model(build, seed)) for seed in (1, 1, 2))
    for name, value in first.items():
        assert torch.isfinite(value).all()
        assert torch.equal(value, again[name])
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_equal_modules_draw_different_values():
    found = values(draft_model(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 1))
    assert not torch.equal(found["0.weight"], found["1.weight"])


def test_the_users_own_initialisation_is_kept():
    """A model built on the meta device would lose it silently."""
    found = values(draft_model(lambda: OwnInit(64), 1))
    assert found["layers.1.weight"].std().item() == pytest.approx(0.2, rel=0.1)
    assert found["gain"].item() == 0.5


@pytest.mark.parametrize("build", [lambda: Net(8), lambda: OwnInit(8)], ids=["reset", "own"])
def test_a_rank_with_other_initial_values_is_named(build):
    """For example from an unseeded generator, or from a file that differs on one node."""
    alike, again, other = (digests(draft_model(build, seed)) for seed in (1, 1, 2))
    refuse_different([alike, again])
    with pytest.raises(TaskError, match=r"rank 2 begins with other values of layers\.0\.weight than rank 0"):
        refuse_different([alike, again, other])


def digests(draft):
    allocate(draft.model, torch.device("cpu"), home=torch.device("cpu"))
    return draft.write(draft.model, [name for name in named_tensors(draft.model) if "weight" in name])


def test_a_wrapped_model_is_refused():
    with pytest.raises(TaskError, match="returned a DataParallel; return the model itself"):
        draft_model(lambda: nn.DataParallel(Net(8)), 1)


def test_ranks_with_different_initial_values_do_not_train(tmp_path):
    with start_group(tmp_path, 2, **{**OPTIONS, "task": "tests.trainer.user_task:own_values"}) as group:
        assert group.wait() == [1, 1]
        assert group.outputs().count("TaskError: model: rank 1 begins with other values of layers.0.weight") == 2


def test_the_rank_with_the_non_finite_loss_is_named(tmp_path):
    with start_group(tmp_path, 2, **{**OPTIONS, "task_config": {"width": 8, "poisoned": True}}) as group:
        assert group.wait() == [1, 1]
        reported = [line for line in group.outputs().splitlines() if "NonFiniteLoss: loss is nan" in line]
    assert sorted(line.partition("; ")[2] for line in reported) == [
        "look at rank 1",
        "the loss of this rank is not finite",
    ]


def test_tied_weights_stay_tied():
    draft = draft_model(Tied, 1)
    values(draft)
    assert draft.model.head.weight is draft.model.embed.weight


def test_fields_of_the_bundled_task_are_refused_with_a_users_task():
    with pytest.raises(ConfigError, match="data: applies to the bundled task only; pass it to"):
        parse_config({**OPTIONS, "data": "corpus.txt"})
    with pytest.raises(ConfigError, match="task: is 'my_task', must be 'module:function'"):
        parse_config({"task": "my_task"})


def test_the_documented_example_trains(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/examples")
    spec = JobSpec.model_validate(yaml.safe_load((ROOT / "docs/examples/own-task.yaml").read_text()))
    options = {**OPTIONS, "micro_batch": None, "learning_rate": 5e-3, **spec.run.trainer, "steps": 60}
    losses = losses_of(train_alone(tmp_path, **options)[0])
    assert losses[60] < 0.9 * losses[1]
