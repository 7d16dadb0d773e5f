"""Compiled blocks have the same losses. Their first step takes half a minute on a CPU."""

import pytest

from tests.trainer.long.test_strategies import difference, run

COMPILED = {
    "ddp": {"strategy": "ddp", "compile": True, "activation_checkpointing": "selective"},
    "fsdp": {"strategy": "fsdp", "compile": True, "activation_checkpointing": "full"},
}
# Inductor draws other random numbers than eager torch. Without dropout both must agree.
DETERMINISTIC = {"dropout": 0.0}


@pytest.mark.timeout(400)
def test_compiled_blocks_give_the_same_losses_with_every_strategy(tmp_path):
    (tmp_path / "plain").mkdir()
    plain = run(tmp_path / "plain", 1, {"plain": {"strategy": "ddp", **DETERMINISTIC}})["plain"]
    (tmp_path / "compiled").mkdir()
    compiled = {name: {**options, **DETERMINISTIC} for name, options in COMPILED.items()}
    for name, found in run(tmp_path / "compiled", 2, compiled, timeout_s=350).items():
        assert found["compiled"] == 4, name
        assert difference(found, plain) < 1e-5
        assert difference(found, plain, "grad_norms") < 1e-4
