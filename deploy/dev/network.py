"""Simulated machines: network namespaces on a bridge, each with its address and processes. Linux, as root."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress

from deploy.dev.killing import kill_at_once

_SUBNET = "10.77.0"
_NUMBERS = itertools.count()


class NoNamespaces(Exception):
    """This machine allows no network namespaces. The message says what failed."""


class Network:
    """`count` nodes, numbered from 0. Leaving the context ends their processes and removes them."""

    def __init__(self, count: int) -> None:
        self.count = count
        # The name of a removed network is not free at once, so each name is new. The kernel allows 15 bytes.
        self._tag = f"{os.getpid() % 100000}x{next(_NUMBERS)}"
        self._bridge = f"br{self._tag}"
        self._lossy: set[int] = set()

    def __enter__(self) -> Network:
        try:
            ip("link", "add", self._bridge, "type", "bridge")
            ip("link", "set", self._bridge, "up")
            for node in range(self.count):
                self._add(node)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise NoNamespaces(f"no network namespaces here: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, node: int) -> str:
        return f"{_SUBNET}.{node + 1}"

    def inside(self, node: int, command: list[str]) -> list[str]:
        """Return the command that runs `command` on a node."""
        return ["ip", "netns", "exec", self._name(node), *command]

    def pids(self, node: int) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self._name(node)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self, node: int, *, silently: bool = True) -> None:
        """Kill all processes on a node. `silently`: its peers see no closed connection, as in a power failure."""
        if silently:
            self.cut(node)
        while pids := self.pids(node):
            kill_at_once(pids)
            time.sleep(0.01)

    def cut(self, node: int) -> None:
        """Drop all packets to and from the node. Connections are not refused."""
        ip("link", "set", self._cable(node), "down")

    def mute(self, node: int) -> None:
        """Drop the packets that the node sends. It still receives."""
        mute(self._name(node), _SUBNET)

    def part(self, side: Collection[int]) -> None:
        """Drop all packets between these nodes and all others."""
        for node in range(self.count):
            for peer in range(self.count):
                if (node in side) != (peer in side):
                    mute(self._name(node), _SUBNET, f"{self.address(peer)}/32")

    def lose(self, node: int, percent: int) -> None:
        """Drop each packet to and from the node with this probability. Needs nft(8)."""
        drop = f"numgen random mod 100 < {percent} drop"
        # A rule in an output chain would return an error to the sender. So what the node sends is dropped on arrival.
        arriving = f"chain arriving {{ type filter hook input priority 0; iif eth0 {drop}\n }}"
        leaving = f"chain leaving {{ type filter hook ingress device {self._cable(node)} priority 0; {drop}\n }}"
        nft(f"table inet loss {{ {arriving}\n }}", "ip", "netns", "exec", self._name(node))
        nft(f"table netdev {self._cable(node)} {{ {leaving}\n }}")
        self._lossy.add(node)

    def repair(self, node: int) -> None:
        """Undo `cut`, `mute` and `lose`, and this node's part of `part`."""
        ip("link", "set", self._cable(node), "up")
        unmute(self._name(node), _SUBNET, self.address(node))
        if node in self._lossy:
            nft("delete table inet loss", "ip", "netns", "exec", self._name(node))
            nft(f"delete table netdev {self._cable(node)}")
            self._lossy.remove(node)

    def close(self) -> None:
        for node in range(self.count):
            with suppress(OSError, subprocess.CalledProcessError):
                self.kill(node)
            with suppress(OSError, subprocess.CalledProcessError):
                self.repair(node)
            with suppress(OSError, subprocess.CalledProcessError):
                ip("netns", "delete", self._name(node))
        with suppress(OSError, subprocess.CalledProcessError):
            ip("link", "delete", self._bridge)

    def _add(self, node: int) -> None:
        plug_in(self._name(node), self._cable(node), self._bridge, f"{self.address(node)}/24")

    def _name(self, node: int) -> str:
        return f"n{self._tag}-{node}"

    def _cable(self, node: int) -> str:
        return f"v{self._tag}-{node}"


def plug_in(namespace: str, cable: str, bridge: str, address: str) -> None:
    """Create a namespace whose `eth0` has this address/prefix and is on the bridge. Raises CalledProcessError."""
    ip("netns", "add", namespace)
    ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    ip("link", "set", cable, "master", bridge, "up")
    ip("-n", namespace, "link", "set", "lo", "up")
    ip("-n", namespace, "address", "add", address, "dev", "eth0")
    ip("-n", namespace, "link", "set", "eth0", "up")


def mute(namespace: str, subnet: str, to: str | None = None) -> None:
    """Route packets to `to`, or to the subnet (its first three bytes), to a machine that does not exist."""
    nobody = f"{subnet}.254"
    ip("-n", namespace, "neigh", "replace", nobody, "lladdr", "02:00:00:00:00:01", "dev", "eth0")
    ip("-n", namespace, "route", "replace", to or f"{subnet}.0/24", "via", nobody, "dev", "eth0", "onlink")


def unmute(namespace: str, subnet: str, address: str) -> None:
    """Undo `mute`. `address` is the namespace's. Idempotent."""
    ip("-n", namespace, "route", "flush", "via", f"{subnet}.254")
    ip("-n", namespace, "route", "replace", f"{subnet}.0/24", "dev", "eth0", "src", address)


def ip(*arguments: str) -> None:
    """Run ip(8). Raises OSError and CalledProcessError."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


def nft(commands: str, *inside: str) -> None:
    """Run nft(8), by a command that enters a namespace. Raises OSError and CalledProcessError."""
    command = [*inside, "nft", "-f", "-"]
    subprocess.run(command, input=commands.encode(), check=True, capture_output=True, timeout=20)
