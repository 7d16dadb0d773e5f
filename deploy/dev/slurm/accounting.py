"""The books of a throw-away Slurm: slurmdbd with a MariaDB of its own, in the cluster's folder. Linux, as root.

Packages slurmdbd, mariadb-server-core and mariadb-client-core. MariaDB listens on loopback alone, with a password that
is made for it.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deploy.dev.slurm.conf import books_port, render_dbd_conf, store_port

PROGRAMS = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb-install-db", "my_print_defaults")
ACCOUNT = "research"  # which this user has, without limits at first
_USER = "slurm"
_INSTALL_S = 120.0

Spawn = Callable[[list[str], Path], subprocess.Popen[bytes]]  # a daemon, by its command and its log


class Books:
    """`spawn` starts what ends with the process that started it."""

    def __init__(self, folder: Path, slot: int, spawn: Spawn) -> None:
        self._folder, self._slot, self._spawn = folder, slot, spawn
        self._store: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def install(self, path: str) -> None:
        """Make an empty database. `path`: where programs are. Raises RuntimeError."""
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

    def start_store(self) -> None:
        """MariaDB; it does not answer at once."""
        password, begin = secrets.token_hex(16), self._folder / "begin.sql"
        begin.touch(mode=0o600)
        begin.write_text(
            f"CREATE OR REPLACE USER {_USER}@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON *.* TO {_USER}@'127.0.0.1';\n"
        )
        conf = self._folder / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd refuses one that others can read
        host = socket.gethostname().partition(".")[0]
        conf.write_text(render_dbd_conf(self._folder, self._slot, host=host, user=_USER, password=password))
        command = [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={self._folder}/mysql",
            f"--socket={self._folder}/mysql.sock",
            f"--pid-file={self._folder}/mariadbd.pid",
            "--bind-address=127.0.0.1",
            f"--port={store_port(self._slot)}",
            f"--init-file={begin}",
            "--performance-schema=0",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=4M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",  # slurmdbd complains of less
        ]
        self._store = self._spawn(command, self._folder / "mariadbd.log")

    def store_answers(self) -> bool:
        """It listens once its first statements are done."""
        return _listens("127.0.0.1", store_port(self._slot))

    def start_keeper(self) -> None:
        """slurmdbd; it does not answer at once."""
        self._keeper = self._spawn(["slurmdbd", "-D"], self._folder / "slurmdbd.out")

    def keeper_answers(self) -> bool:
        return _listens("127.0.0.1", books_port(self._slot))

    def kill_keeper(self) -> None:
        """Idempotent."""
        _end(self._keeper)
        self._keeper = None

    def close(self) -> None:
        """Idempotent."""
        self.kill_keeper()
        _end(self._store)
        self._store = None


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
