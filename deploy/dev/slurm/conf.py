"""Render the files of a throw-away Slurm: slurm.conf(5), gres.conf(5) and the nodes' /etc/hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MARIADB_USER = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The resources of the cluster."""

    nodes: int = 3
    cpus: int = 4
    memory_mb: int = 8000
    gpus: int = 0  # of each node, without real devices
    accounting: bool = False  # accounting by slurmdbd, with limits enforced
    memory_limits: bool = False  # by control groups version 1: the kernel kills processes above the limit
    changes: Mapping[str, str] = field(default_factory=dict)  # to slurm.conf

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]


def address(slot: int, node: str | None = None) -> str:
    """Return the address of a node, or of this machine, which runs the controller."""
    return f"10.213.{slot}.{1 if node is None else 10 + int(node.removeprefix('n'))}"


def slurmdbd_port(slot: int) -> int:
    """Return slurmdbd's port. All ports are below the ephemeral range."""
    return 27000 + slot


def mariadb_port(slot: int) -> int:
    """Return MariaDB's port."""
    return 27200 + slot


def render_conf(folder: Path, slot: int, shape: Shape, *, host: str, user: str, key: Path | None = None) -> str:
    """Render slurm.conf with short timeouts for tests. auth/none trusts every client, so it is only for tests."""
    settings = {
        "ClusterName": f"throwaway{slot}",
        "SlurmctldHost": f"{host}({address(slot)})",
        "SlurmUser": user,
        "SlurmdUser": user,
        "SlurmctldPort": str(26800 + slot),
        "SlurmdPort": "6818",
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "AuthInfo": "cred_expire=5",  # also the delay before a requeued job may start again; the default is two minutes
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
        **(_accounting(slot) if shape.accounting else {"AccountingStorageType": "accounting_storage/none"}),
        **({"GresTypes": "gpu"} if shape.gpus else {}),
        # Clusters share one tree of groups, by node and job id, so each cluster has its own range of ids.
        **({"TaskPlugin": "task/cgroup", "FirstJobId": str(1 + 1000 * slot)} if shape.memory_limits else {}),
        **_tokens(key),
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


def _tokens(key: Path | None) -> dict[str, str]:
    return {} if key is None else {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={key}"}


def _accounting(slot: int) -> dict[str, str]:
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(slurmdbd_port(slot)),
        "AccountingStorageEnforce": "associations,limits,qos",
    }


def render_dbd_conf(folder: Path, slot: int, *, host: str, password: str, key: Path | None) -> str:
    """Render slurmdbd.conf(5). `password` is that of MariaDB's user, and `key` signs tokens."""
    settings = {
        "AuthType": "auth/none",
        **_tokens(key),
        "DbdHost": host,
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(slurmdbd_port(slot)),
        "SlurmUser": "root",
        "PidFile": f"{folder}/slurmdbd.pid",
        "LogFile": f"{folder}/slurmdbd.log",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(mariadb_port(slot)),
        "StorageUser": MARIADB_USER,
        "StoragePass": password,
        "StorageLoc": "slurm_acct",
        "CommitDelay": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def render_gres(shape: Shape) -> str:
    return f"NodeName={','.join(shape.names)} Name=gpu Count={shape.gpus}\n" if shape.gpus else ""


def render_hosts(slot: int, shape: Shape, *, host: str) -> str:
    """Render the nodes' /etc/hosts."""
    lines = ["127.0.0.1 localhost", f"{address(slot)} {host}"]
    return "\n".join([*lines, *(f"{address(slot, node)} {node}" for node in shape.names)]) + "\n"


# A node reaches no name server. Without this file torch's sockets would wait ten seconds for one on each connection.
NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
