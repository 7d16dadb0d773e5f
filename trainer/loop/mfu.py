"""The ideal step time: the model's FLOPs at the peak of all devices. MFU is ideal time over step time."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.contract.config import TrainerConfig
from trainer.contract.exit_record import EventKind
from trainer.data.feeder import move
from trainer.data.source import Request
from trainer.loop.flops import peak_flops
from trainer.loop.task import Task
from trainer.worker.run import Run


def find_ideal_step_s(run: Run, task: Task, model: nn.Module) -> float | None:
    """The ideal step time in seconds. None if no peak is known: a CPU without `peak_tflops`, or an unknown device.

    `model` is whole, on the meta device. All devices are assumed to be equal. Call it on rank 0.
    """
    peak = find_peak_flops(run.config, run.device)
    if peak is None:
        return None
    flops = task.flops_per_sample
    if flops is None:
        try:
            flops = count_flops_per_sample(task, model)
        except Exception as error:  # noqa: BLE001  # the user's model may fail on the meta device: train without MFU
            reason = (str(error).strip() or "no message").splitlines()[0]
            sentence = f"no MFU: the model's operations cannot be counted: {type(error).__name__}: {reason}"
            run.heartbeat.tell(EventKind.SETTING_IGNORED, sentence, {})
            return None
    return run.config.global_batch * flops / (peak * dist.get_world_size())


def find_peak_flops(config: TrainerConfig, device: torch.device) -> float | None:
    """Peak FLOP/s of one device."""
    if config.peak_tflops is not None:
        return config.peak_tflops * 1e12
    if device.type != "cuda":
        return None
    is_tf32 = torch.get_float32_matmul_precision() != "highest"
    return peak_flops(torch.cuda.get_device_name(device), config.precision, is_tf32=is_tf32)


def count_flops_per_sample(task: Task, model: nn.Module) -> float:
    """Count the forward and backward pass of one microbatch on the meta device, where only shapes are computed.

    A copy of the model is run: the model may keep something of a forward pass, such as a mask, and that must not come
    from the meta device. Raises what the model or the loss raises, and ValueError if nothing in them is counted.
    """
    model = copy.deepcopy(model)
    size = task.source.micro_batch
    batch = move(task.source.read(Request(0, 0, 0, size)).batch, torch.device("meta"))
    with FlopCounterMode(display=False) as counter:
        total, _ = task.loss(model, batch, size)
        total.backward()  # type: ignore[no-untyped-call]
    flops: int = counter.get_total_flops()
    if not flops:
        raise ValueError("the model multiplies no matrices")
    return flops / size
