"""A throw-away Slurm. Its nodes run in namespaces and can be killed, cut off and started.

All processes end with the one that started them. Use it from the main thread.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import re
import secrets
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
_OLDEST_REST = (24, 11)
# slurmrestd refuses to run as root or as SlurmUser. With SLURM_JWT=daemon, each call brings a token.
_REST_USER = "daemon"
_AS_REST_USER = ("setpriv", f"--reuid={_REST_USER}", f"--regid={_REST_USER}", "--clear-groups", "--pdeathsig=KILL")
_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PATIENCE_S = 120.0

# The node's first process: it sets up the node, starts slurmd and reaps orphans. The node dies with it.
_NODE = """\
mount --bind {folder}/hosts /etc/hosts && mount --bind {folder}/nsswitch.conf /etc/nsswitch.conf || exit 1
hostname {node}
slurmd -D -N {node} &
while :; do wait; sleep 3600 & wait $!; done
"""


class NoSlurm(Exception):
    """This machine cannot run a throw-away Slurm. The message says what to do."""


class ThrowawaySlurm:
    """`with ThrowawaySlurm(Shape(nodes=3)) as slurm`: nodes n1, n2, ... Partition high preempts partition main."""

    def __init__(self, shape: Shape = Shape()) -> None:  # noqa: B008  # frozen
        _require(_PROGRAMS, "slurm-wlm iproute2")
        if shape.accounting:
            _require(accounting.PROGRAMS, "slurmdbd mariadb-server-core mariadb-client-core")
        if shape.memory_limits and (absence := groups.explain_absence()) is not None:
            raise NoSlurm(absence)
        if os.geteuid() != 0:
            raise NoSlurm("namespaces for the nodes need root")
        self.shape = shape
        # The path is short because it holds sockets, whose paths have at most 108 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.slot = 0
        self._controller: subprocess.Popen[bytes] | None = None
        self._accounting: accounting.Accounting | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._rest: subprocess.Popen[bytes] | None = None
        self.rest_url: str | None = None  # while slurmrestd runs
        self.token_file = self.folder / "token"  # of this process's user, while slurmrestd runs

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that a client needs."""
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
        """Return the output of a client command. Raises RuntimeError with its error output."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def start_controller(self) -> None:
        """Start slurmctld with the state of the previous one."""
        self._controller = self._spawn(["slurmctld", "-D"], log=self.folder / "slurmctld.out")
        await_(lambda: subprocess.run(["scontrol", "ping"], **self._quietly()).returncode == 0, "slurmctld answers")

    def start_rest(self) -> str:
        """Start slurmrestd, once, and return its URL.

        Raises NoSlurm if it is missing or older than 24.11, or if Slurm's JWT plugin is missing.
        """
        if self.rest_url is not None:
            return self.rest_url
        _require(("slurmrestd",), "slurmrestd")
        version = tuple(map(int, re.findall(r"[0-9]+", self.run("slurmrestd", "-V"))[:2]))
        if version < _OLDEST_REST:
            raise NoSlurm(f"needs slurmrestd of Slurm 24.11 or later; this is {'.'.join(map(str, version))}")
        if not self._has_jwt_plugin:
            raise NoSlurm("no auth_jwt.so here (Debian: apt-get install slurm-wlm-jwt-plugin)")
        token = self.run("scontrol", "token", "lifespan=infinite", f"username={getpass.getuser()}")
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(token.strip().removeprefix("SLURM_JWT="))
        path = self.folder / "restd" / "socket"
        path.parent.mkdir()
        shutil.chown(path.parent, _REST_USER, _REST_USER)
        self.folder.chmod(0o711)
        # Without slurmdbd, slurmrestd ends at its start if it loads openapi/slurmdbd.
        plugins = ["openapi/slurmctld", *(["openapi/slurmdbd"] if self.shape.accounting else [])]
        command = ["slurmrestd", "-a", "rest_auth/jwt", "-s", ",".join(plugins), f"unix:{path}"]
        self._rest = self._spawn(
            [*_AS_REST_USER, "env", "SLURM_JWT=daemon", *command], log=self.folder / "slurmrestd.log"
        )
        await_(path.exists, "slurmrestd listens", explain=lambda: self.log("slurmrestd"))
        self.rest_url = f"unix:{path}"
        return self.rest_url

    def kill_controller(self) -> None:
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()

    def lose_state(self) -> None:
        """Restart the controller with empty state: it knows no job, and job ids start at 1 again."""
        self.kill_controller()
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir()
        self.start_controller()

    def pause_controller(self) -> None:
        """Stop the controller with SIGSTOP, so that it does not answer."""
        if self._controller is not None:
            self._controller.send_signal(signal.SIGSTOP)

    def wake_controller(self) -> None:
        if self._controller is not None:
            self._controller.send_signal(signal.SIGCONT)

    def kill_slurmdbd(self) -> None:
        """Kill slurmdbd. The controller queues its records."""
        if self._accounting is not None:
            self._accounting.kill_slurmdbd()

    def start_slurmdbd(self) -> None:
        if self._accounting is not None:
            self._accounting.start_slurmdbd()
            await_(self._accounting.slurmdbd_answers, "slurmdbd listens", explain=lambda: self.log("slurmdbd"))

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        script = _NODE.format(folder=self.folder, node=node)
        namespaces = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--uts"]
        # `ip netns exec` would mount its own /sys, without the control groups that slurmd looks for.
        command = ["nsenter", f"--net=/run/netns/{self._netns(node)}", *namespaces, "bash", "-c", script]
        self._nodes[node] = self._spawn(command, log=self.folder / f"{node}.out")

    def kill_node(self, node: str) -> None:
        """Kill all processes of the node without closing connections, as in a power failure."""
        ip("link", "set", self._cable(node), "down")
        process = self._nodes.pop(node)
        process.kill()
        process.wait()
        await_(lambda: not self.pids(node), f"{node} is empty")
        ip("link", "set", self._cable(node), "up")

    def cut(self, node: str) -> None:
        """Drop all packets to and from the node. Connections are not refused."""
        ip("link", "set", self._cable(node), "down")

    def mute(self, node: str) -> None:
        """Drop the packets that the node sends. It still receives."""
        mute(self._netns(node), self._subnet)

    def repair(self, node: str) -> None:
        """Undo `cut` and `mute`."""
        ip("link", "set", self._cable(node), "up")
        unmute(self._netns(node), self._subnet, address(self.slot, node))

    def living(self) -> list[str]:
        """Return the nodes that run."""
        return [node for node, process in self._nodes.items() if process.poll() is None]

    def pids(self, node: str) -> list[int]:
        """Return the ids of all processes on a node."""
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
        """Return the end of a daemon's log. `name` is "slurmctld", "slurmdbd" or "slurmd.n1"."""
        with suppress(OSError):
            return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]
        return ""

    def close(self) -> None:
        """End all processes and remove all files. Idempotent."""
        for process in filter(None, [self._rest, *self._nodes.values(), self._controller]):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self._nodes, self._controller, self._rest, self.rest_url = {}, None, None, None
        for node in self.shape.names if self.slot else []:
            for pid in self.pids(node):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", self._netns(node))
        if self._accounting is not None:
            self._accounting.close()
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
        key = files / "jwt.key" if self._has_jwt_plugin else None
        if key is not None:
            key.write_bytes(secrets.token_bytes(32))
            key.chmod(0o600)
        conf = render_conf(files, self.slot, self.shape, host=host, user=getpass.getuser(), key=key)
        (files / "slurm.conf").write_text(conf)
        (files / "gres.conf").write_text(render_gres(self.shape))
        if self.shape.memory_limits:
            (files / "cgroup.conf").write_text(groups.CONF)
        (files / "hosts").write_text(render_hosts(self.slot, self.shape, host=host))
        (files / "nsswitch.conf").write_text(NSSWITCH)
        (files / "state").mkdir()
        if self.shape.accounting:
            self._start_accounting(key)
        self.start_controller()
        for node in self.shape.names:
            self._add_cable(node)
            self.start_node(node)
        self.await_idle()

    def _start_accounting(self, key: Path | None) -> None:
        """Start MariaDB and slurmdbd. The controller does not start without them."""
        daemons = self._accounting = accounting.Accounting(
            self.folder, self.slot, lambda command, log: self._spawn(command, log=log), key=key
        )
        daemons.install(_path())
        daemons.start_mariadb()
        await_(daemons.mariadb_answers, "MariaDB listens", explain=lambda: self.log("mariadbd"))
        self.start_slurmdbd()
        self.run("sacctmgr", "-i", "-Q", "add", "cluster", f"throwaway{self.slot}")
        self.run("sacctmgr", "-i", "-Q", "add", "account", accounting.ACCOUNT)
        self.run("sacctmgr", "-i", "-Q", "add", "user", getpass.getuser(), f"account={accounting.ACCOUNT}")

    def _take_slot(self) -> None:
        """Take a free bridge and subnet, so that several clusters can run on this machine. Raises NoSlurm."""
        reason = ""
        for slot in _SLOTS:
            self.slot = slot
            try:
                ip("link", "add", self._bridge, "type", "bridge")  # fails if it exists
            except subprocess.CalledProcessError as error:
                reason = error.stderr.decode(errors="replace").strip()
                if "File exists" in reason:
                    continue
                break
            ip("address", "add", f"{address(slot)}/24", "dev", self._bridge)
            ip("link", "set", self._bridge, "up")
            return
        self.slot = 0
        raise NoSlurm(f"cannot create a network: {reason}")

    def _add_cable(self, node: str) -> None:
        name = self._netns(node)
        for leftover in (("netns", "delete", name), ("link", "delete", self._cable(node))):
            with suppress(subprocess.CalledProcessError):  # left by a killed cluster with this slot
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
    def _has_jwt_plugin(self) -> bool:
        return any(Path("/usr/lib").glob("*/slurm-wlm/auth_jwt.so"))

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
    """Return the environment without variables of another Slurm or service."""
    return {name: value for name, value in environ.items() if not name.startswith(("SLURM", "SBATCH", "ORCHESTRATOR_"))}


def await_(holds: Callable[[], bool], what: str, *, explain: Callable[[], str] = str) -> None:
    """Wait until the condition holds. Raises RuntimeError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {_PATIENCE_S:g} s: {what}\n{explain()}")
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
