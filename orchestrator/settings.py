"""Settings: one frozen object, read once from the environment and `orchestrator.toml`. The environment wins."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import tomllib
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from orchestrator.client_settings import PREFIX, ClientSettings, config_file, why_invalid
from orchestrator.cluster_settings import ClusterName, ClusterSettings
from orchestrator.domain.access.identity import Role
from orchestrator.domain.access.webhook import parse_key, why_no_endpoint
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.field_rules import COLLECTOR_URL, CURRENCY, GRANTED_PROJECT, HEADER_NAME, WEBHOOK_NAME
from trainer.contract.failure import FailureKind, Pattern, parse_pattern


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


class PriceSettings(BaseModel):
    """`[prices]`: the price of one device for one hour."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    currency: Annotated[str, Field(pattern=CURRENCY)] = "USD"  # ISO 4217
    device_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    clusters: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = {}  # other prices, by cluster


Days = Annotated[float, Field(ge=0, le=36500)] | Literal["never"]


class RetentionSettings(BaseModel):
    """`[retention]`: how many days the data of ended jobs is kept. docs/retention.md explains each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    logs_days: Days = 90
    metrics_days: Days = 365
    events_days: Days = 730
    snapshots_days: Days = "never"
    shipped_days: Days = 30
    deliveries_days: Days = 30


class WebhookSettings(BaseModel):
    """`[webhooks.<name>]`: a receiver of events. The secret is in a file or a variable."""

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
        reason = why_no_endpoint(value)
        if reason is not None:
            raise ValueError(reason)
        return value

    @field_validator("secret_env")
    @classmethod
    def _no_job_inherits_it(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(PREFIX):
            raise ValueError(f"must begin with {PREFIX}: jobs inherit every other variable of the service")
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
        """Return the signing key. Raises ConfigurationError, whose text never contains the secret."""
        if self.secret_env is not None:
            source, secret = f"variable {self.secret_env}", os.environ.get(self.secret_env)
            if secret is None:
                raise ConfigurationError(f"{source}, which should contain a webhook's secret, is not set")
        else:
            assert self.secret_file is not None
            source = f"file {self.secret_file}"
            try:
                secret = self.secret_file.expanduser().read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(
                    f"{source}, which should contain a webhook's secret, cannot be read: {error}"
                ) from None
        try:
            return parse_key(secret)
        except ValueError as error:
            raise ConfigurationError(f"{source} does not contain a valid webhook secret: {error}") from None


Grants = dict[Annotated[str, Field(pattern=GRANTED_PROJECT)], Role]
Peers = Annotated[tuple[IPvAnyNetwork, ...], Field(min_length=1)]


class ProxySettings(BaseModel):
    """`[proxy]`: a proxy that signs users in and names them in a header. docs/security.md explains each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header: Annotated[str, Field(pattern=HEADER_NAME)]
    peers: Peers  # addresses of the proxy; the header of any other peer is ignored
    grants: Grants = {}  # the roles of every user, by project
    users: dict[str, Grants] = {}  # additional roles, by user and project


CollectorUrl = Annotated[str, Field(pattern=COLLECTOR_URL)]
LogLevel = Literal["debug", "info", "warning", "error"]
Rate = Annotated[float, Field(gt=0)]
WebhookName = Annotated[str, Field(pattern=WEBHOOK_NAME)]


class Settings(ClientSettings, BaseSettings):
    """The service's settings, and a client's. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    database_url: str | None = None  # default: SQLite in the root
    advertise_url: str | None = None  # the service's URL for agents; default: agents report by the run directory
    local_slots: Annotated[int, Field(ge=1, le=100_000)] = Field(default_factory=lambda: max(2, os.cpu_count() or 2))
    rendezvous_ports: tuple[int, int] = (20000, 29999)  # inclusive; keep it outside the ephemeral range
    poll_s: Annotated[float, Field(gt=0, le=60)] = 0.5  # the time between two passes of the supervisor
    stop_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10  # an attempt that runs this long after a stop is killed
    log_level: LogLevel = "info"  # the level of the service's log; debug includes every request
    otlp_url: CollectorUrl | None = None  # the OTLP/HTTP collector for traces of jobs, without /v1/traces
    log_limit_mb: Annotated[float, Field(gt=0)] = 64  # the maximum size of one worker's log
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 10  # a lease that is not renewed expires after this time
    node_cooldown_s: Annotated[float, Field(ge=0)] = 3600  # how long new attempts avoid a node after its first failure
    max_jobs: Annotated[int, Field(ge=1)] | None = None  # how many jobs may run on a cluster at one time
    projects: dict[str, ProjectSettings] = {}  # quotas, by project
    prices: PriceSettings | None = None
    retention: RetentionSettings = RetentionSettings()
    webhooks: dict[WebhookName, WebhookSettings] = {}
    clusters: dict[ClusterName, ClusterSettings] = {}  # default: this machine, as `local`
    failure_patterns: tuple[PatternSettings, ...] = ()  # tried before the built-in table
    tls_cert: Path | None = None  # the certificate chain in PEM; with `tls_key`, the service uses TLS
    tls_key: Path | None = None
    require_token: bool = False  # whether callers on loopback need a token too
    requests_per_s: Rate | None = None  # the rate limit of one caller; default: 100, or 2000 if tokens are not required
    streams_per_caller: Annotated[int, Field(ge=1)] = 256  # how many log and event streams a caller may hold open
    allowed_hosts: tuple[str, ...] = ()  # host names of the service, without a port
    proxy: ProxySettings | None = None
    secret_keys: SecretStr | None = None  # keys for secrets, separated by commas; the first encrypts, all decrypt
    secret_key_file: Path | None = None  # a file with one key in each line; default: created in the root
    workdirs: tuple[Path, ...] | None = None  # folders from which `run.workdir` may be copied; default: see security.md
    private_storage_hosts: tuple[str, ...] = ()  # private hosts that a job's URLs may name

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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())


def load_settings(config: Path | None = None) -> Settings:
    """Read the settings. Raises ConfigurationError that names the setting and what was found."""
    if config is not None:
        if not config.is_file():
            raise ConfigurationError(f"no configuration file at {config}")
        os.environ["ORCHESTRATOR_CONFIG"] = str(config)
    try:
        return Settings()
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config_file()} is not valid TOML: {error}") from error
    except SettingsError as error:
        named = _FIELD.search(str(error))
        name = "" if named is None else f" ORCHESTRATOR_{named[1].upper()}"
        raise ConfigurationError(
            f"setting{name}: a list or a table in a variable is written as JSON, such as '[\"a\"]'"
        ) from None
    except ValidationError as error:
        raise why_invalid(error) from None


_FIELD = re.compile(r'field "(\w+)"')
