"""Accounting of a throw-away Slurm: slurmdbd with its own MariaDB in the cluster's folder. Linux, as root.

Needs the packages slurmdbd, mariadb-server-core and mariadb-client-core. MariaDB listens on loopback only, with a
generated password.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deploy.dev.slurm.conf import MARIADB_USER, mariadb_port, render_dbd_conf, slurmdbd_port

PROGRAMS = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb-install-db", "my_print_defaults")
ACCOUNT = "research"  # this user's account, without limits at first
_INSTALL_S = 120.0

Spawn = Callable[[list[str], Path], subprocess.Popen[bytes]]  # starts a daemon with this command and log


class Accounting:
    """MariaDB and slurmdbd. `key` signs tokens. `spawn` starts processes that end with this one."""

    def __init__(self, folder: Path, slot: int, spawn: Spawn, *, key: Path | None) -> None:
        self._folder, self._slot, self._spawn, self._key = folder, slot, spawn, key
        self._mariadb: subprocess.Popen[bytes] | None = None
        self._slurmdbd: subprocess.Popen[bytes] | None = None

    def install(self, path: str) -> None:
        """Create an empty database. `path` is a search path for programs. Raises RuntimeError."""
        command = [
            shutil.which("mariadb-install-db", path=path) or "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self._folder}/mysql",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            "--user=root",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"mariadb-install-db: {(done.stdout + done.stderr)[-2000:]}")

    def start_mariadb(self) -> None:
        """Start MariaDB. It does not answer at once."""
        password, begin = secrets.token_hex(16), self._folder / "begin.sql"
        begin.touch(mode=0o600)
        begin.write_text(
            f"CREATE OR REPLACE USER {MARIADB_USER}@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON *.* TO {MARIADB_USER}@'127.0.0.1';\n"
        )
        conf = self._folder / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd refuses a file that others can read
        host = socket.gethostname().partition(".")[0]
        conf.write_text(render_dbd_conf(self._folder, self._slot, host=host, password=password, key=self._key))
        command = [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={self._folder}/mysql",
            f"--socket={self._folder}/mysql.sock",
            f"--pid-file={self._folder}/mariadbd.pid",
            "--bind-address=127.0.0.1",
            f"--port={mariadb_port(self._slot)}",
            f"--init-file={begin}",
            "--performance-schema=0",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=4M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",  # slurmdbd warns about less
            # ON by default since MariaDB 11.6, and slurmdbd then fails. `loose`: older versions ignore the option.
            "--loose-innodb-snapshot-isolation=OFF",
        ]
        self._mariadb = self._spawn(command, self._folder / "mariadbd.log")

    def mariadb_answers(self) -> bool:
        """MariaDB listens after its init file has run."""
        return _listens("127.0.0.1", mariadb_port(self._slot))

    def start_slurmdbd(self) -> None:
        """Start slurmdbd. It does not answer at once."""
        self._slurmdbd = self._spawn(["slurmdbd", "-D"], self._folder / "slurmdbd.out")

    def slurmdbd_answers(self) -> bool:
        return _listens("127.0.0.1", slurmdbd_port(self._slot))

    def kill_slurmdbd(self) -> None:
        """Idempotent."""
        _end(self._slurmdbd)
        self._slurmdbd = None

    def close(self) -> None:
        """Idempotent."""
        self.kill_slurmdbd()
        _end(self._mariadb)
        self._mariadb = None


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
