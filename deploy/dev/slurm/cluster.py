"""The throw-away Slurm itself: its daemons, and nodes in namespaces of their own that can be killed, cut and started.

All of it ends with the process that started it, however that ends; call it from the main thread.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.dev.network import ip, mute, plug_in, unmute
from deploy.dev.slurm import accounting, groups
from deploy.dev.slurm.conf import NSSWITCH, Shape, address, render_conf, render_gres, render_hosts

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "ip", "unshare", "nsenter")
_SLOTS = range(1, 200)
_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PATIENCE_S = 120.0

# The node's first process: it sets the node up, starts slurmd and collects orphans. Its death is the node's.
_NODE = """\
mount --bind {folder}/hosts /etc/hosts && mount --bind {folder}/nsswitch.conf /etc/nsswitch.conf || exit 1
hostname {node}
slurmd -D -N {node} &
while :; do wait; sleep 3600 & wait $!; done
"""


class NoSlurm(Exception):
    """This machine cannot run a throw-away Slurm; the text says what to do."""


class ThrowawaySlurm:
    """`with ThrowawaySlurm(Shape(nodes=3)) as slurm`: nodes n1.. in partitions main and, preempting it, high."""

    def __init__(self, shape: Shape = Shape()) -> None:  # noqa: B008  # frozen
        _require(_PROGRAMS, "slurm-wlm iproute2")
        if shape.books:
            _require(accounting.PROGRAMS, "slurmdbd mariadb-server-core mariadb-client-core")
        if shape.memory_limits and (absence := groups.explain_absence()) is not None:
            raise NoSlurm(absence)
        if os.geteuid() != 0:
            raise NoSlurm("namespaces for the nodes need root")
        self.shape = shape
        # Sockets live below it, whose names may have 108 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.slot = 0
        self._controller: subprocess.Popen[bytes] | None = None
        self._books: accounting.Books | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs besides its own environment."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

    def __enter__(self) -> ThrowawaySlurm:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *command: str, check: bool = True) -> str:
        """The output of a client command. Raises RuntimeError with its complaint."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def start_controller(self) -> None:
        """With the state that an earlier one left."""
        self._controller = self._spawn(["slurmctld", "-D"], log=self.folder / "slurmctld.out")
        await_(lambda: subprocess.run(["scontrol", "ping"], **self._quietly()).returncode == 0, "slurmctld answers")

    def kill_controller(self) -> None:
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()

    def lose_state(self) -> None:
        """The controller's disk is replaced by an empty one: it knows no job any more, and numbers them from 1 on."""
        self.kill_controller()
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir()
        self.start_controller()

    def pause_controller(self) -> None:
        """It is there and does not answer."""
        if self._controller is not None:
            self._controller.send_signal(signal.SIGSTOP)

    def wake_controller(self) -> None:
        if self._controller is not None:
            self._controller.send_signal(signal.SIGCONT)

    def close_books(self) -> None:
        """slurmdbd is gone; the controller keeps what it would tell it."""
        if self._books is not None:
            self._books.kill_keeper()

    def reopen_books(self) -> None:
        if self._books is not None:
            self._books.start_keeper()
            await_(self._books.keeper_answers, "slurmdbd listens", explain=lambda: self.log("slurmdbd"))

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        script = _NODE.format(folder=self.folder, node=node)
        namespaces = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--uts"]
        # Not by `ip netns exec`, which mounts a /sys of its own, without the control groups that slurmd looks for.
        command = ["nsenter", f"--net=/run/netns/{self._netns(node)}", *namespaces, "bash", "-c", script]
        self._nodes[node] = self._spawn(command, log=self.folder / f"{node}.out")

    def kill_node(self, node: str) -> None:
        """As if it had lost its power: all of its processes at once, and nobody hears of it."""
        ip("link", "set", self._cable(node), "down")
        process = self._nodes.pop(node)
        process.kill()
        process.wait()
        await_(lambda: not self.pids(node), f"{node} is empty")
        ip("link", "set", self._cable(node), "up")

    def cut(self, node: str) -> None:
        """No packet reaches the node or leaves it; nothing is refused."""
        ip("link", "set", self._cable(node), "down")

    def mute(self, node: str) -> None:
        """The node hears the others, and they do not hear it."""
        mute(self._netns(node), self._subnet)

    def repair(self, node: str) -> None:
        """After `cut` or `mute`."""
        ip("link", "set", self._cable(node), "up")
        unmute(self._netns(node), self._subnet, address(self.slot, node))

    def living(self) -> list[str]:
        """The nodes that have power."""
        return [node for node, process in self._nodes.items() if process.poll() is None]

    def pids(self, node: str) -> list[int]:
        """Every process on a node."""
        found = subprocess.run(["ip", "netns", "pids", self._netns(node)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def await_idle(self) -> None:
        """Wait until every node can take jobs."""
        await_(
            lambda: (
                self.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D", check=False).strip()
                == str(self.shape.nodes)
            ),
            "all nodes are idle",
            explain=lambda: self.run("sinfo", "-N", "-l", check=False) + self.log("slurmctld"),
        )

    def log(self, name: str) -> str:
        """The end of a daemon's log: "slurmctld", or "slurmd.n1"."""
        with suppress(OSError):
            return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]
        return ""

    def close(self) -> None:
        """End everything and leave no trace. Idempotent."""
        for process in [*self._nodes.values(), *([self._controller] if self._controller else [])]:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self._nodes, self._controller = {}, None
        for node in self.shape.names if self.slot else []:
            for pid in self.pids(node):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", self._netns(node))
        if self._books is not None:
            self._books.close()
        if self.shape.memory_limits:
            groups.remove(self.shape.names)
        if self.slot:
            with suppress(subprocess.CalledProcessError):
                ip("link", "delete", self._bridge)
        self.slot = 0
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self._take_slot()
        host, files = socket.gethostname().partition(".")[0], self.folder
        (files / "slurm.conf").write_text(render_conf(files, self.slot, self.shape, host=host, user=getpass.getuser()))
        (files / "gres.conf").write_text(render_gres(self.shape))
        if self.shape.memory_limits:
            (files / "cgroup.conf").write_text(groups.CONF)
        (files / "hosts").write_text(render_hosts(self.slot, self.shape, host=host))
        (files / "nsswitch.conf").write_text(NSSWITCH)
        (files / "state").mkdir()
        if self.shape.books:
            self._open_books()
        self.start_controller()
        for node in self.shape.names:
            self._add_cable(node)
            self.start_node(node)
        self.await_idle()

    def _open_books(self) -> None:
        """Before the controller, which would not start without them."""
        books = self._books = accounting.Books(
            self.folder, self.slot, lambda command, log: self._spawn(command, log=log)
        )
        books.install(_path())
        books.start_store()
        await_(books.store_answers, "MariaDB listens", explain=lambda: self.log("mariadbd"))
        self.reopen_books()
        self.run("sacctmgr", "-i", "-Q", "add", "cluster", f"throwaway{self.slot}")
        self.run("sacctmgr", "-i", "-Q", "add", "account", accounting.ACCOUNT)
        self.run("sacctmgr", "-i", "-Q", "add", "user", getpass.getuser(), f"account={accounting.ACCOUNT}")

    def _take_slot(self) -> None:
        """Of several clusters on this machine, each gets a bridge and a subnet of its own. Raises NoSlurm."""
        reason = ""
        for slot in _SLOTS:
            self.slot = slot
            try:
                ip("link", "add", self._bridge, "type", "bridge")  # fails where there is one
            except subprocess.CalledProcessError as error:
                reason = error.stderr.decode(errors="replace").strip()
                if "File exists" in reason:
                    continue
                break
            ip("address", "add", f"{address(slot)}/24", "dev", self._bridge)
            ip("link", "set", self._bridge, "up")
            return
        self.slot = 0
        raise NoSlurm(f"no network of our own to be had: {reason}")

    def _add_cable(self, node: str) -> None:
        name = self._netns(node)
        for leftover in (("netns", "delete", name), ("link", "delete", self._cable(node))):
            with suppress(subprocess.CalledProcessError):  # of a cluster that had this slot and was killed
                ip(*leftover)
        plug_in(name, self._cable(node), self._bridge, f"{address(self.slot, node)}/24")
        ip("-n", name, "route", "add", "default", "via", address(self.slot))

    def _spawn(self, command: list[str], *, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                env={**outer(os.environ), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _quietly(self) -> dict[str, Any]:
        return {
            "env": {**os.environ, **self.environment},
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "timeout": 20,
        }

    @property
    def _bridge(self) -> str:
        return f"slurm{self.slot}"

    @property
    def _subnet(self) -> str:
        return f"10.213.{self.slot}"

    def _netns(self, node: str) -> str:
        return f"slurm{self.slot}-{node}"

    def _cable(self, node: str) -> str:
        return f"sl{self.slot}{node}"


def outer(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what a Slurm or a service outside means by it."""
    return {name: value for name, value in environ.items() if not name.startswith(("SLURM", "SBATCH", "ORCHESTRATOR_"))}


def await_(holds: Callable[[], bool], what: str, *, explain: Callable[[], str] = str) -> None:
    """Wait until it holds. Raises RuntimeError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in {_PATIENCE_S:g} s: {what}\n{explain()}")
        time.sleep(0.05)


def _require(programs: Sequence[str], packages: str) -> None:
    """Raises NoSlurm."""
    missing = [name for name in programs if shutil.which(name, path=_path()) is None]
    if missing:
        raise NoSlurm(f"no {', '.join(missing)} here (Debian: apt-get install {packages})")


def _path() -> str:
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
