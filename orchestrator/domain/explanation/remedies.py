"""What is known of errors: what each usually comes from, and what helps. The first that fits is told. Pure data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.contract.failure import Failure, FailureKind

_Kinds = frozenset[FailureKind]
_ANY: _Kinds = frozenset(FailureKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """`pattern` is searched in the failure's message and traceback, without regard to case."""

    name: str
    cause: str
    fix: str
    pattern: str = ""
    kinds: _Kinds = _ANY

    def fits(self, failure: Failure) -> bool:
        said = f"{failure.message}\n{failure.traceback or ''}"
        return failure.kind in self.kinds and re.search(self.pattern, said, re.IGNORECASE) is not None


# What torch tells of its devices and its peers is not the script's.
SCRIPT_ERROR = Remedy(
    name="error in the script",
    kinds=frozenset({FailureKind.APPLICATION}),
    pattern=r"\A(?!torch\.distributed\.|.*((CUDA|HIP|cuDNN|NCCL) error|CUBLAS_STATUS))(?s:.*?)"
    r'(?m:^[ |]*File "[^"\n]+", line \d+(, in |$))',
    cause="the job's own program raised an error and did not catch it",
    fix="fix the script",
)

KILLED = Remedy(
    name="killed",
    kinds=frozenset({FailureKind.UNKNOWN}),
    pattern=r"SIGKILL|SIGTERM|SIGINT|SIGHUP",
    cause="a signal ended the worker, and neither the service nor an agent of the job sent it: a person did, the "
    "scheduler, or the kernel for want of memory",
    fix="`dmesg` on the node names a process that the kernel killed; the scheduler's log names its own",
)

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        name="device memory",
        kinds=frozenset({FailureKind.DEVICE_OOM}),
        cause="the model, its optimizer and the activations of one microbatch do not fit into the device's memory",
        fix="take a smaller micro_batch, activation checkpointing, or a strategy that shards more; `orchestrator plan` "
        "shows what each takes",
    ),
    Remedy(
        name="host memory",
        kinds=frozenset({FailureKind.HOST_OOM}),
        cause="the workers of a node together used more memory than it, or its control group, has",
        fix="ask for more resources.memory_gb, use fewer data workers, or fewer workers on each node",
    ),
    Remedy(
        name="disk quota",
        pattern=r"disk quota exceeded|EDQUOT",
        cause="the quota of the run directory's file system is used up",
        fix="free space or raise the quota; fewer snapshots are kept with snapshot.keep",
    ),
    Remedy(
        name="disk full",
        pattern=r"no space left on device|ENOSPC",
        cause="a file system is full: that of the run directory, or /dev/shm where data workers share tensors",
        fix="free space; fewer snapshots are kept with snapshot.keep; a container needs a larger /dev/shm",
    ),
    Remedy(
        name="missing module",
        pattern=r"ModuleNotFoundError|ImportError|cannot import name",
        cause="the Python that runs the workers lacks a package, or has another version of it",
        fix="install it where the job runs: in the environment of the nodes, or in the image",
    ),
    Remedy(
        name="permission",
        pattern=r"permission denied|PermissionError|EACCES",
        cause="the job's user may not read or write something",
        fix="look at the owner and the mode of the path in the message, on the node that failed",
    ),
    Remedy(
        name="image",
        pattern=r"ErrImagePull|ImagePullBackOff|InvalidImageName|manifest unknown|pull access denied",
        cause="the container image cannot be pulled",
        fix="check its name and tag, and that the cluster has a pull secret for its registry",
    ),
    Remedy(
        name="refused by the scheduler",
        kinds=frozenset({FailureKind.LAUNCH}),
        pattern=r"refuses the job|can never place it|needs \d+ nodes?( with \d+ CPUs?)?; partition",
        cause="the scheduler takes no such job: it names something unknown, or wants more than there is or is allowed",
        fix="correct placement, topology or resources; `orchestrator plan` shows what is asked for, "
        "`orchestrator clusters` what there is",
    ),
    Remedy(
        name="node environment",
        kinds=frozenset({FailureKind.LAUNCH, FailureKind.INFRASTRUCTURE}),
        pattern=r"module \S+ cannot be loaded|no Python 3\.10|before any agent started|before its script began",
        cause="what prepares a node for the job failed there: its modules, its prolog or its interpreter",
        fix="`orchestrator doctor` tries it on a node; correct modules, prolog or python of the cluster's settings",
    ),
    Remedy(
        name="missing file or command",
        kinds=frozenset({FailureKind.LAUNCH}),
        cause="a script, program or folder of the launch does not exist where the job runs",
        fix="paths are those of the nodes: ship the folder with run.workdir, or correct the path",
    ),
    Remedy(
        name="not a number",
        kinds=frozenset({FailureKind.NUMERIC}),
        cause="the loss became NaN or infinite: a learning rate too high, overflow in half precision, or bad samples",
        fix="retry from an earlier snapshot (`retry --restore-from`) with a lower learning rate, or clip gradients",
    ),
    Remedy(
        name="network interface",
        pattern=r"unable to find address for|no (socket )?interface found|network is unreachable|no route to host|"
        r"127\.0\.1\.1",
        cause="the collectives chose an interface, or a name, by which the nodes do not reach each other",
        fix="name the interface in run.env: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; `orchestrator preflight` tries it",
    ),
    Remedy(
        name="port taken",
        kinds=frozenset({FailureKind.RENDEZVOUS}),
        pattern=r"EADDRINUSE|already in use",
        cause="another program holds the port on the first node",
        fix="nothing: the next attempt gets another port; a firewall may allow a range to be set as PORTS",
    ),
    Remedy(
        name="group did not form",
        kinds=frozenset({FailureKind.RENDEZVOUS}),
        cause="not all nodes reached the rendezvous on the first node in time, or it was lost",
        fix="`orchestrator preflight` shows which nodes reach each other; firewalls must let the job's ports through",
    ),
    Remedy(
        name="collective timed out",
        pattern=r"watchdog caught collective|collective operation timeout|NCCL.*(timed out|timeout)|"
        r"timed out waiting for \d+ms|gloo.*timed out",
        cause="a rank did not come to a collective: it hung, was slow, or took another branch",
        fix="look at the stacks of the ranks that did not wait; every rank must do the same collectives in one order",
    ),
    Remedy(
        name="lost peer",
        pattern=r"connection (closed|reset) by peer|NCCL.*(remote process exited|unhandled system error)|broken pipe",
        cause="a peer went away in the middle of a collective; this rank is a victim of that",
        fix="look at the peer: its node, and whether it was killed for memory",
    ),
    Remedy(
        name="broken device",
        pattern=r"uncorrectable ECC|Xid|device-side assert|illegal memory access|unspecified launch failure",
        cause="the device, or a kernel on it, failed",
        fix="the same on another node is the program's fault (set CUDA_LAUNCH_BLOCKING=1); else have the node drained",
    ),
    Remedy(
        name="arguments",
        kinds=frozenset({FailureKind.APPLICATION}),
        pattern=r"exit code 2: [^\n]*: error: ",  # argparse, optparse
        cause="the script does not take the arguments that it was given",
        fix="correct `run.args` (`--set 'run.args=[...]'`)",
    ),
    KILLED,
    Remedy(
        name="cancelled in Slurm",
        kinds=frozenset({FailureKind.PREEMPTED}),
        pattern=r"(cancelled|requeued)( it)? in Slurm",
        cause="a person or a program ended it with Slurm's own commands, and no other job took its nodes",
        fix="the job goes on by itself from its snapshot; `orchestrator cancel` ends it for good",
    ),
    Remedy(
        name="hang",
        kinds=frozenset({FailureKind.HANG}),
        cause="a rank made no progress for longer than its limit",
        fix="read the ranks' stacks.txt, saved before the kill in attempts/*/replica-*/*/g*/local-*/ of the job's "
        "folder",
    ),
    Remedy(
        name="time limit",
        kinds=frozenset({FailureKind.TIMEOUT}),
        cause="a time limit of the job or of the cluster was reached",
        fix="nothing is lost behind the last snapshot: retry, or raise the limit",
    ),
    Remedy(
        name="deleted in Kubernetes",
        kinds=frozenset({FailureKind.PREEMPTED}),
        pattern=r"was (deleted|suspended) in the cluster",
        cause="a person, or a controller, deleted or suspended a pod or the Job in Kubernetes",
        fix="the job goes on by itself; `orchestrator cancel` ends it for good. The API server's audit log "
        "records who did it",
    ),
    Remedy(
        name="preemption",
        kinds=frozenset({FailureKind.PREEMPTED}),
        cause="the cluster took the nodes for somebody else",
        fix="nothing: the job goes on from its snapshot when there is room again",
    ),
    Remedy(
        name="lost node",
        kinds=frozenset({FailureKind.NODE}),
        cause="a machine, or everything of the job on it, is gone",
        fix="look at the node's console log and its power; `orchestrator nodes` lists the nodes that attempts avoid",
    ),
    Remedy(
        name="storage",
        kinds=frozenset({FailureKind.STORAGE}),
        cause="a snapshot or the run directory could not be read or written",
        fix="look at the file system or the object store in the message from the node that failed",
    ),
    SCRIPT_ERROR,
)


def find_remedy(failure: Failure, remedies: Iterable[Remedy] = REMEDIES) -> Remedy | None:
    return next((remedy for remedy in remedies if remedy.fits(failure)), None)
