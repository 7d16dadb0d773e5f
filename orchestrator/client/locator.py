"""Find the address of the service: what the caller names comes before what a file says.

A client on the service's machine finds the address in `service.json` in the run directory. The file also names the
service's instance. The client sends that name with each request, so that another service that has taken over the port
refuses the request instead of running it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.client.errors import NoService
from orchestrator.client_settings import ClientSettings
from orchestrator.domain.errors import ConfigurationError
from orchestrator.wire.service import INSTANCE_HEADER, name_instance

SERVICE_FILE = "service.json"


@dataclass(frozen=True, slots=True)
class Address:
    """`instance`: the service that must answer; None: any service."""

    url: str
    instance: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.instance is None else {INSTANCE_HEADER: self.instance}


def find_url(settings: ClientSettings) -> str:
    """The service's address. Raises ConfigurationError, NoService."""
    return Locator(settings)().url


class Locator:
    """Finds the address before each call. While a service restarts, its file is missing; its last address counts."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._last: Address | None = None

    def __call__(self) -> Address:
        """The first of: the URL, the port, the run directory; each from the settings. Raises NoService."""
        settings, found = self._settings, read_address(self._settings.root)
        if settings.url:
            return Address(_checked(settings.url, "ORCHESTRATOR_URL"))
        if found is not None:
            found = Address(_checked(found.url, str(settings.root / SERVICE_FILE)), found.instance)
        self._last = found or self._last
        if "port" in settings.model_fields_set and settings.port:
            return self._at_port(found)
        if self._last is None:
            raise NoService(settings.root)
        return self._last

    def _at_port(self, found: Address | None) -> Address:
        settings = self._settings
        if found is not None and urlsplit(found.url).port == settings.port:
            return found
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(settings.host, settings.host)
        instance = found.instance if found is not None else name_instance(settings.root.expanduser().resolve())
        return Address(f"http://{host}:{settings.port}", instance if "root" in settings.model_fields_set else None)


def read_address(root: Path) -> Address | None:
    """What the service of this run directory wrote to its file; None without a valid file."""
    try:
        document = json.loads((root / SERVICE_FILE).read_text(encoding="utf-8"))
        instance = document.get("instance")
        return Address(str(document["url"]), instance if isinstance(instance, str) else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checked(url: str, origin: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(f"{origin} is {url!r}, must be like http://host:8700")
    return url.rstrip("/")
