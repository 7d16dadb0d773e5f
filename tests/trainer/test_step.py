"""How often a step makes the host wait for the device."""

from collections import Counter

import pytest
from torch.overrides import TorchFunctionMode

from tests.trainer.alone import train_alone

READS = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "nonzero"}
SENDS = {"new_tensor"}


class Waits(TorchFunctionMode):
    """Counts operations that would wait for a device."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in READS | SENDS:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


def waits_in(job_dir, steps, **options):
    with Waits() as waits:
        train_alone(job_dir, steps=steps, **options)
    return waits.found


@pytest.mark.parametrize("options", [{}, {"precision": "bf16", "grad_clip": 0}], ids=["plain", "bf16, no clipping"])
def test_a_step_reads_from_the_device_once(tmp_path, options):
    """The step has two microbatches of uneven weight, the loss, the gradient's norm and the flags of all ranks."""
    few, many = (waits_in(tmp_path / str(steps), steps, **options) for steps in (2, 5))
    assert many - few == Counter(tolist=3)
