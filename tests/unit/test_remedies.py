"""What helps against a failure, and which errors are the script's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.explanation.remedies import REMEDIES, find_remedy
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.builders import at, make_attempt, make_job, make_spec
from tests.unit.explained import ODD, RAISED, why_of
from trainer.contract.failure import Failure, FailureKind


def advice_on(failure: Failure, run: dict[str, object]) -> tuple[str | None, str]:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=failure)
    job = make_job(spec=make_spec(run=run), state=JobState.FAILED, reason="the same error twice")
    why = why_of(job, [ended], [])
    return None if why.remedy is None else why.remedy.fix, why.next


def test_an_error_of_the_script_is_fixed_at_its_line() -> None:
    fix, advice = advice_on(RAISED, {"script": "train.py"})
    assert fix == "Fix the script at /src/train.py, line 12."
    assert advice == "Fix the script at /src/train.py, line 12. Then run `orchestrator retry job-1`."


def test_wrong_arguments_are_corrected_before_a_retry() -> None:
    _, advice = advice_on(MESSAGES["arguments"], {"script": "train.py"})
    assert advice == "Correct `run.args` (`--set 'run.args=[...]'`). Then run `orchestrator retry job-1`."


def test_an_error_without_a_line_of_the_script_is_the_scripts_too() -> None:
    elsewhere = replace(RAISED, traceback=(RAISED.traceback or "").replace("/src/", "/opt/venv/site-packages/"))
    assert advice_on(elsewhere, {"module": "train"}) == (
        "Fix the script.",
        "Fix the script. Then run `orchestrator retry job-1`.",
    )


def test_the_bundled_trainer_is_not_a_script_to_fix_but_the_owners_task_is() -> None:
    assert advice_on(RAISED, {"trainer": {}}) == (None, "Run `orchestrator retry job-1`.")
    assert advice_on(RAISED, {"trainer": {"task": "train:task"}})[0] == "Fix the script at /src/train.py, line 12."


@pytest.mark.parametrize(
    "message",
    [
        "torch.distributed.DistNetworkError: Connection was likely closed. Did the remote server shutdown or crash?",
        "torch.distributed.DistStoreError: wait timeout",
        "RuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: NCCL Error 1: unhandled cuda error",
        "RuntimeError: cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
        "RuntimeError: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm",
        "RuntimeError: HIP error: invalid argument",
        "RuntimeError: Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_errors_of_torch_about_devices_and_peers_are_not_the_scripts(message: str) -> None:
    assert advice_on(replace(RAISED, message=message, traceback=RAISED.traceback), {"script": "train.py"})[0] is None


def test_the_remedy_of_a_kill_names_the_signal_and_who_did_not_send_it() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=replace(MESSAGES["killed"], rank=1))
    why = why_of(make_job(state=JobState.RECOVERING), [ended], [])
    assert why.remedy is not None
    assert why.remedy.cause.startswith("SIGKILL ended the worker. The service and the agents did not send it")


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_every_signal_that_kills_a_worker_has_a_remedy(signal: str) -> None:
    found = find_remedy(Failure(kind=FailureKind.UNKNOWN, message=f"the worker was killed by {signal}"))
    assert found is not None
    assert found.name == "killed"


def test_an_error_that_only_mentions_a_device_is_the_scripts() -> None:
    message = "AttributeError: 'Batch' object has no attribute 'cuda'"
    assert advice_on(replace(RAISED, message=message), {"script": "train.py"})[0] is not None


MESSAGES = {
    "device memory": Failure(kind=FailureKind.DEVICE_OOM, message="CUDA out of memory"),
    "memory refused": Failure(kind=FailureKind.HOST_OOM, message="MemoryError"),
    "host memory": Failure(kind=FailureKind.HOST_OOM, message="the kernel killed it for memory"),
    "disk quota": Failure(kind=FailureKind.STORAGE, message="OSError: [Errno 122] Disk quota exceeded"),
    "file not written": Failure(
        kind=FailureKind.STORAGE,
        message="RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
    ),
    "disk full": Failure(kind=FailureKind.STORAGE, message="OSError: [Errno 28] No space left on device"),
    "missing module": Failure(kind=FailureKind.APPLICATION, message="ImportError: cannot import name 'x'"),
    "permission": Failure(kind=FailureKind.APPLICATION, message="PermissionError: [Errno 13] Permission denied"),
    "image": Failure(kind=FailureKind.LAUNCH, message="ImagePullBackOff: pull access denied for trainer"),
    "refused by the scheduler": Failure(
        kind=FailureKind.LAUNCH, message="Slurm refuses the job: Batch job submission failed: Invalid partition name"
    ),
    "node environment": Failure(
        kind=FailureKind.LAUNCH, message="Slurm job 7 could not start: module torch/99 cannot be loaded"
    ),
    "missing file or command": Failure(kind=FailureKind.LAUNCH, message="the script 'train.py' does not exist"),
    "not a number": Failure(kind=FailureKind.NUMERIC, message="loss is nan"),
    "network interface": Failure(kind=FailureKind.APPLICATION, message="Unable to find address for: eth9"),
    "port taken": Failure(kind=FailureKind.RENDEZVOUS, message="port 29400 is already in use (EADDRINUSE)"),
    "group did not form": Failure(kind=FailureKind.RENDEZVOUS, message="RendezvousTimeoutError"),
    "collective timed out": Failure(
        kind=FailureKind.APPLICATION, message="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    ),
    "lost peer": Failure(kind=FailureKind.APPLICATION, message="RuntimeError: Connection closed by peer [10.0.0.1]"),
    "broken device": Failure(kind=FailureKind.APPLICATION, message="CUDA error: uncorrectable ECC error encountered"),
    "arguments": Failure(
        kind=FailureKind.APPLICATION,
        message="the worker ended with exit code 2: train.py: error: the following arguments are required: --lr",
    ),
    "killed": Failure(kind=FailureKind.UNKNOWN, message="the worker was killed by SIGKILL", signal="SIGKILL"),
    "cancelled in Slurm": Failure(
        kind=FailureKind.PREEMPTED, message="it was cancelled in Slurm by alice (Slurm job 7, CANCELLED)"
    ),
    "hang": Failure(kind=FailureKind.HANG, message="reported nothing for 90 s in phase step"),
    "time limit": Failure(kind=FailureKind.TIMEOUT, message="the time limit of the job"),
    "deleted in Kubernetes": Failure(
        kind=FailureKind.PREEMPTED, message="its Job was deleted in the cluster, and not by this service"
    ),
    "evicted in Kubernetes": Failure(
        kind=FailureKind.PREEMPTED,
        message="it was evicted, as by a drain (pod p on n1, EvictionByEvictionAPI: Eviction API: evicting)",
    ),
    "preemption": Failure(kind=FailureKind.PREEMPTED, message="preempted"),
    "lost node": Failure(kind=FailureKind.NODE, message="node n3 is down"),
    "storage": Failure(kind=FailureKind.STORAGE, message="no snapshot could be read"),
    "error in the script": RAISED,
}


@pytest.mark.parametrize("remedy", [remedy.name for remedy in REMEDIES])
def test_each_known_error_is_found_by_its_message(remedy: str) -> None:
    found = find_remedy(MESSAGES[remedy])
    assert found is not None
    assert found.name == remedy


@pytest.mark.parametrize(
    "message",
    [
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 93.1 GiB for an array",
        "OSError: [Errno 12] Cannot allocate memory",
        "the worker was killed by SIGABRT: what():  std::bad_alloc",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried",
        "trainer.errors.OutOfMemory: MemoryError; by estimate the largest part is activations",
    ],
)
def test_memory_that_the_system_refuses_is_not_the_memory_of_the_job(message: str) -> None:
    """A control group at its limit kills. It refuses nothing."""
    found = find_remedy(Failure(kind=FailureKind.HOST_OOM, message=message))
    assert found is not None
    assert "ulimit -v" in found.cause
    assert "memory_gb" not in found.fix


@pytest.mark.parametrize(
    "message",
    [
        "the worker was killed by SIGKILL, because its cgroup ran out of memory (1 kill by the kernel)",
        "it used more memory than its limit (pod train-1 on node-2, OOMKilled)",
        "RuntimeError: DataLoader worker (pid 325) is killed by signal: Killed.",
    ],
)
def test_a_kill_for_memory_names_the_memory_of_the_job_whatever_was_printed(message: str) -> None:
    found = find_remedy(Failure(kind=FailureKind.HOST_OOM, message=message, traceback="warning: MemoryError"))
    assert found is not None
    assert "memory_gb" in found.fix


def test_an_unknown_error_gets_no_remedy() -> None:
    assert find_remedy(ODD) is None
