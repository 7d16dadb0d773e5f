"""The compose file: complete, hardened, and consistent with the image and the settings. It is not run here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml

from orchestrator.settings import Settings
from tests.deploy.settings import unknown_variables

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EACH = pytest.mark.parametrize("name", SERVICES)


@EACH
def test_a_container_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service.get("read_only") is True or service.get("network_mode") == "none"
    assert "privileged" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))


@EACH
def test_an_image_is_pinned(name: str) -> None:
    assert re.search(r":(\d+\.\d+(\.\d+)?[a-z0-9.-]*)$", SERVICES[name]["image"]), SERVICES[name]["image"]


@EACH
def test_everything_that_a_container_uses_is_declared(name: str) -> None:
    service = SERVICES[name]
    assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (FOLDER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source


def test_only_the_proxy_has_ports_and_the_database_is_internal() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    assert SERVICES["database"]["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_services_start_after_their_dependencies() -> None:
    def condition(service: str, needed: str) -> str:
        return str(SERVICES[service]["depends_on"][needed]["condition"])

    assert condition("upgrade", "database") == "service_healthy"
    assert condition("upgrade", "pgpass") == "service_completed_successfully"
    assert condition("orchestrator", "upgrade") == "service_completed_successfully"
    assert "healthcheck" in SERVICES["database"]
    assert SERVICES["upgrade"]["restart"] == "no"


def test_the_file_contains_no_password() -> None:
    url = SERVICES["orchestrator"]["environment"]["ORCHESTRATOR_DATABASE_URL"]
    assert re.fullmatch(r"postgresql://\w+@\w+:\d+/\w+", url)
    assert {".env", "secrets/"} <= set((FOLDER / ".gitignore").read_text().split())


def test_the_password_file_matches_the_database_url() -> None:
    url = re.fullmatch(
        r"postgresql://(\w+)@(\w+):(\d+)/(\w+)", SERVICES["orchestrator"]["environment"]["ORCHESTRATOR_DATABASE_URL"]
    )
    assert url is not None
    user, host, port, database = url.groups()
    assert f"{host}:{port}:{database}:{user}:%s" in SERVICES["pgpass"]["command"][-1]
    assert host in SERVICES
    assert SERVICES[host]["environment"]["POSTGRES_USER"] == user
    assert SERVICES[host]["environment"]["POSTGRES_DB"] == database


def test_the_build_uses_an_existing_dockerfile_and_its_arguments() -> None:
    build = SERVICES["orchestrator"]["build"]
    dockerfile = (FOLDER / build["context"] / build["dockerfile"]).resolve()
    assert dockerfile.is_relative_to(ROOT)
    declared = set(re.findall(r"^ARG (\w+)", dockerfile.read_text(), re.M))
    assert set(build["args"]) <= declared
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(build["args"]["EXTRAS"].split(",")) <= set(extras)


def test_variables_are_settings_and_the_example_has_the_required_ones() -> None:
    assert unknown_variables(FILE.read_text() + (FOLDER / "Caddyfile").read_text()) == set()
    needed = set(re.findall(r"\$\{(\w+):\?", FILE.read_text()))
    assert needed == set(re.findall(r"^(\w+)=", (FOLDER / "env.example").read_text(), re.M))


def test_the_settings_file_is_valid() -> None:
    settings = Settings.model_validate(tomllib.loads((FOLDER / "orchestrator.toml").read_text()))
    assert list(settings.clusters) == ["local"]
