"""The model's shapes and initial values, and the learning rate."""

from functools import partial

import pytest
import torch

from trainer.contract.config import parse_config
from trainer.contract.shapes import SHAPES
from trainer.contract.workload import preset_shape
from trainer.model.decoder import Decoder, build_initial
from trainer.parallel.blocks import count_parameters
from trainer.parallel.materialize import allocate, initialize, refuse_unwritten
from trainer.parallel.optim import learning_rate_at
from trainer.parallel.strategy import choose_strategy

CPU = torch.device("cpu")


def build(preset: str = "nano", *, seed: int | None = 0) -> Decoder:
    with torch.device("meta"):
        model = Decoder(SHAPES[preset], vocab_size=256, dropout=0.0)
    if seed is not None:
        allocate(model, CPU, home=CPU)
        initialize(model, partial(build_initial, seed=seed, layers=len(model.blocks)))
    return model


@pytest.mark.parametrize(
    ("preset", "millions"),
    [("nano", (0.8, 1.1)), ("micro", (10, 12)), ("124m", (110, 130)), ("1b", (1000, 1200)), ("8b", (7500, 8500))],
)
def test_presets_have_the_size_of_their_name_and_of_the_formulas(preset, millions):
    model, shape = build(preset, seed=None), preset_shape(preset)
    assert millions[0] <= count_parameters(model) / 1e6 <= millions[1]
    assert shape.parameters == count_parameters(model)
    assert shape.block_parameters == count_parameters(model.blocks[0])


def test_no_token_sees_a_later_one():
    model, tokens_BT = build(), torch.randint(0, 256, (2, 16))
    changed_BT = tokens_BT.clone()
    changed_BT[:, 9] = (changed_BT[:, 9] + 1) % 256
    with torch.no_grad():
        before_BTV, after_BTV = model(tokens_BT), model(changed_BT)
    assert before_BTV.shape == (2, 16, 256)
    assert torch.equal(before_BTV[:, :9], after_BTV[:, :9])
    assert not torch.allclose(before_BTV[:, 9:], after_BTV[:, 9:])


def test_the_output_depends_on_positions():
    model = build()
    with torch.no_grad():
        logits_BTV = model(torch.tensor([[1, 2, 3, 9], [2, 1, 3, 9]]))
    assert not torch.allclose(logits_BTV[0, -1], logits_BTV[1, -1])


def test_starting_values_are_a_function_of_seed_and_name():
    first, again, other = build(seed=1), build(seed=1), build(seed=2)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.head.weight, other.head.weight)
    assert not torch.equal(first.blocks[0].attention.qkv.weight, first.blocks[1].attention.qkv.weight)


def test_the_first_loss_is_that_of_a_uniform_guess():
    model, tokens_BT = build(), torch.randint(0, 256, (4, 64))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens_BT).flatten(0, 1), tokens_BT.flatten())
    assert abs(loss.item() - 5.545) < 0.2  # ln 256


def test_an_unwritten_parameter_is_found():
    model = build(seed=None)
    allocate(model, CPU, home=CPU)
    initialize(model, partial(build_initial, seed=0, layers=len(model.blocks)))
    refuse_unwritten(model)
    model.blocks[2].attention_norm.weight.data[5] = float("nan")
    with pytest.raises(RuntimeError, match=r"blocks\.2\.attention_norm\.weight"):
        refuse_unwritten(model)


def test_residual_branches_start_smaller_in_deeper_models():
    shape = torch.Size((64, 64))
    shallow, deep = (build_initial("blocks.0.attention.out.weight", shape, seed=0, layers=n) for n in (2, 8))
    assert torch.allclose(shallow, deep * 2)


def test_the_learning_rate_warms_up_and_follows_a_cosine():
    config = parse_config({"steps": 120, "warmup_steps": 20, "learning_rate": 1.0, "final_learning_rate": 0.1})
    rates = [learning_rate_at(step, config) for step in range(120)]
    assert rates[0] == pytest.approx(1 / 20)
    assert rates[19] == rates[20] == 1.0
    assert rates[70] == pytest.approx(0.55)
    assert learning_rate_at(120, config) == pytest.approx(0.1)
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_auto_shards_only_large_models_on_several_ranks():
    automatic = parse_config({"strategy": "auto"})
    assert choose_strategy(automatic, 10**6, 8, None) == "ddp"
    assert choose_strategy(automatic, 8 * 10**9, 8, None) == "fsdp"
    assert choose_strategy(automatic, 8 * 10**9, 1, None) == "ddp"
    assert choose_strategy(automatic, 3 * 10**9, 8, 80 * 10**9) == "ddp"
    assert choose_strategy(automatic, 3 * 10**9, 8, 40 * 10**9) == "fsdp"
    assert choose_strategy(parse_config({"strategy": "fsdp"}), 10, 1, None) == "fsdp"
