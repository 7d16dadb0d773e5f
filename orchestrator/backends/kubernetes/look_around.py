"""The program of a probe's pod (`python -c`). It checks its surroundings and writes them to its termination message.

Arguments: a folder in the run directory, the service's URL or an empty string, the port for the other pod, the seconds
to wait for it, and the modules to import. Uses only the standard library of Python 3.8 or newer, so that it can report
a Python that is too old.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

_MOST_OF_A_WORD = 300  # characters; a termination message holds 4096 bytes in total
_STEP_S = 0.5
_SEEN_S = 60.0  # maximum delay of a file on a network file system
_ANSWER_S = 10.0


def main() -> None:
    folder, url, port, patience_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    deadline = time.monotonic() + patience_s
    found: dict[str, object] = {
        "index": index,
        "node": os.environ.get("ORCHESTRATOR_NODE", ""),
        "user": os.getuid(),
        "python": sys.version.split()[0],
        "enough": sys.version_info >= (3, 10),
        "unwritten": write(folder, index),
        "asked": read(folder / "asked"),
    }
    meeting: Meeting = Host(port) if index == 0 else Guest(port)
    found["missing"] = {name: words for name in sys.argv[5:] for words in [missing(name)] if words}
    found["unreached"] = unreached(url) if url else ""
    found["unmet"] = meeting.meet(deadline)
    together = not (found["unwritten"] or found["unmet"])
    found["unseen"] = together and not sees(folder / str(1 - index))
    meeting.part()
    if index == 0:
        shutil.rmtree(folder, ignore_errors=True)
    found["at"] = time.time()
    Path(os.environ["ORCHESTRATOR_LAST_WORDS"]).write_text(json.dumps(found))


def write(folder: Path, index: int) -> str:
    """Return why the folder cannot be written, or an empty string."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(index)).write_text("here")
    except OSError as error:
        return said(error)
    return ""


def read(path: Path) -> str:
    try:
        return path.read_text()[:_MOST_OF_A_WORD]
    except OSError:
        return ""


def sees(path: Path) -> bool:
    """Whether the other pod's file appears in time."""
    deadline = time.monotonic() + _SEEN_S
    while not read(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(_STEP_S)
    return True


def missing(name: str) -> str:
    """Return why the module cannot be imported, or an empty string."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  # a library built for another machine can raise anything
        return said(error)
    return ""


def unreached(url: str) -> str:
    """Return why the service does not answer, or an empty string. Any HTTP status counts as an answer."""
    try:
        urllib.request.urlopen(url, timeout=_ANSWER_S).close()
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, ValueError) as error:
        return said(error)
    return ""


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_OF_A_WORD]


class Meeting(ABC):
    """A connection between the two pods."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.other: socket.socket | None = None

    @abstractmethod
    def meet(self, deadline: float) -> str:
        """Return why the other pod could not be reached, or an empty string."""

    @abstractmethod
    def part(self) -> None:
        """Disconnect after all checks. The first pod leaves last and cleans up."""


class Host(Meeting):
    """The first pod, which listens from the start."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self.listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual)

    def meet(self, deadline: float) -> str:
        self.listener.settimeout(max(_STEP_S, deadline - time.monotonic()))
        try:
            self.other, _ = self.listener.accept()
        except OSError as error:
            return f"the second pod did not connect ({said(error)})"
        return ""

    def part(self) -> None:
        self.listener.close()
        if self.other is not None:
            self.other.settimeout(2 * _SEEN_S)
            with suppress(OSError), self.other:
                self.other.recv(1)


class Guest(Meeting):
    """The second pod."""

    def meet(self, deadline: float) -> str:
        """Retry until the deadline. At first the name may be unknown, or the first pod may be pulling its image."""
        head = os.environ["ORCHESTRATOR_HEAD"]
        while True:
            try:
                self.other = socket.create_connection((head, self.port), timeout=2.0)
            except OSError as error:
                if time.monotonic() > deadline:
                    return f"{head}, port {self.port} ({said(error)})"
                time.sleep(_STEP_S)
            else:
                return ""

    def part(self) -> None:
        if self.other is not None:
            with suppress(OSError), self.other:
                self.other.sendall(b".")


if __name__ == "__main__":
    main()
