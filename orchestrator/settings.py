"""Settings: one frozen object from `orchestrator.toml` and the environment (which wins), read once at the edge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from orchestrator.domain.errors import ConfigurationError


def _default_root() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "orchestrator"


class Settings(BaseSettings):
    """Prefix of the environment variables: ORCHESTRATOR_. Times in seconds."""

    model_config = SettingsConfigDict(env_prefix="ORCHESTRATOR_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8700  # 0: any free one, written to <root>/service.json
    root: Path = Field(default_factory=_default_root)  # the run directory
    database_url: str | None = None  # default: SQLite in the root
    url: str | None = None  # for clients: where the service is
    advertise_url: str | None = None  # how agents reach the service; without it they report through the run directory
    local_slots: Annotated[int, Field(ge=1, le=100_000)] = Field(default_factory=lambda: max(2, os.cpu_count() or 2))
    rendezvous_ports: tuple[int, int] = (20000, 29999)  # both included; keep it outside the ephemeral range
    poll_s: Annotated[float, Field(gt=0, le=60)] = 0.5  # between two passes of the supervisor
    stop_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10  # from asking an attempt to end to forcing it
    log_limit_mb: Annotated[float, Field(gt=0)] = 64  # of one worker's log

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.root.resolve() / 'orchestrator.db'}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _config_file())


def load_settings(config: Path | None = None) -> Settings:
    """Read the settings. Raises ConfigurationError that names the setting and what was found."""
    if config is not None:
        if not config.is_file():
            raise ConfigurationError(f"no configuration file at {config}")
        os.environ["ORCHESTRATOR_CONFIG"] = str(config)
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"setting ORCHESTRATOR_{name}: {first['msg']}, found {first['input']!r}") from error


def _config_file() -> Path | None:
    named = os.environ.get("ORCHESTRATOR_CONFIG")
    return Path(named) if named else None
