"""A throw-away PostgreSQL server in a temporary folder."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_USER = "postgres"  # the server refuses to run as root; packages create this user
_START_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_SMALL = ("max_connections=200", "shared_buffers=32MB")
# Data need not survive a crash of the machine. A durable server keeps commits across a crash of the server.
_FAST = ("fsync=off", "full_page_writes=off")
_FORGETFUL = ("synchronous_commit=off",)


class NoPostgres(Exception):
    """This machine has no PostgreSQL server. The message says how to install one."""


def find_binaries() -> Path:
    """Return the folder with the programs of the newest server. Raises NoPostgres."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    on_path = shutil.which("postgres")
    folders = [*packaged, *([Path(on_path).resolve().parent] if on_path else [])]
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NoPostgres("no PostgreSQL server here: install one (Debian: apt-get install postgresql)")


class Postgres:
    """A server on a Unix socket, with an empty cluster.

    `durable`: commits survive a crash of the server. `fsync`: they survive a crash of the machine.

    Use it from the main thread, because the server ends with the thread that started it.
    """

    def __init__(self, folder: Path, *, durable: bool, fsync: bool = False) -> None:
        """Raises NoPostgres."""
        self.url = f"postgresql://{_USER}@/postgres?host={folder}"
        self._folder, self._binaries = folder, find_binaries()
        self._settings = [f"unix_socket_directories={folder}", "listen_addresses=", *_SMALL]
        self._settings += [] if fsync else _FAST
        self._settings += [] if durable else _FORGETFUL
        self._server: subprocess.Popen[bytes] | None = None
        account = _USER if os.geteuid() == 0 else None
        self._place: dict[str, Any] = {"cwd": folder, "user": account, "group": account}
        self._place["extra_groups"] = [] if account else None
        if account:
            shutil.chown(folder, account, account)
        arguments = ("-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
        command = [str(self._binaries / "initdb"), "-D", str(folder / "data"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._place)
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr}")

    def start(self) -> None:
        """Start the server and wait until it is ready. Raises RuntimeError."""
        settings = [f"--{setting}" for setting in self._settings]
        command = [str(self._binaries / "postgres"), "-D", str(self._folder / "data"), *settings]
        with (self._folder / "log").open("ab") as log:
            server = self._server = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_end_with_parent, **self._place
            )
        asked = [str(self._binaries / "pg_isready"), "-q", "-h", str(self._folder)]
        deadline = time.monotonic() + _START_TIMEOUT_S
        while subprocess.run(asked, check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: {(self._folder / 'log').read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once, as `pg_ctl stop -m immediate` does."""
        if self._server is None:
            return
        self._server.send_signal(signal.SIGQUIT)
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)  # immediate shutdown, also if this process is killed


@contextmanager
def running_postgres(*, durable: bool, fsync: bool = False) -> Iterator[Postgres]:
    """Yield a server that can be stopped and started. Raises NoPostgres."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-postgres-"))
    try:
        server = Postgres(folder, durable=durable, fsync=fsync)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the URL of the database `postgres` of an empty cluster. Raises NoPostgres."""
    with running_postgres(durable=False) as server:
        yield server.url


def _version(folder: Path) -> float:
    return float(re.sub(r"[^0-9.]", "", folder.parent.name) or 0)
