"""Known errors with their usual causes and fixes. `why` shows the first one that fits. Pure data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.contract.failure import Failure, FailureKind

_Kinds = frozenset[FailureKind]
_ANY: _Kinds = frozenset(FailureKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """`pattern` is searched in the failure's message and traceback, without regard to case. `cause` and `fix` are
    sentences."""

    name: str
    cause: str
    fix: str
    pattern: str = ""
    kinds: _Kinds = _ANY

    def fits(self, failure: Failure) -> bool:
        said = f"{failure.message}\n{failure.traceback or ''}"
        return failure.kind in self.kinds and re.search(self.pattern, said, re.IGNORECASE) is not None


# Errors of torch about devices and peers are not errors of the script.
SCRIPT_ERROR = Remedy(
    name="error in the script",
    kinds=frozenset({FailureKind.APPLICATION}),
    pattern=r"\A(?!torch\.distributed\.|.*((CUDA|HIP|cuDNN|NCCL) error|CUBLAS_STATUS))(?s:.*?)"
    r'(?m:^[ |]*File "[^"\n]+", line \d+(, in |$))',
    cause="The program raised an error and did not catch it.",
    fix="Fix the script.",
)

KILLED = Remedy(
    name="killed",
    kinds=frozenset({FailureKind.UNKNOWN}),
    pattern=r"SIGKILL|SIGTERM|SIGINT|SIGHUP",
    cause="A signal ended the worker. The service and the agents did not send it, so it came from a person, from the "
    "scheduler, or from the kernel when memory ran out.",
    fix="Run `dmesg` on the node. It names processes that the kernel killed. If the cluster has a scheduler, the "
    "scheduler's log names the processes that it killed.",
)

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        name="device memory",
        kinds=frozenset({FailureKind.DEVICE_OOM}),
        cause="The model, its optimizer and the activations of one microbatch do not fit into the device's memory.",
        fix="Use a smaller micro_batch, activation checkpointing, or a strategy that shards more. `orchestrator plan` "
        "shows how much memory each needs.",
    ),
    Remedy(
        name="memory refused",  # a control group at its limit does not refuse, it kills
        kinds=frozenset({FailureKind.HOST_OOM}),
        pattern=r"\A(?!.*(/torch_|/dev/shm)).*(MemoryError|bad_alloc|Cannot allocate memory|"
        r"DefaultCPUAllocator: (not enough|can't allocate) memory)",
        cause="The system refused a worker's request for memory. Either its address space is limited (`ulimit -v`), or "
        "it requested more than the node can give.",
        fix="Raise the limit if `ulimit -v` prints a number on the node. Otherwise request less memory at a time, for "
        "example with a smaller batch or fewer data workers.",
    ),
    Remedy(
        name="host memory",
        kinds=frozenset({FailureKind.HOST_OOM}),
        cause="The workers of a node used more memory than the node or its control group has.",
        fix="Request more resources.memory_gb, or use fewer data workers or fewer workers on each node.",
    ),
    Remedy(
        name="disk quota",
        pattern=r"disk quota exceeded|EDQUOT",
        cause="The quota on the run directory's file system is used up.",
        fix="Free space, raise the quota, or keep fewer snapshots with snapshot.keep.",
    ),
    Remedy(
        name="disk full",
        pattern=r"no space left on device|ENOSPC",
        cause="A file system is full. Usually it is that of the run directory, or /dev/shm, where data workers share "
        "tensors.",
        fix="Free space, keep fewer snapshots with snapshot.keep, or give the container a larger /dev/shm.",
    ),
    Remedy(
        name="file not written",
        pattern=r"inline_container\.cc:\d+\] .*unexpected pos|PytorchStreamWriter failed writing",
        cause="torch.save could not write all of its file. Usually the file system is full, or a quota is used up.",
        fix="Free space where the script saves its files.",
    ),
    Remedy(
        name="missing module",
        pattern=r"ModuleNotFoundError|ImportError|cannot import name",
        cause="The Python that runs the workers lacks a package or has another version of it.",
        fix="Install the package where the job runs, in the environment of the nodes or in the image.",
    ),
    Remedy(
        name="permission",
        pattern=r"permission denied|PermissionError|EACCES",
        cause="The job's user may not read, write or execute a file.",
        fix="Check the owner and the mode of the path in the message, on the node that failed.",
    ),
    Remedy(
        name="image",
        pattern=r"ErrImagePull|ImagePullBackOff|InvalidImageName|manifest unknown|pull access denied",
        cause="The container image cannot be pulled.",
        fix="Check its name and tag, and that the cluster has a pull secret for its registry.",
    ),
    Remedy(
        name="refused by the scheduler",
        kinds=frozenset({FailureKind.LAUNCH}),
        pattern=r"refuses the job|can never place it|needs \d+ nodes?( with \d+ CPUs?)?; partition",
        cause="The scheduler refuses the job because it names something unknown, or requests more than exists or is "
        "allowed.",
        fix="Correct placement, topology or resources. `orchestrator plan` shows what the job requests, and "
        "`orchestrator clusters` what the cluster has.",
    ),
    Remedy(
        name="node environment",
        kinds=frozenset({FailureKind.LAUNCH, FailureKind.INFRASTRUCTURE}),
        pattern=r"module \S+ cannot be loaded|no Python 3\.10|before any agent started|before its script began",
        cause="A node could not be prepared for the job. Its modules, prolog or Python interpreter failed.",
        fix="Run `orchestrator doctor`, which tries them on a node. Then correct modules, prolog or python in the "
        "cluster's settings.",
    ),
    Remedy(
        name="missing file or command",
        kinds=frozenset({FailureKind.LAUNCH}),
        cause="The script, program or folder does not exist on the node.",
        fix="Correct the path, which must exist on the nodes, or ship the folder with run.workdir.",
    ),
    Remedy(
        name="not a number",
        kinds=frozenset({FailureKind.NUMERIC}),
        cause="The loss became NaN or infinite. The usual reasons are a high learning rate, overflow in half precision "
        "and bad samples.",
        fix="Retry from an earlier snapshot (`retry --restore-from`) with a lower learning rate, or clip gradients.",
    ),
    Remedy(
        name="network interface",
        pattern=r"unable to find address for|no (socket )?interface found|network is unreachable|no route to host|"
        r"127\.0\.1\.1",
        cause="The collectives chose a network interface or a host name through which the nodes cannot reach each "
        "other.",
        fix="Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME in run.env, and test them with `orchestrator preflight`.",
    ),
    Remedy(
        name="port taken",
        kinds=frozenset({FailureKind.RENDEZVOUS}),
        pattern=r"EADDRINUSE|already in use",
        cause="Another program holds the port on the first node.",
        fix="Nothing to fix. The next attempt uses another port. If a firewall allows only some ports, set PORTS to "
        "that range.",
    ),
    Remedy(
        name="group did not form",
        kinds=frozenset({FailureKind.RENDEZVOUS}),
        cause="Not all nodes reached the rendezvous on the first node in time, or the rendezvous was lost.",
        fix="Run `orchestrator preflight` to see which nodes reach each other. Firewalls must allow the job's ports.",
    ),
    Remedy(
        name="collective timed out",
        pattern=r"watchdog caught collective|collective operation timeout|NCCL.*(timed out|timeout)|"
        r"timed out waiting for \d+ms|gloo.*timed out",
        cause="A rank did not join a collective because it hung, was slow, or took another branch.",
        fix="Read the stacks of the ranks that did not wait. Every rank must call the same collectives in the same "
        "order.",
    ),
    Remedy(
        name="lost peer",
        pattern=r"connection (closed|reset) by peer|NCCL.*(remote process exited|unhandled system error)|broken pipe",
        cause="Another rank ended during a collective, and this rank failed because of it.",
        fix="Check the node of the other rank, and whether the kernel killed it for memory.",
    ),
    Remedy(
        name="broken device",
        pattern=r"uncorrectable ECC|Xid|device-side assert|illegal memory access|unspecified launch failure",
        cause="The device failed, or a kernel that ran on it.",
        fix="If it fails on another node too, the program is at fault, and CUDA_LAUNCH_BLOCKING=1 shows the line. "
        "Otherwise drain the node.",
    ),
    Remedy(
        name="arguments",
        kinds=frozenset({FailureKind.APPLICATION}),
        pattern=r"exit code 2: [^\n]*: error: ",  # argparse, optparse
        cause="The script does not accept its arguments.",
        fix="Correct `run.args` (`--set 'run.args=[...]'`).",
    ),
    KILLED,
    Remedy(
        name="cancelled in Slurm",
        kinds=frozenset({FailureKind.PREEMPTED}),
        pattern=r"(cancelled|requeued)( it)? in Slurm",
        cause="A person or a program ended it with Slurm's own commands. No other job took its nodes.",
        fix="Nothing to fix. The next attempt continues from the snapshot. To end the job, use `orchestrator cancel`.",
    ),
    Remedy(
        name="hang",
        kinds=frozenset({FailureKind.HANG}),
        cause="A rank made no progress for longer than its limit.",
        fix="Read the stacks that were saved before the kill. The job's page shows those of each rank. Once the job "
        "has ended, `orchestrator stacks` shows all.",
    ),
    Remedy(
        name="time limit",
        kinds=frozenset({FailureKind.TIMEOUT}),
        cause="The job reached its own time limit or one of the cluster.",
        fix="Raise the limit if the job needs more time. Training continues from the last snapshot.",
    ),
    Remedy(
        name="deleted in Kubernetes",
        kinds=frozenset({FailureKind.PREEMPTED}),
        pattern=r"was (deleted|suspended) in the cluster",
        cause="A person or a controller deleted or suspended a pod or the Job in Kubernetes.",
        fix="Nothing to fix. Training continues in the group without the pod, or in the next attempt. To end the job, "
        "use `orchestrator cancel`. The API server's audit log records who deleted or suspended it.",
    ),
    Remedy(
        name="evicted in Kubernetes",
        kinds=frozenset({FailureKind.PREEMPTED}),
        pattern=r"EvictionByEvictionAPI",
        cause="A pod was evicted through the eviction API, as `kubectl drain` does for a node.",
        fix="Nothing to fix. Training continues in the group without the pod, or in the next attempt. The API server's "
        "audit log records who requested the eviction.",
    ),
    Remedy(
        name="preemption",
        kinds=frozenset({FailureKind.PREEMPTED}),
        cause="The cluster gave the nodes to another job.",
        fix="Nothing to fix. The next attempt continues from the snapshot once there is room.",
    ),
    Remedy(
        name="lost node",
        kinds=frozenset({FailureKind.NODE}),
        cause="A machine failed, or all processes of the job on it were killed.",
        fix="Check whether the node is up. Read its system log for the time of the failure. `orchestrator nodes` lists "
        "the nodes that attempts avoid.",
    ),
    Remedy(
        name="storage",
        kinds=frozenset({FailureKind.STORAGE}),
        cause="A snapshot or the run directory could not be read or written.",
        fix="Check the file system or the object store that the message names, from the node that failed.",
    ),
    SCRIPT_ERROR,
)


def find_remedy(failure: Failure, remedies: Iterable[Remedy] = REMEDIES) -> Remedy | None:
    return next((remedy for remedy in remedies if remedy.fits(failure)), None)
