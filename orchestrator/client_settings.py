"""Settings of a client: the service's address and a token. The service has these settings too, and many more.

A client reads only these, without the library that reads the service's, because every command waits for their import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomllib
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.field_rules import describe_rule

PREFIX = "ORCHESTRATOR_"
_CONFIDENTIAL = ("webhooks", "token", "secret_keys")


def _default_root() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "orchestrator"


Token = Annotated[SecretStr, Field(min_length=16, max_length=500)]


class ClientSettings(BaseModel):
    """Environment variables have the prefix ORCHESTRATOR_."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8700  # 0 means any free port; <root>/service.json names it
    root: Path = Field(default_factory=_default_root)  # the run directory
    url: str | None = None  # the service's URL, for clients
    profile: str | None = None  # a profile of `orchestrator login`, for clients; it wins over `url`
    token: Token | None = None  # the first admin's token, or the token that a client sends

    @field_validator("token", mode="before")
    @classmethod
    def _token_without_line_break(cls, value: object) -> object:
        """A file with CR LF line ends leaves a CR, which a header cannot contain."""
        return value.strip() if isinstance(value, str) else value


def use_profile(name: str) -> None:
    """Set the profile, which wins over the environment."""
    os.environ[f"{PREFIX}PROFILE"] = name


def load_client_settings() -> ClientSettings:
    """Read a client's settings from the environment and `orchestrator.toml`. The environment wins.

    Raises ConfigurationError that names the setting and what was found.
    """
    variables = {name.upper(): value for name, value in os.environ.items()}
    names = {f"{PREFIX}{field.upper()}": field for field in ClientSettings.model_fields}
    given = {field: variables[name] for name, field in names.items() if name in variables}
    try:
        return ClientSettings.model_validate({**_read_config(), **given})
    except ValidationError as error:
        raise why_invalid(error) from None


def _read_config() -> Mapping[str, Any]:
    file = config_file()
    try:
        return {} if file is None else tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None


def config_file() -> Path | None:
    """Return the file that ORCHESTRATOR_CONFIG names, or None."""
    named = os.environ.get(f"{PREFIX}CONFIG")
    return Path(named) if named else None


def why_invalid(error: ValidationError) -> ConfigurationError:
    """Return an error that names the first wrong setting, and the value unless it is a table or may be a secret."""
    first = error.errors()[0]
    is_hidden = isinstance(first["input"], Mapping) or (first["loc"] and first["loc"][0] in _CONFIDENTIAL)
    found = "" if is_hidden else f", found {first['input']!r}"
    return ConfigurationError(f"setting {_name_setting(first['loc'])}: {describe_rule(first)}{found}")


def _name_setting(loc: Sequence[int | str]) -> str:
    """Return the variable of a setting, or the path in the file for a field of a table (`clusters.gpu.root`)."""
    setting, *inner = map(str, loc or ("",))
    if not inner:
        return f"{PREFIX}{setting.upper()}"
    if setting == "clusters":
        del inner[1:2]  # pydantic adds the backend
    return ".".join([setting, *inner])
