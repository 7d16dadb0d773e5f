"""Only `orchestrator.jobfolder` opens paths that a job owns. Modules that open others are listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import orchestrator

HERE = Path(orchestrator.__file__).parent
# By module or package: the paths that it opens itself, none of them below a job's folder.
OPENERS = {
    "jobfolder": "the folders of jobs, by descriptors",
    "cli": "files of whoever types the command",
    "client": "the same",
    "torchx_scheduler": "the same",
    "backends/kubernetes/kubeconfig.py": "the kubeconfig, and the service account's token",
    "backends/slurm/rest.py": "the token for slurmrestd",
    "backends/kubernetes/credentials.py": "the same",
    "backends/kubernetes/look_around.py": "runs in a pod",
    "backends/kubernetes/probe.py": "the text of look_around.py",
    "backends/local/backend.py": "the workdir, which it only looks at",
    "backends/local/client.py": "/proc",
    "backends/ship.py": "the workdir, which it only looks at",
    "backends/tree.py": "workdirs, by descriptors",
    "backends/torchx/client.py": "pipes, what torchx's runner prints, and a folder of its own",
    "backends/torchx/program.py": "runs in a process of its own",
    "backends/torchx/submissions.py": "the notes of submissions, in a folder of the service",
    "bootstrap": "the run directory itself, devices of this machine",
    "client_settings.py": "the configuration",
    "commands/submission.py": "paths that a spec names, which it only looks at",
    "commands/task_finder.py": "the same, in a process of its own",
    "dashboard/pages.py": "templates and assets",
    "doctor/doctor.py": "the run directory itself, which it removes where it made it and nothing is in it",
    "doctor/trial_group.py": "an empty working directory of its own",
    "doctor/service_checks.py": "files of the service",
    "identity/keys.py": "the key",
    "intake/watches.py": "the mounts of this machine",
    "settings.py": "the secrets of webhooks",
    "store": "the database, its backups, the mounts of this machine",
}
_METHODS = frozenset(
    """chmod exists glob hardlink_to is_dir is_file is_symlink iterdir lstat mkdir read_bytes read_text readlink rglob
    rmdir samefile stat symlink_to unlink write_bytes write_text""".split()  # noqa: SIM905
)
_MODULES = frozenset({"os", "shutil", "tempfile"})
_HARMLESS = frozenset(
    """access close environ fdopen fspath fsencode fsdecode geteuid getpid getppid getuid kill pidfd_open set_blocking
    sched_getaffinity strerror sysconf umask uname urandom which""".split()  # noqa: SIM905
)


def openings(path: Path) -> Iterator[str]:
    """Yield the calls in a module that open or list a path."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield "open"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _MODULES:
                if name not in _HARMLESS:
                    yield f"{module}.{name}"
            case ast.Attribute(attr="open") if node.args and _is_mode(node.args[0]):
                yield "Path.open"
            case ast.Attribute(attr=name) if name in _METHODS:
                yield f"Path.{name}"


def _is_mode(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and isinstance(argument.value, str)


def test_nobody_else_opens_a_path_that_a_job_owns() -> None:
    found = {}
    for path in sorted(HERE.rglob("*.py")):
        name = path.relative_to(HERE).as_posix()
        calls = sorted(set(openings(path)))
        if calls and not any(name == each or name.startswith(f"{each}/") for each in OPENERS):
            found[name] = calls
    assert found == {}


def test_whoever_is_listed_opens_something() -> None:
    for name in OPENERS:
        place = HERE / name
        modules = [place] if place.is_file() else list(place.rglob("*.py"))
        assert any(any(openings(path)) for path in modules), f"{name} opens nothing: remove it from the list"
