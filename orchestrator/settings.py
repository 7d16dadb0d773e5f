"""Settings: one frozen object from `orchestrator.toml` and the environment (which wins), read once at the edge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import tomllib
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.webhook import parse_key
from trainer.contract.failure import FailureKind, Pattern, parse_pattern


def _default_root() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "orchestrator"


class ProjectSettings(BaseModel):
    """`[projects.<name>]`: what one project may use of a cluster at one time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_jobs: Annotated[int, Field(ge=0)] | None = None
    max_devices: Annotated[int, Field(ge=0)] | None = None


class PatternSettings(BaseModel):
    """`[[failure_patterns]]`: what a worker's last output means. `text` is a regular expression."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=500)]
    kind: FailureKind

    def pattern(self) -> Pattern:
        return Pattern(text=self.text, kind=self.kind)

    @field_validator("text")
    @classmethod
    def _text_compiles(cls, value: str) -> str:
        parse_pattern({"text": value, "kind": FailureKind.UNKNOWN.value})
        return value


_OURS = "ORCHESTRATOR_"


class WebhookSettings(BaseModel):
    """`[webhooks.<name>]`: who is told of events. The secret stays outside: in a file or a variable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(max_length=2000)]
    secret_file: Path | None = None
    secret_env: str | None = None
    events: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(min_length=1)] = (
        "job.state",
    )
    all_jobs: bool = False

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or any(char.isspace() for char in value):
            raise ValueError("must be an http or https URL")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must hold no user and password: messages are signed")
        parts.port  # noqa: B018  # raises ValueError for one that is no number
        return value

    @field_validator("secret_env")
    @classmethod
    def _no_job_inherits_it(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(_OURS):
            raise ValueError(f"must begin with {_OURS}: jobs inherit every other variable of the service")
        return value

    @model_validator(mode="after")
    def _one_secret(self) -> WebhookSettings:
        if (self.secret_file is None) == (self.secret_env is None):
            raise ValueError("needs exactly one of secret_file and secret_env")
        return self

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def read_key(self) -> bytes:
        """Raises ConfigurationError, which never tells the secret."""
        if self.secret_env is not None:
            source, secret = f"variable {self.secret_env}", os.environ.get(self.secret_env)
            if secret is None:
                raise ConfigurationError(f"{source}, which is to hold a webhook's secret, is not set")
        else:
            assert self.secret_file is not None
            source = f"file {self.secret_file}"
            try:
                secret = self.secret_file.expanduser().read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{source}, which is to hold a webhook's secret: {error}") from None
        try:
            return parse_key(secret)
        except ValueError as error:
            raise ConfigurationError(f"{source} holds no good secret of a webhook: {error}") from None


WebhookName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")]


class Settings(BaseSettings):
    """Prefix of the environment variables: ORCHESTRATOR_. Times in seconds."""

    model_config = SettingsConfigDict(env_prefix=_OURS, frozen=True, extra="forbid")

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
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 10  # a service silent for so long loses its clusters to another
    node_cooldown_s: Annotated[float, Field(ge=0)] = 3600  # how long new attempts avoid a node after its first failure
    max_jobs: Annotated[int, Field(ge=1)] | None = None  # running at one time on the cluster
    projects: dict[str, ProjectSettings] = {}  # quotas, by project
    webhooks: dict[WebhookName, WebhookSettings] = {}
    failure_patterns: tuple[PatternSettings, ...] = ()  # consulted before the built-in table

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
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{_config_file()} is no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        if first["loc"][:1] == ("webhooks",):  # what was found may be a secret in the wrong place
            raise ConfigurationError(f"setting ORCHESTRATOR_{name}: {first['msg']}") from None
        raise ConfigurationError(f"setting ORCHESTRATOR_{name}: {first['msg']}, found {first['input']!r}") from error


def _config_file() -> Path | None:
    named = os.environ.get("ORCHESTRATOR_CONFIG")
    return Path(named) if named else None
