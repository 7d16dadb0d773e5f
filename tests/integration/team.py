"""A real service with tokens, on a Slurm whose commands are scripts, or on a fake Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.dev.service import ThrowawayService

ADMIN = "first-admin-0123456789abcdef"
Describe = Callable[[Path], str]  # the lines of `[clusters.team]`, by the folder of the test


@contextmanager
def team_service(folder: Path, cluster: str, *, workdirs: Path | None = None) -> Iterator[ThrowawayService]:
    """A service that requires tokens. Its run directory is folder/runs."""
    config = folder / "orchestrator.toml"
    config.write_text(f'[clusters.team]\nbackend = "{cluster}"\n' + _DESCRIBE[cluster](folder))
    settings = {"ORCHESTRATOR_CONFIG": str(config), "ORCHESTRATOR_TOKEN": ADMIN, "ORCHESTRATOR_POLL_S": "0.1"}
    if workdirs is not None:
        settings["ORCHESTRATOR_WORKDIRS"] = f'["{workdirs}"]'
    with _STARTED[cluster](folder), ThrowawayService(folder / "runs", settings) as service:
        yield service


def shared_root(folder: Path, cluster: str) -> Path:
    """The run directory of the cluster, as the service sees it."""
    return folder / "cluster" / "runs" if cluster == "kubernetes" else folder / "runs"


def _describe_slurm(folder: Path) -> str:
    """A Slurm that refuses every submission, after the service has copied what the job needs."""
    commands = folder / "bin"
    commands.mkdir()
    refuses = "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1"
    for name, text in {"sbatch": refuses, "squeue": "true", "sinfo": "true", "scancel": "true"}.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)
    return f'bin_dir = "{commands}"\nsettle_s = 0\npoll_s = 0.1\n'


def _describe_kubernetes(folder: Path) -> str:
    """A Kubernetes whose pods mount the folder cluster/runs."""
    runs = shared_root(folder, "kubernetes")
    return (
        f'kubeconfig = "{folder}/cluster/kubeconfig"\nimage = "trainer:1"\npython = "{sys.executable}"\n'
        f'service_root = "{runs}"\nhost_path = "{runs}"\nsettle_s = 0.5\npoll_s = 0.1\n'
    )


@contextmanager
def _nothing(_: Path) -> Iterator[None]:
    yield


@contextmanager
def _pretended(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.kubernetes.pretend", str(folder / "cluster")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"export KUBECONFIG=")
        try:
            yield
        finally:
            process.terminate()


_DESCRIBE: dict[str, Describe] = {"slurm": _describe_slurm, "kubernetes": _describe_kubernetes}
_STARTED = {"slurm": _nothing, "kubernetes": _pretended}
