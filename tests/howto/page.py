"""Run a page of docs/how-to or docs/guides: type its commands, and compare the output with what the page shows.

```sh          is typed into one shell, from the first block to the last
```sh service  is typed into a second terminal and keeps running; another such block first stops it
```text        is the output since the previous such block; `...` matches anything, alone on a line any lines

Other kinds are refused, so everything on a page is tried.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATIENCE_S = 300.0
_READY = b"orchestrator is at"


class PageFailed(AssertionError):
    """A block did not do what the page says. The message has the block and its output."""


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    text: str


def read_blocks(page: str) -> list[Block]:
    """Raises PageFailed for a block that is neither typed nor checked."""
    blocks = [Block(kind.strip(), text) for kind, text in _FENCE.findall(page)]
    for block in blocks:
        if block.kind not in ("sh", "sh service", "text"):
            raise PageFailed(f"a block of kind {block.kind!r} is neither typed nor checked:\n{block.text}")
    return blocks


def matches(stated: str, printed: str) -> bool:
    """Whether the output is what the page shows. Trailing white space is ignored."""
    words = "\n".join(line.rstrip() for line in stated.strip().splitlines())
    found = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    pattern = re.escape(words).replace(re.escape("..."), ".*").replace(re.escape("\n"), "\n")
    for line, lines in (("\n.*\n", "\n(?:.*\n)?"), ("^.*\n", "^(?:.*\n)?"), ("\n.*$", "(?:\n.*)?$")):
        pattern = f"^{pattern.strip('^$')}$".replace(line, lines)
    return re.match(pattern, found, re.DOTALL) is not None


def run_page(path: Path, folder: Path, more: Mapping[str, str] | None = None) -> None:
    """Raises PageFailed."""
    terminals, printed = Terminals(folder, more or {}), ""
    try:
        for block in read_blocks(path.read_text()):
            if block.kind == "sh service":
                terminals.serve(block.text)
            elif block.kind == "sh":
                printed += terminals.type(block.text)
            else:
                if not matches(block.text, printed):
                    raise PageFailed(f"the page says\n{block.text}\nand the output was\n{printed}\n{terminals.log()}")
                printed = ""
    finally:
        terminals.close()


class Terminals:
    """Two shells: one for the blocks, and one for the service."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self._folder, self._here = folder, folder / "here"
        self._here.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        _put(programs / "orchestrator", [sys.executable, "-m", "orchestrator.cli"])
        _put(programs / "python", [sys.executable])
        _put(programs / "elasticrun", [sys.executable, "-m", "trainer.elastic.elasticrun"])
        _put(programs / "torchx", [str(Path(sys.executable).with_name("torchx"))])
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            "ORCHESTRATOR_PORT": "0",  # 8700 may be taken on this machine
            "ORCHESTRATOR_LOCAL_SLOTS": "4",
            **more,
        }
        self._serving: subprocess.Popen[bytes] | None = None
        with (folder / "printed").open("wb") as printed:
            self._shell = self._start(["bash", "-e"], printed.fileno(), subprocess.PIPE)
        self._read = 0

    def type(self, text: str) -> str:
        """Type a block, wait for its end, and return its output. Raises PageFailed if one of its lines fails."""
        block, done = self._folder / "block", self._folder / "done"
        block.write_text(text)
        done.unlink(missing_ok=True)
        assert self._shell.stdin is not None
        # The shell reads its script from standard input: programs of the block must not read that.
        self._shell.stdin.write(f". {block} </dev/null; touch {done}\n".encode())
        self._shell.stdin.flush()
        deadline = time.monotonic() + _PATIENCE_S
        while not done.exists():
            if self._shell.poll() is not None:
                raise PageFailed(f"a line fails in\n{text}\nwhich printed\n{self._news()}\n{self.log()}")
            if time.monotonic() > deadline:
                raise PageFailed(f"this does not end:\n{text}\nit printed\n{self._news()}\n{self.log()}")
            time.sleep(0.05)
        return self._news()

    def serve(self, text: str) -> None:
        """Type a block into the other terminal, and wait until the service is ready."""
        self._stop()
        path = self._folder / "service.log"
        with path.open("ab") as log:
            before = log.tell()
            self._serving = self._start(["bash", "-ec", text], log.fileno(), subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENCE_S
        while _READY not in path.read_bytes()[before:]:
            if self._serving.poll() is not None or time.monotonic() > deadline:
                raise PageFailed(f"the service does not start:\n{self.log()}")
            time.sleep(0.05)

    def log(self) -> str:
        """The end of the service's output."""
        path = self._folder / "service.log"
        return path.read_text(errors="replace")[-5000:] if path.exists() else ""

    def close(self) -> None:
        self._stop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        if self._shell.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._shell.stdin.close()
        self._shell.wait(300)
        _end_jobs(self._folder)

    def _stop(self) -> None:
        """Press Ctrl-C in the terminal of the service."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(serving.pid, signal.SIGINT)
        try:
            serving.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(serving.pid, signal.SIGKILL)
            serving.wait(300)

    def _start(self, command: Sequence[str], output: int, given: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self._here,
            env=self._env,
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _news(self) -> str:
        content = (self._folder / "printed").read_bytes()
        news, self._read = content[self._read :], len(content)
        return news.decode(errors="replace")


def _put(path: Path, command: Sequence[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    path.chmod(0o755)


def _end_jobs(folder: Path) -> None:
    """Kill agents and workers, which have their own sessions, by the folder of their job."""
    mark = f"={folder}/".encode()
    for _ in range(50):
        left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)]
        if not left:
            return
        for entry in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.1)


def _has(entry: Path, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return any(b"ORCHESTRATOR_JOB_DIR" + mark in pair for pair in (entry / "environ").read_bytes().split(b"\0"))
    return False
