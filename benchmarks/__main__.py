"""Run all benchmarks, one after the other, and write their results to docs/benchmarks.md.

    python -m benchmarks [--only NAME ...] [--quick] [--page FILE]          # or: make bench ARGS="--only startup"

Each benchmark is a separate command. When it has ended, its section of the page is written, with the date, the command,
the machine, the versions and the load. Other sections are left unchanged, and so is the section of a benchmark that
fails. --quick takes about a minute for each benchmark, to check that everything works. Its figures mean little, so
they are printed and not written, unless --page is given.

Run it on an idle machine. Exit status 1 if a benchmark failed or, without --quick, missed a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import yardstick
from deploy.dev.network import Network, NoNamespaces
from deploy.dev.postgres import NoPostgres, find_binaries
from deploy.dev.sections import replace_section

PAGE = yardstick.ROOT / "docs" / "benchmarks.md"
_LIMIT_S = 4 * 3600.0  # for one command
_GRACE_S = 60.0  # for a command to end its processes


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A section of the page, and the command that writes it."""

    name: str
    module: str  # below benchmarks
    full: str  # arguments
    quick: str
    missing: Callable[[], str | None] = lambda: None  # what this machine lacks, as a sentence

    def command(self, *, quick: bool) -> str:
        return f"benchmarks.{self.module} {self.quick if quick else self.full}".rstrip()


def _needs_postgres() -> str | None:
    try:
        find_binaries()
    except NoPostgres as error:
        return str(error)
    return None


def _needs_gpu() -> str | None:
    return None if yardstick.list_gpus() else "nvidia-smi finds no GPU"


def _needs_namespaces() -> str | None:
    try:
        with Network(1):
            return None
    except NoNamespaces as error:
        return str(error)


_SMALL_LOAD = "--jobs 200 --live 50 --submissions 50 --reads 20 --report-rounds 1 --paced-s 2"
_SMALL_TRAINER = "--strategies ddp --global-batch 2 --seq-len 32 --rounds 2 --turn 1"
_SMALL_TRAINER_GPU = "--device cuda --strategies ddp --preset 124m --no-compile --rounds 2 --turn 3"
_A_KILL = "--kills 1 --steps-between 12 20 --launchers ours"
# A new benchmark gets its entry here, and its section on the page.
BENCHMARKS = (
    Benchmark("startup", "startup", "--runs 10", "--runs 1"),
    Benchmark("control_plane", "control_plane", "", _SMALL_LOAD, _needs_postgres),
    Benchmark("slurm", "slurm", "", "--jobs 50 --foreign 2000 --passes 2"),
    Benchmark(
        "recovery", "recovery", "--kills 30 --programs trainer-ddp trainer-fsdp script script-reentered", _A_KILL
    ),
    Benchmark("nodes", "nodes", "--times 6", "--nodes 2 --times 1 --how killed", _needs_namespaces),
    Benchmark("suspicion", "suspicion", "", "--hours 2"),
    Benchmark("snapshot", "snapshot", "", "--preset nano --strategies ddp --rounds 1"),
    Benchmark("copies", "copies", "", "--strategies ddp --rounds 2 --turn 3"),
    Benchmark("trainer", "trainer", "", _SMALL_TRAINER),
    Benchmark(
        "recovery_gpu",
        "recovery",
        "--device cuda --kills 5 --launchers ours torchrun-safe --programs trainer-ddp script-reentered",
        f"--device cuda {_A_KILL}",
        _needs_gpu,
    ),
    Benchmark("snapshot_gpu", "snapshot", "--device cuda", "--device cuda --preset 124m --rounds 1", _needs_gpu),
    Benchmark("trainer_gpu", "trainer", "--device cuda", _SMALL_TRAINER_GPU, _needs_gpu),
)


class BenchmarkFailed(Exception):
    """A benchmark printed no table, or did not end."""


def main() -> int:
    options = _parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the processes that were started
    chosen = [benchmark for benchmark in BENCHMARKS if benchmark.name in (options.only or [benchmark.name])]
    page = options.page or (None if options.quick else PAGE)
    failed = list(measure_all(chosen, page, quick=options.quick))
    if failed:
        print(f"failed, or missed a limit: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure_all(benchmarks: Iterable[Benchmark], page: Path | None, *, quick: bool) -> Iterator[str]:
    """Write or print each section as soon as it is measured. Yields the names of benchmarks that failed."""
    for benchmark in benchmarks:
        lacking = benchmark.missing()
        if lacking is not None:
            print(f"{benchmark.name}: skipped, {lacking}", file=sys.stderr, flush=True)
            continue
        try:
            kept, section = measure(benchmark.command(quick=quick))
        except BenchmarkFailed as error:
            print(f"{benchmark.name}: {error}", file=sys.stderr, flush=True)
            yield benchmark.name
            continue
        if page is None:
            print(f"## {benchmark.name}\n\n{section}\n", flush=True)
        else:
            page.write_text(replace_section(page.read_text(), benchmark.name, section))
        if not kept and not quick:
            yield benchmark.name


def measure(command: str) -> tuple[bool, str]:
    """Whether all limits were met, and the section. Raises BenchmarkFailed."""
    began, load, speed = time.monotonic(), os.getloadavg()[0], yardstick.measure()
    kept, tables = run(command)
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC in {time.monotonic() - began:.0f} s.",
        f"Load average {load:.1f} before and {os.getloadavg()[0]:.1f} after; "
        f"yardstick {speed['loop_s']} s and {speed['memory_s']} s.",
        f"Machine: {yardstick.describe_machine()}.",
        f"Versions: {yardstick.describe_versions()}.",
        *([] if kept else ["**A limit was missed.**"]),
        "",
        f"    python -m {command}",
        "",
        tables.strip(),
    ]
    return kept, "\n".join(lines)


def run(command: str) -> tuple[bool, str]:
    """Whether `python -m COMMAND` exited with 0, and the tables that it printed. Its stderr is passed through."""
    print(f"python -m {command}", file=sys.stderr, flush=True)
    path = os.pathsep.join(filter(None, (str(yardstick.ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        tables, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"{command} did not end within {_LIMIT_S:.0f} s") from None
    finally:
        _end(process)
    if not tables.strip():
        raise BenchmarkFailed(f"{command} ended with {process.returncode} and printed no table")
    return process.returncode == 0, tables


def _end(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the command, then SIGKILL to all processes of its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small runs, to check that everything works")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="the page to write; without --quick docs/benchmarks.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
