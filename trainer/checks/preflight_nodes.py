"""The nodes of a preflight: what each rank tells of its own, and what the checks work on."""

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
    """A node as one of its ranks tells of it: its own name, the address by which it reaches the first node, and what
    the scheduler calls it."""

    name: str
    address: str
    node: str


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the checks work on. `hosts` by rank; `scratch` is a folder on the snapshots' storage, empty at first."""

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
        """What the leaders' nodes are called, in their order."""
        return [self.hosts[rank].node for rank in self.leaders]

    def node_of(self, name: str) -> str:
        """Of a node's own name."""
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
    """By which the others are to find this node. In Kubernetes that is a pod's whole name alone (DNS for Services and
    Pods, "Pod's hostname and subdomain fields")."""
    return socket.getfqdn() if "KUBERNETES_SERVICE_HOST" in os.environ else socket.gethostname()
