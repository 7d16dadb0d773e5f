"""The memory of a job in its plan."""

from __future__ import annotations

from typing import Any

from orchestrator.commands.sizing import size_up
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.wire.plans import MemoryView
from tests.builders import make_spec


def large(*, resources: dict[str, Any] | None = None, nodes: str = "1", **config: Any) -> JobSpec:
    trainer = {"preset": "8b", "seq_len": 2048, "global_batch": 64, "micro_batch": 1, "strategy": "ddp", **config}
    topology = {"nodes": nodes, "workers_per_node": "gpu"}
    return make_spec(run={"trainer": trainer}, topology=topology, resources=resources or {})


def sized(spec: JobSpec, gpu_type: str | None = "NVIDIA H100 80GB HBM3") -> MemoryView:
    found = size_up(spec, gpus_per_node=8, gpu_type=gpu_type)
    assert found is not None
    return found


def test_a_device_that_is_too_small_comes_with_advice() -> None:
    found = sized(large())
    assert (found.device_bytes, found.fits) == (80 * 10**9, False)
    assert "the first that fits is FSDP" in found.advice


def test_the_jobs_gpu_type_wins_over_the_clusters() -> None:
    assert sized(large(resources={"gpu_type": "b300"})).fits is True


def test_strategy_auto_is_resolved_as_the_trainer_does() -> None:
    assert (sized(large(strategy="auto")).strategy, sized(large(strategy="auto")).fits) == ("fsdp", True)
    assert sized(large(strategy="auto", preset="124m")).strategy == "ddp"


def test_an_elastic_job_is_sized_for_its_smallest_group() -> None:
    smallest = sized(large(strategy="fsdp", nodes="1:8"))
    assert (smallest.devices, smallest.total_bytes) == (8, sized(large(strategy="fsdp")).total_bytes)


def test_an_unknown_device_has_no_verdict() -> None:
    found = sized(large(), gpu_type=None)
    assert (found.device_bytes, found.fits) == (None, None)
    assert "fit" not in found.advice


def test_a_file_of_tokens_counts_with_a_large_vocabulary() -> None:
    assert sized(large(data="corpus.bin")).parameters > sized(large()).parameters + 5e8


def test_a_task_of_the_users_is_not_sized() -> None:
    spec = make_spec(run={"trainer": {"task": "my.task:build"}})
    assert size_up(spec, gpus_per_node=8, gpu_type="h100") is None
