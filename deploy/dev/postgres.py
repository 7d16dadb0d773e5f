"""A throw-away PostgreSQL: started in a temporary folder, gone without a trace at the end.

By hand: `python deploy/dev/postgres.py` prints the URL of an empty database and serves it until Ctrl-C.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_USER = "postgres"  # the server refuses to run as root; this is the user that the packages make
_START_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
# Nothing here needs to survive a crash of the machine; what was committed survives one of the server, if it has to.
_FAST = ("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=32MB")
_FORGETFUL = ("synchronous_commit=off",)


class NoPostgres(Exception):
    """This machine has no PostgreSQL server; the text says how to get one."""


def find_binaries() -> Path:
    """The folder of the newest server's programs. Raises NoPostgres."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    on_path = shutil.which("postgres")
    folders = [*packaged, *([Path(on_path).resolve().parent] if on_path else [])]
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NoPostgres("no PostgreSQL server here: install one (Debian: apt-get install postgresql)")


class Postgres:
    """A server on a Unix socket, with an empty cluster. `durable`: what was committed survives its sudden end.

    Call it from the main thread: the server ends with the thread that started it.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        """Raises NoPostgres."""
        self.url = f"postgresql://{_USER}@/postgres?host={folder}"
        self._folder = folder
        self._settings = _FAST if durable else (*_FAST, *_FORGETFUL)
        self._binaries = find_binaries()
        self._account = _USER if os.geteuid() == 0 else None
        self._server: subprocess.Popen[bytes] | None = None
        if self._account:
            shutil.chown(folder, self._account, self._account)
        _initialise(self._binaries, folder, self._account)

    def start(self) -> None:
        self._server = _start(self._binaries, self._folder, self._account, self._settings)
        _wait_until_ready(self._binaries, self._folder, self._server)

    def stop(self) -> None:
        """At once, as `pg_ctl stop -m immediate` does."""
        if self._server is not None:
            _stop(self._server)


@contextmanager
def running_postgres(*, durable: bool) -> Iterator[Postgres]:
    """A server that its user may stop and start. Raises NoPostgres."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-postgres-"))
    try:
        server = Postgres(folder, durable=durable)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Serve an empty cluster on a Unix socket; gives the URL of its database `postgres`. Raises NoPostgres."""
    with running_postgres(durable=False) as server:
        yield server.url


def _version(folder: Path) -> float:
    return float(re.sub(r"[^0-9.]", "", folder.parent.name) or 0)


def _initialise(binaries: Path, folder: Path, account: str | None) -> None:
    arguments = ("-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
    done = subprocess.run(
        [binaries / "initdb", "-D", folder / "data", *arguments],
        user=account,
        group=account,
        extra_groups=[] if account else None,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"initdb failed: {done.stderr}")


def _start(binaries: Path, folder: Path, account: str | None, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    settings = [f"unix_socket_directories={folder}", "listen_addresses=", *settings]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [binaries / "postgres", "-D", folder / "data", *(f"--{setting}" for setting in settings)],
            user=account,
            group=account,
            extra_groups=[] if account else None,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)  # immediate shutdown, also when we are killed


def _wait_until_ready(binaries: Path, folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while subprocess.run([binaries / "pg_isready", "-q", "-h", folder], check=False).returncode != 0:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL does not start: {(folder / 'log').read_text(errors='replace')}")
        time.sleep(0.02)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGQUIT)
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with postgres_server() as url:
            print(url, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except NoPostgres as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
