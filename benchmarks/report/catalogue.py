"""Every benchmark of this folder, with what `make bench` runs: one table. A new benchmark gets its entry here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.report import tables, training
from benchmarks.report.cells import Document
from benchmarks.report.machine import list_gpus
from benchmarks.report.training import RECOVERY_PROGRAMS
from deploy.dev.postgres import NoPostgres, find_binaries

Arguments = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """`name` is that of the section of the page, and of the module below `benchmarks` where `module` names no other.

    `full` and `quick` are command lines, run one after the other; each prints one JSON object. All of `quick` takes
    about a minute on two cores. `missing` says in a sentence what this machine lacks, None: nothing.
    """

    name: str
    render: Callable[[Sequence[Document]], list[str]]
    full: tuple[Arguments, ...]
    quick: tuple[Arguments, ...]
    missing: Callable[[], str | None] = lambda: None
    module: str | None = None

    @property
    def program(self) -> str:
        """The module that is run."""
        return self.module or self.name


def _needs_postgres() -> str | None:
    try:
        find_binaries()
    except NoPostgres as error:
        return str(error)
    return None


def _needs_namespaces() -> str | None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the program `ip`"
    return None


def _needs_gpu() -> str | None:
    return None if list_gpus() else "nvidia-smi names no GPU here"


def _each_program(*arguments: str) -> tuple[Arguments, ...]:
    return tuple(("--programs", program, *arguments) for program in RECOVERY_PROGRAMS)


BENCHMARKS = (
    Benchmark(name="startup", render=tables.render_startup, full=(("--runs", "10"),), quick=(("--runs", "1"),)),
    Benchmark(
        name="control_plane",
        render=tables.render_control_plane,
        full=(("--parts", "submissions", "reads", "reports", "passes"),),
        quick=(
            ("--parts", "submissions", "reads", "reports", "passes", "--jobs", "200", "--live", "50",
             "--submissions", "50", "--reads", "20", "--report-rounds", "1", "--paced-s", "2"),
        ),
        missing=_needs_postgres,
    ),
    Benchmark(
        name="followers",
        module="control_plane",
        render=tables.render_followers,
        full=(("--parts", "followers", "identity", "--jobs", "1000"),),
        quick=(
            ("--parts", "followers", "identity", "--jobs", "200", "--asked", "60", "--followers", "8",
             "--rounds", "1", "--paced-s", "2"),
        ),
        missing=_needs_postgres,
    ),
    Benchmark(
        name="slurm",
        render=tables.render_slurm,
        full=((),),
        quick=(("--jobs", "50", "--foreign", "2000", "--passes", "2"),),
    ),
    Benchmark(
        name="dashboard",
        render=tables.render_dashboard,
        full=((),),
        quick=(("--jobs", "500", "--steps", "500", "--pages", "8", "--polls", "5", "--paced-s", "4"),),
    ),
    Benchmark(
        name="recovery",
        render=training.render_recovery,
        full=_each_program("--kills", "30"),
        quick=_each_program("--kills", "1", "--steps-between", "3", "6", "--launchers", "ours", "torchrun-safe"),
    ),
    Benchmark(name="orphans", render=tables.render_orphans, full=(("--kills", "100"),), quick=(("--kills", "2"),)),
    Benchmark(
        name="nodes",
        render=tables.render_nodes,
        full=(("--nodes", "2", "--losses", "10"), ("--nodes", "3", "--losses", "10")),
        quick=(("--nodes", "2", "--losses", "1"),),
        missing=_needs_namespaces,
    ),
    Benchmark(
        name="snapshot",
        render=training.render_snapshot,
        full=((),),
        quick=(("--preset", "nano", "--strategies", "ddp", "--rounds", "1"),),
    ),
    Benchmark(
        name="trainer",
        render=training.render_trainer,
        full=((),),
        quick=(("--strategies", "ddp", "--global-batch", "2", "--seq-len", "32", "--rounds", "2", "--turn", "1"),),
    ),
    Benchmark(
        name="recovery_gpu",
        module="recovery",
        render=training.render_recovery,
        full=_each_program("--device", "cuda", "--kills", "20", "--launchers", "ours", "torchrun-safe"),
        quick=_each_program("--device", "cuda", "--kills", "1", "--steps-between", "12", "20", "--launchers", "ours"),
        missing=_needs_gpu,
    ),
    Benchmark(
        name="snapshot_gpu",
        module="snapshot",
        render=training.render_snapshot,
        full=(("--device", "cuda"),),
        quick=(("--device", "cuda", "--preset", "124m", "--rounds", "1"),),
        missing=_needs_gpu,
    ),
    Benchmark(
        name="trainer_gpu",
        module="trainer",
        render=training.render_trainer_gpu,
        full=tuple(("--device", "cuda", "--strategies", strategy) for strategy in ("plain", "ddp", "fsdp")),
        quick=(
            ("--device", "cuda", "--strategies", "ddp", "--preset", "124m", "--no-compile",
             "--rounds", "2", "--turn", "3"),
        ),
        missing=_needs_gpu,
    ),
    Benchmark(name="memory", render=tables.render_memory, full=((),), quick=(("--only", "1b sharded between steps"),)),
    Benchmark(
        name="simulate_ettr",
        render=tables.render_simulate_ettr,
        full=((),),
        quick=(("--seeds", "2", "--days", "5", "--jobs", "20"),),
    ),
)  # fmt: skip
