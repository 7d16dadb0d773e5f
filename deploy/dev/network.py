"""Machines on one machine: network namespaces on a bridge, each with its address and processes. Linux, as root."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from contextlib import suppress

_SUBNET = "10.77.0"
_NUMBERS = itertools.count()


class NoNamespaces(Exception):
    """This machine allows no network namespaces; the text says what failed."""


class Network:
    """`count` nodes, numbered from 0. Leaving the context ends what runs in them and removes them."""

    def __init__(self, count: int) -> None:
        self.count = count
        # A name of a network that has just been removed is free only later; the kernel allows 15 bytes.
        self._tag = f"{os.getpid() % 100000}x{next(_NUMBERS)}"
        self._bridge = f"br{self._tag}"

    def __enter__(self) -> Network:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("link", "set", self._bridge, "up")
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
        """The command that runs another on a node."""
        return ["ip", "netns", "exec", self._name(node), *command]

    def pids(self, node: int) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self._name(node)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self, node: int, *, silently: bool = True) -> None:
        """SIGKILL for everything on a node; silently, as if it had lost its power: its peers get no farewell."""
        if silently:
            self.cut(node)
        while pids := self.pids(node):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def cut(self, node: int) -> None:
        """From now on no packet reaches the node or leaves it; nothing is refused, all of it is silence."""
        _ip("link", "set", self._cable(node), "down")

    def mend(self, node: int) -> None:
        _ip("link", "set", self._cable(node), "up")

    def close(self) -> None:
        for node in range(self.count):
            with suppress(OSError, subprocess.CalledProcessError):
                self.kill(node)
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "delete", self._name(node))
        with suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "delete", self._bridge)

    def _add(self, node: int) -> None:
        name, cable = self._name(node), self._cable(node)
        _ip("netns", "add", name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")

    def _name(self, node: int) -> str:
        return f"n{self._tag}-{node}"

    def _cable(self, node: int) -> str:
        return f"v{self._tag}-{node}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)
