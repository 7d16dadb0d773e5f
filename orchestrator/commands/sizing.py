"""How much memory the bundled trainer needs of each device, and what to do if that is too much."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.domain.specs.ineffective_fields import keeps_copies
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.wire.plans import MemoryView
from trainer.contract.advice import LADDER, Rung, choose_strategy, describe_need, format_gb
from trainer.contract.config import TrainerConfig
from trainer.contract.devices import find_device_bytes
from trainer.contract.memory import copies_bytes, estimate
from trainer.contract.workload import BYTES_VOCABULARY, TOKENS_VOCABULARY, Workload, build_workload


def size_up(spec: JobSpec, *, gpus_per_node: int, gpu_type: str | None) -> MemoryView | None:
    """Return the memory that one worker needs in the smallest group of the topology.

    None unless the bundled trainer's model is used.
    `gpu_type` is the cluster's, for a spec that names none.
    """
    config = spec.trainer_config()
    if config is None or config.task is not None:
        return None
    load, device_bytes, on_cpu = _build_workload(spec, config, gpus_per_node, gpu_type)
    if config.strategy == "auto":
        load = replace(load, strategy=choose_strategy(load, None if on_cpu else device_bytes))
    view = _view(load, device_bytes, on_cpu=on_cpu)
    if not keeps_copies(spec) or spec.snapshot.memory == "off":
        return view
    size = copies_bytes(load, spec.topology.min_nodes)
    sentence = f"{view.advice}; copies of the state take {format_gb(size)} of each node's memory"
    return view.model_copy(update={"copies_bytes": size, "advice": sentence})


def compare_rungs(spec: JobSpec, *, gpus_per_node: int, gpu_type: str | None) -> list[tuple[Rung, MemoryView]]:
    """Return the memory of the same job on each rung that its devices allow. Empty where `size_up` returns None."""
    config = spec.trainer_config()
    if config is None or config.task is not None:
        return []
    load, device_bytes, on_cpu = _build_workload(spec, config, gpus_per_node, gpu_type)
    rungs = [rung for rung in LADDER if rung.admits(load.devices)]
    return [(rung, _view(rung.change(load), device_bytes, on_cpu=on_cpu)) for rung in rungs]


def _build_workload(
    spec: JobSpec, config: TrainerConfig, gpus_per_node: int, gpu_type: str | None
) -> tuple[Workload, int | None, bool]:
    """Return the configured workload, the bytes of its device, and whether that is a CPU."""
    workers = spec.topology.count_workers(gpus_per_node)
    load = build_workload(
        config,
        world_size=spec.topology.min_nodes * workers,
        ranks_per_node=workers,
        vocab=TOKENS_VOCABULARY if config.data.endswith(".bin") else BYTES_VOCABULARY,
    )
    on_cpu = spec.topology.workers_per_node != "gpu" and spec.resources.gpus == 0
    return load, _device_bytes(spec, gpu_type, workers, on_cpu=on_cpu), on_cpu


def _view(load: Workload, device_bytes: int | None, *, on_cpu: bool) -> MemoryView:
    need = estimate(load, on_cpu=on_cpu)
    terms = {name: round(size) for name, size in need.terms.by_name().items()} | {"overhead": round(need.overhead)}
    return MemoryView(
        strategy=load.strategy,
        devices=load.devices,
        parameters=load.shape.parameters,
        terms=terms,
        total_bytes=sum(terms.values()),
        host_bytes=round(need.host),
        device_bytes=device_bytes,
        fits=None if device_bytes is None else need.total <= device_bytes,
        advice=describe_need(load, device_bytes, on_cpu=on_cpu),
    )


def _device_bytes(spec: JobSpec, gpu_type: str | None, workers: int, *, on_cpu: bool) -> int | None:
    """Return the memory of a worker's device, or on CPUs its share of the node's memory."""
    if on_cpu:
        memory_gb = spec.resources.memory_gb
        return None if memory_gb is None else int(memory_gb * 1e9 / workers)
    name = spec.resources.gpu_type or gpu_type
    return None if name is None else find_device_bytes(name)
