"""The systemd units are valid and hardened, and start programs that exist."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import tomllib

from tests.deploy.settings import unknown_variables
from tests.deploy.tools import require_program

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("orchestrator*"))
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
_WORST_EXPOSURE = 25  # of `systemd-analyze security`, in tenths. Up to 49 is "OK"; a plain unit has 96


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = require_program("systemd-analyze", "Debian: apt-get install systemd")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, check=False)


def _parse(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return parser


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """/bin/true replaces our program, which is not installed here."""
    for unit in UNITS:
        text = re.sub(r"^(Exec\w+=)/opt/orchestrator/bin/orchestrator\b", r"\1/bin/true", unit.read_text(), flags=re.M)
        (tmp_path / unit.name).write_text(text)
    done = _analyze("verify", "--man=no", *(tmp_path / unit.name for unit in UNITS))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_reports_a_misspelled_setting(tmp_path: Path) -> None:
    (tmp_path / "wrong.service").write_text("[Service]\nExecStart=/bin/true\nProtectSistem=strict\n")
    done = _analyze("verify", "--man=no", tmp_path / "wrong.service")
    assert "ProtectSistem" in done.stdout + done.stderr


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_is_hardened(unit: Path) -> None:
    done = _analyze("security", "--offline=true", f"--threshold={_WORST_EXPOSURE}", "--no-pager", unit)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_starts_a_program_of_the_package(unit: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for program in re.findall(r"/opt/orchestrator/bin/(\S+)", unit.read_text()):
        assert program in scripts


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_variables_of_a_unit_are_settings(unit: Path) -> None:
    assert unknown_variables(unit.read_text()) == set()


def test_a_restart_of_the_service_does_not_end_its_jobs() -> None:
    """Local agents are in the unit's control group, so only the main process may be signalled."""
    service = _parse(ROOT / "deploy" / "systemd" / "orchestrator.service")["Service"]
    assert service["KillMode"] == "process"
    assert service["RemoveIPC"] == "no"
    assert service["Restart"] == "always"


def test_the_timer_starts_the_backup() -> None:
    assert {unit.stem for unit in UNITS if unit.suffix == ".timer"} <= {unit.stem for unit in SERVICES}
