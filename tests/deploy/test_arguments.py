"""No secret is passed as an argument, since every user of a machine can read command lines."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from orchestrator.cli.main import COMMANDS, build_app

ROOT = Path(__file__).parents[2]
PASSWORD = "hunter2-hunter2"
UNIT = ROOT / "deploy" / "systemd" / "orchestrator-backup.service"
# A variable that the shell expands in a command's arguments. compose writes `$` as `$$`.
_EXPANDED = re.compile(r"\$\{?(?:[A-Z_]*(?:URL|TOKEN|SECRET|PASSWORD|KEYS?))\b")
_RECORDS = f"""#!{sys.executable}
import json, os, pathlib
lines, pid = [], os.getpid()
while pid > 1:
    status = pathlib.Path(f"/proc/{{pid}}/stat").read_text()
    lines.append(pathlib.Path(f"/proc/{{pid}}/cmdline").read_bytes().decode().replace(chr(0), " "))
    pid = int(status.rpartition(")")[2].split()[1])
pathlib.Path("recorded").write_text(json.dumps({{"lines": lines, "password": os.environ.get("PGPASSWORD")}}))
pathlib.Path(".part").touch()
"""


def exec_line(unit: Path) -> str:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.read_string(unit.read_text())
    return parser["Service"]["ExecStart"].replace("%%", "%")


@pytest.mark.long
@pytest.mark.parametrize("form", ["service:{}@db.example/orchestrator", "service@db.example/orchestrator?password={}"])
def test_the_backup_hides_the_database_password(tmp_path: Path, form: str) -> None:
    (tmp_path / "pg_dump").write_text(_RECORDS)
    (tmp_path / "pg_dump").chmod(0o755)
    line = exec_line(UNIT).replace("/opt/orchestrator/bin/orchestrator", f"{sys.executable} -m orchestrator.cli")
    subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STATE_DIRECTORY": str(tmp_path),
            "ORCHESTRATOR_ROOT": str(tmp_path / "root"),
            "ORCHESTRATOR_DATABASE_URL": f"postgresql://{form.format(PASSWORD)}",
        },
        check=True,
        timeout=240,
    )
    recorded = json.loads((tmp_path / "recorded").read_text())
    assert recorded["password"] == PASSWORD
    assert [line for line in recorded["lines"] if PASSWORD in line] == []
    assert len(list(tmp_path.glob("orchestrator-*.dump"))) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "url",
    ["postgresql://service:{}@db.example/orchestrator", "postgresql://service@db.example/orchestrator?password={}"],
)
def test_a_password_in_an_argument_is_refused_and_not_printed(tmp_path: Path, url: str) -> None:
    command = [sys.executable, "-m", "orchestrator.cli", "db", "check"]
    given = url.format(PASSWORD)
    environment = {"PATH": os.environ["PATH"], "ORCHESTRATOR_ROOT": str(tmp_path)}

    def printed(*more: str, **variables: str) -> str:
        done = subprocess.run(
            [*command, *more], env={**environment, **variables}, cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        assert done.returncode != 0
        return done.stdout + done.stderr

    refused = printed("--database-url", given)
    assert "PGPASSFILE" in refused
    assert PASSWORD not in refused + printed(ORCHESTRATOR_DATABASE_URL=given)


@pytest.mark.parametrize("unit", sorted((ROOT / "deploy" / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_no_unit_puts_a_secret_into_arguments(unit: Path) -> None:
    lines = [line for line in unit.read_text().splitlines() if line.startswith("Exec")]
    assert lines
    assert [line for line in lines if _EXPANDED.search(line)] == []


def test_no_container_gets_a_secret_as_an_argument() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        words = json.dumps([service.get("command"), service.get("entrypoint"), service.get("healthcheck")])
        assert not _EXPANDED.search(words), name
    for file in (ROOT / "deploy" / "docker").glob("*.Dockerfile"):
        shown = [
            line for line in file.read_text().splitlines() if line.startswith(("ENTRYPOINT", "CMD", "HEALTHCHECK"))
        ]
        assert not _EXPANDED.search("\n".join(shown)), file.name
    for document in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "manifests.yaml").read_text()):
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*pod.get("containers", ()), *pod.get("initContainers", ())):
            assert "$(" not in json.dumps([container.get("args"), container.get("command")])


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Commands prompt for a secret, or read it from a pipe or a variable."""
    command = typer.main.get_command(build_app(list(COMMANDS)))
    pending = [command]
    while pending:
        each = pending.pop()
        pending.extend(getattr(each, "commands", {}).values())
        options = [each for each in each.params if each.param_type_name == "option" and not each.is_flag]  # type: ignore[attr-defined]
        named = {name for option in options for name in option.opts}
        assert not named & {"--token", "--secret", "--password", "--value", "--key"}, each.name
