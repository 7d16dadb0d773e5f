"""The files of a throw-away Slurm: slurm.conf(5), gres.conf(5), and what its nodes see of /etc. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the cluster has. Every node has an address of its own in `subnet`; the controller's is .1."""

    nodes: int = 3
    cpus: int = 4
    memory_mb: int = 8000
    gpus: int = 0  # of each node, without a device behind them
    books: bool = False  # accounting by slurmdbd, with limits enforced
    memory_limits: bool = False  # by control groups (version 1): the kernel kills what uses more
    changes: Mapping[str, str] = field(default_factory=dict)  # of slurm.conf

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]


def address(slot: int, node: str | None = None) -> str:
    """Of a node, or of the machine itself."""
    return f"10.213.{slot}.{1 if node is None else 10 + int(node.removeprefix('n'))}"


def books_port(slot: int) -> int:
    """Of slurmdbd. All ports are below the ephemeral range."""
    return 27000 + slot


def store_port(slot: int) -> int:
    """Of its database."""
    return 27200 + slot


def render_conf(folder: Path, slot: int, shape: Shape, *, host: str, user: str) -> str:
    """Short times all over: tests wait for them. auth/none trusts whoever reaches the ports: for tests alone."""
    settings = {
        "ClusterName": f"throwaway{slot}",
        "SlurmctldHost": f"{host}({address(slot)})",
        "SlurmUser": user,
        "SlurmdUser": user,
        "SlurmctldPort": str(26800 + slot),
        "SlurmdPort": "6818",
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "AuthInfo": "cred_expire=5",  # also the pause before a requeued job may start again, else two minutes
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd.%n.log",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "100",
        "SlurmdParameters": "config_overrides",  # nodes may claim more than the machine has
        "SchedulerParameters": "sched_min_interval=100000,sched_interval=2,bf_interval=2,batch_sched_delay=0",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "ReturnToService": "2",
        "SlurmdTimeout": "5",
        "SlurmctldTimeout": "10",
        "MessageTimeout": "5",
        "KillWait": "10",
        "UnkillableStepTimeout": "20",
        "InactiveLimit": "0",
        "MinJobAge": "600",
        "JobCompType": "jobcomp/none",
        **(_books(slot) if shape.books else {"AccountingStorageType": "accounting_storage/none"}),
        **({"GresTypes": "gpu"} if shape.gpus else {}),
        # The groups of several clusters lie in one tree, by node and job: so their jobs have other numbers.
        **({"TaskPlugin": "task/cgroup", "FirstJobId": str(1 + 1000 * slot)} if shape.memory_limits else {}),
        **shape.changes,
    }
    gres = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    nodes = [
        f"NodeName={node} NodeAddr={address(slot, node)} CPUs={shape.cpus} RealMemory={shape.memory_mb}{gres}"
        for node in shape.names
    ]
    everywhere = f"Nodes={','.join(shape.names)} MaxTime=INFINITE State=UP"
    partitions = [
        f"PartitionName=main Default=YES PriorityTier=1 {everywhere}",
        f"PartitionName=high PriorityTier=10 PreemptMode=OFF {everywhere}",
    ]
    return "\n".join([*(f"{name}={value}" for name, value in settings.items()), *nodes, *partitions]) + "\n"


def _books(slot: int) -> dict[str, str]:
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(books_port(slot)),
        "AccountingStorageEnforce": "associations,limits,qos",
    }


def render_dbd_conf(folder: Path, slot: int, *, host: str, user: str, password: str) -> str:
    """slurmdbd.conf(5); `user` and `password` are of its database."""
    settings = {
        "AuthType": "auth/none",
        "DbdHost": host,
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(books_port(slot)),
        "SlurmUser": "root",
        "PidFile": f"{folder}/slurmdbd.pid",
        "LogFile": f"{folder}/slurmdbd.log",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(store_port(slot)),
        "StorageUser": user,
        "StoragePass": password,
        "StorageLoc": "slurm_acct",
        "CommitDelay": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def render_gres(shape: Shape) -> str:
    return f"NodeName={','.join(shape.names)} Name=gpu Count={shape.gpus}\n" if shape.gpus else ""


def render_hosts(slot: int, shape: Shape, *, host: str) -> str:
    """The nodes' /etc/hosts."""
    lines = ["127.0.0.1 localhost", f"{address(slot)} {host}"]
    return "\n".join([*lines, *(f"{address(slot, node)} {node}" for node in shape.names)]) + "\n"


# No name server is reachable from a node, and torch's sockets would wait ten seconds for one at each connection.
NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
