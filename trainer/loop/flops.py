"""FLOPs of a model and peak FLOP/s of a device: the two sides of MFU. Pure.

MFU (model FLOPs utilization) counts the FLOPs of the model, without recomputation: Chowdhery et al., PaLM, 2022,
appendix B. As there, causal attention counts in full, although it needs half.
"""

from __future__ import annotations

import re

from trainer.contract.workload import ModelShape

_TERA = 1e12

# Dense TFLOP/s in bf16 and fp16, in fp32 by TF32, and in plain fp32: the vendors' data sheets, without sparsity (which
# doubles NVIDIA's numbers since A100). The first entry whose name is in the device's name counts.
_PEAKS: tuple[tuple[str, float, float, float], ...] = (
    ("GB200", 2500, 1250, 80),
    ("B200", 2250, 1125, 75),
    ("H20", 148, 74, 44),
    ("H100 NVL", 835, 417, 60),
    ("H200 NVL", 835, 417, 60),
    ("H100 PCIe", 756, 378, 51),
    ("H100", 989, 494, 67),
    ("H200", 989, 494, 67),
    ("H800", 989, 494, 67),
    ("GH200", 989, 494, 67),
    ("A100", 312, 156, 19.5),
    ("A800", 312, 156, 19.5),
    ("A40", 149.7, 74.8, 37.4),
    ("A30", 165, 82, 10.3),
    ("A10", 125, 62.5, 31.2),
    ("L40S", 362, 183, 91.6),
    ("L40", 181, 90.5, 90.5),
    ("L4", 121, 60, 30.3),
    ("MI325X", 1307.4, 653.7, 163.4),
    ("MI300X", 1307.4, 653.7, 163.4),
    ("MI300A", 980.6, 490.3, 122.6),
)


def flops_per_token(shape: ModelShape, seq_len: int) -> float:
    """Forward and backward pass of the bundled decoder: six for each weight that multiplies, and attention's own.

    The embedding is looked up and norms are small: neither counts.
    """
    norms = (2 * shape.layers + 1) * shape.width
    weights = shape.parameters - norms - shape.vocab * shape.width
    return 6 * weights + 12 * shape.layers * shape.width * seq_len


def peak_flops(device_name: str, precision: str, *, is_tf32: bool = False) -> float | None:
    """Peak FLOP/s of a device by the name that its driver reports. None if the table lacks it.

    Also None for a part of a device (MIG), and for fp64: no peak is published for training in fp64 by tensor cores.
    """
    if "MIG" in device_name:
        return None
    for name, half, tf32, single in _PEAKS:
        if re.search(rf"\b{re.escape(name)}\b", device_name):
            peaks = {"bf16": half, "fp16": half, "fp32": tf32 if is_tf32 else single}
            return peaks[precision] * _TERA if precision in peaks else None
    return None
