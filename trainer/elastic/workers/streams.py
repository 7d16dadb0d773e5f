"""The output of workers outside a job: the console, or files by --log-dir, --redirects and --tee.

In a job each worker opens its own log (child.py), and this module is not used. Every worker has an error file, from
which the agent finds out which worker failed first and how.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from trainer.elastic.flags import Flags
from trainer.elastic.records.files import say
from trainer.elastic.records.scratch import Scratch

_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


@dataclass(frozen=True, kw_only=True)
class Output:
    """One worker's output: the paths of its streams, None for the console, and the folder of its error file."""

    stdout: str | None
    stderr: str | None
    folder: Path


class Streams:
    """Raises ValueError for values that torchrun refuses, and OSError if the log folder cannot be created."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._scratch: Scratch | None = None
        self._tails: list[TailLog] = []
        keeps = flags.log_dir is not None or flags.redirects != "0"
        if not keeps:
            self._scratch = Scratch()
        self._specs = self._specify()
        if keeps:
            say(f"logs are in {self._specs.root_log_dir}")

    def open(self, environs: Mapping[int, dict[str, str]]) -> dict[int, Output]:
        """The outputs of a generation, by local rank. Adds the path of the error file to each worker's environment."""
        places = self._specs.reify({rank: _name_folder(environ) for rank, environ in environs.items()})
        for local_rank, environ in environs.items():
            environ["TORCHELASTIC_ERROR_FILE"] = places.error_files[local_rank]
        self._follow(places, environs)
        return {
            local_rank: Output(
                stdout=places.stdouts[local_rank] or None,
                stderr=places.stderrs[local_rank] or None,
                folder=Path(places.error_files[local_rank]).parent,
            )
            for local_rank in environs
        }

    def drain(self) -> None:
        """Print the last output of a generation that has ended."""
        for tail in self._tails:
            tail.stop()
        self._tails = []

    def close(self) -> None:
        self.drain()
        if self._scratch is not None:
            self._scratch.sweep()
            self._scratch = None

    def _specify(self) -> DefaultLogsSpecs:
        flags = self._flags
        try:
            return DefaultLogsSpecs(
                log_dir=flags.log_dir if self._scratch is None else str(self._scratch.path),
                redirects=Std.from_str(flags.redirects),
                tee=Std.from_str(flags.tee),
                local_ranks_filter={int(rank) for rank in flags.local_ranks_filter.split(",") if rank.strip()} or None,
            )
        except OSError as error:
            if flags.log_dir is None:
                raise
            raise ValueError(f"--log-dir is {flags.log_dir!r}: {error.strerror or 'it is a file'}") from error

    def _follow(self, places: LogsDest, environs: Mapping[int, Mapping[str, str]]) -> None:
        template = os.environ.get(_PREFIX)
        prefixes = {} if template is None else {rank: _fill(template, environ) for rank, environ in environs.items()}
        for files, console in ((places.tee_stdouts, sys.stdout), (places.tee_stderrs, sys.stderr)):
            if files:
                self._tails.append(TailLog(self._flags.role, files, console, prefixes).start())


def _name_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with a run id without slashes, because torch uses the id as a folder's name."""
    return {**environ, "TORCHELASTIC_RUN_ID": environ["TORCHELASTIC_RUN_ID"].replace("/", "_")}


def _fill(template: str, environ: Mapping[str, str]) -> str:
    return Template(template).safe_substitute(
        role_name=environ["ROLE_NAME"], rank=environ["RANK"], local_rank=environ["LOCAL_RANK"]
    )
