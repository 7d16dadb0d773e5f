"""Every benchmark, one after the other, and what they say into docs/benchmarks.md.

    python -m benchmarks [--only NAME ...] [--quick] [--page FILE]          # or: make bench ARGS="--only startup"

Each benchmark runs as a command of its own; when it has ended its section of the page is written, with the date, the
commands, the machine, the versions and the load. Other sections stay as they are, and so does the section of a
benchmark that breaks. --quick takes a minute or so for each, to see that everything works: its figures mean little, and
are printed instead of written unless --page is given.

Run it on a machine that does nothing else. Exit status 1: a benchmark broke or, without --quick, a limit was not kept.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report import machine
from benchmarks.report.catalogue import BENCHMARKS, Arguments, Benchmark
from benchmarks.report.running import BenchmarkBroke, Measured, run
from deploy.dev.sections import replace_section

Runner = Callable[[str, Arguments], Measured]
_PAGE = machine.ROOT / "docs" / "benchmarks.md"


def main() -> int:
    options = _parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with us
    chosen = [benchmark for benchmark in BENCHMARKS if benchmark.name in (options.only or [benchmark.name])]
    page = options.page or (None if options.quick else _PAGE)
    wrong = list(measure_all(chosen, page, quick=options.quick))
    if wrong:
        print(f"broken, or a limit was not kept: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def measure_all(
    benchmarks: Iterable[Benchmark], page: Path | None, *, quick: bool, runner: Runner = run
) -> Iterable[str]:
    """Write each section as soon as it is there, or print it. Gives the names of those that went wrong."""
    for benchmark in benchmarks:
        lacking = benchmark.missing()
        if lacking is not None:
            print(f"{benchmark.name}: left out, {lacking}", file=sys.stderr, flush=True)
            continue
        try:
            kept, section = measure(benchmark, benchmark.quick if quick else benchmark.full, runner)
        except BenchmarkBroke as error:
            print(f"{benchmark.name}: {error}", file=sys.stderr, flush=True)
            yield benchmark.name
            continue
        if page is None:
            print(f"## {benchmark.name}\n\n{section}\n", flush=True)
        else:
            page.write_text(replace_section(page.read_text(), benchmark.name, section))
        if not kept and not quick:
            yield benchmark.name


def measure(benchmark: Benchmark, commands: Sequence[Arguments], runner: Runner) -> tuple[bool, str]:
    """Whether all limits were kept, and the section. Raises BenchmarkBroke."""
    began, load, pace = time.monotonic(), machine.read_load(), machine.describe_pace()
    measured = [runner(benchmark.program, arguments) for arguments in commands]
    lasted_s, kept = time.monotonic() - began, all(each.kept for each in measured)
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC in {lasted_s:.0f} s.",
        f"Load average {load} before and {machine.read_load()} after; {pace}.",
        f"Machine: {machine.describe_machine()}.",
        f"Versions: {machine.describe_versions()}.",
        *([] if kept else ["**A limit was not kept.**"]),
        "",
        *(f"    {each.command}" for each in measured),
        "",
        *benchmark.render([each.document for each in measured]),
    ]
    return kept, "\n".join(lines)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small runs, to see that everything works")
    parser.add_argument("--page", type=Path, metavar="FILE", help="what is written; without --quick docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
