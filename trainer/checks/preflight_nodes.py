"""The nodes of a preflight, and the input of its checks."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.contract import env
from trainer.contract.env import WorkerPlace
from trainer.worker.waits import Waits


@dataclass(frozen=True, kw_only=True)
class Host:
    """A node: its host name, its address toward the first node, and the scheduler's name for it."""

    name: str
    address: str
    node: str


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """The input of the checks. `hosts` by rank; `scratch` is a folder on the snapshots' storage, empty at first."""

    place: WorkerPlace
    device: torch.device
    scratch: Path
    waits: Waits
    hosts: Sequence[Host]

    @property
    def leaders(self) -> list[int]:
        """The first rank of each node."""
        return find_leaders(self.hosts)

    @property
    def nodes(self) -> list[str]:
        """The scheduler's names of the leaders' nodes, in order."""
        return [self.hosts[rank].node for rank in self.leaders]

    def node_of(self, name: str) -> str:
        """The scheduler's name of a node, by its host name."""
        return next((host.node for host in self.hosts if host.name == name), name)


def find_leaders(hosts: Sequence[Host]) -> list[int]:
    names = [host.name for host in hosts]
    return sorted({names.index(name) for name in names})


def own_host() -> Host:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing: it only picks a route
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    return Host(name=own_name(), address=address, node=os.environ.get(env.NODE) or socket.gethostname())


def own_name() -> str:
    """The name by which the other nodes find this one.

    In Kubernetes this must be a pod's full name (DNS for Services and Pods, "Pod's hostname and subdomain fields").
    """
    return socket.getfqdn() if "KUBERNETES_SERVICE_HOST" in os.environ else socket.gethostname()
