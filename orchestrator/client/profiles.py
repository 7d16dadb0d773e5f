"""Profiles: the addresses and tokens of the services that a person uses, in a file that only its owner can read.

The file is `$XDG_CONFIG_HOME/orchestrator/profiles.toml`, by default below ~/.config. `orchestrator login` writes it;
the command line, the Python client's `connect` and the torchx plugin read it.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import tomllib

from orchestrator.client_settings import ClientSettings
from orchestrator.domain.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_OF_THIS_MACHINE = {"url", "root", "host", "port"}  # settings that name a service without a profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    url: str
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """`current` is the default profile."""

    current: str | None = None
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def with_profile(self, profile: Profile) -> Profiles:
        """Add or replace a profile, and make it the current one."""
        return Profiles(current=profile.name, by_name={**self.by_name, profile.name: profile})

    def without(self, name: str) -> Profiles:
        left = {known: profile for known, profile in self.by_name.items() if known != name}
        return Profiles(current=None if self.current == name else self.current, by_name=left)

    def using(self, name: str | None) -> Profiles:
        """Make a profile the current one, or none. Raises ConfigurationError for an unknown name."""
        if name is not None:
            self.named(name)
        return replace(self, current=name)

    def named(self, name: str) -> Profile:
        """Raises ConfigurationError."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none yet"
            raise ConfigurationError(
                f"there is no profile {name!r} (known: {known}); make one: orchestrator login URL --name {name}"
            )
        return self.by_name[name]


def choose_profile(settings: ClientSettings) -> Profile | None:
    """Return the profile that the settings name, or else the current one. Raises ConfigurationError.

    None if the settings name a service directly, or if no profile is current.
    """
    if settings.profile is not None:
        return read_profiles().named(settings.profile)
    if settings.model_fields_set & _OF_THIS_MACHINE:
        return None
    profiles = read_profiles()
    return None if profiles.current is None else profiles.named(profiles.current)


def check_name(name: str) -> str:
    """Raises ConfigurationError."""
    if not _NAME.match(name):
        raise ConfigurationError(f"a profile's name is {name!r}, must be letters, digits, '.', '_' and '-'")
    return name


def profiles_file() -> Path:
    """Return the file's path. An empty or relative XDG_CONFIG_HOME counts as none (XDG Base Directories)."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(given) if given.startswith("/") else Path.home() / ".config"
    return folder / "orchestrator" / "profiles.toml"


def read_profiles() -> Profiles:
    """Raises ConfigurationError for a file that cannot be parsed."""
    file = profiles_file()
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"the profiles in {file} cannot be read: {error}") from error
    try:
        tables = document.get("profiles", {})
        by_name = {name: Profile(name=name, url=str(of["url"]), token=of.get("token")) for name, of in tables.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{file}: a profile needs a url; sign in again: orchestrator login URL") from error
    return Profiles(current=document.get("current"), by_name=by_name)


def write_profiles(profiles: Profiles) -> Path:
    """Write the file atomically, readable only by its owner. Raises ConfigurationError."""
    file = profiles_file()
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(render_profiles(profiles))
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(f"the profiles cannot be written to {file}: {error.strerror or error}") from error
    return file


def render_profiles(profiles: Profiles) -> str:
    """Return the profiles as TOML."""
    lines = [] if profiles.current is None else [f"current = {_quoted(profiles.current)}"]
    for profile in profiles.by_name.values():
        lines += ["", f"[profiles.{_quoted(profile.name)}]", f"url = {_quoted(profile.url)}"]
        lines += [] if profile.token is None else [f"token = {_quoted(profile.token)}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(text: str) -> str:
    """Render as JSON. A JSON string is a TOML string, except for surrogate pairs, which `ensure_ascii=False` avoids."""
    return json.dumps(text, ensure_ascii=False)
