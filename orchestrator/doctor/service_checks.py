"""Check the service's own setup: its database, disk, clock and security.

The checks need no running service and change nothing. Each warning or failure says what to do.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from orchestrator.api.edge import LOOPBACK_HOSTS
from orchestrator.cluster_settings import KubernetesClusterSettings, LocalClusterSettings, SlurmClusterSettings
from orchestrator.doctor.finding import CheckResult, Finding, Verdict
from orchestrator.domain.access.identity import Role
from orchestrator.domain.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from orchestrator.settings import Settings
from orchestrator.store import schema
from orchestrator.store.dialect import store_time
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.token_store import TokenStore

SERVICE = "service"
_MAX_CLOCK_DIFFERENCE_S = 2.0  # leases and heartbeats depend on the clock
_GIB = 2**30
_LOW_SPACE, _CRITICAL_SPACE = 10 * _GIB, _GIB  # free bytes; a tenth of a small disk has no room for a snapshot
_LOW, _CRITICAL = 0.10, 0.03  # free fractions
_EXPIRES_SOON = timedelta(days=14)
_REACH_TIMEOUT_S = 5.0
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

Reach = Callable[[str], str | None]


def reach(url: str) -> str | None:
    """Return why no service answers at the URL, or None if one does."""
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/healthz", timeout=_REACH_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def examine_service(settings: Settings, *, reached: Reach = reach) -> Iterator[Finding]:
    results = [
        *_database(settings),
        *_folder(settings.root),
        *_running(settings.root),
        *_access(settings),
        *_tls(settings),
        *_secrets(settings),
        *_address(settings, reached),
        *_ports(settings),
    ]
    for check, verdict, sentence in results:
        yield Finding(cluster=SERVICE, check=check, verdict=verdict, sentence=sentence)


def _database(settings: Settings) -> Iterator[CheckResult]:
    url = settings.resolved_database_url
    file = sqlite_file(parse_url(url))
    if file is not None and not file.exists():
        yield "database", Verdict.OK, f"SQLite in {file}, created at the first start; it supports one service"
        return
    try:
        schema.check(url)
    except (SchemaMismatch, StoreUnavailable, ConfigurationError) as error:
        yield "database", Verdict.FAILED, str(error)
        return
    what = "PostgreSQL" if file is None else "SQLite; it supports one service, several need PostgreSQL"
    yield "database", Verdict.OK, f"it answers and its schema is current: {what}"
    if file is not None and file.stat().st_mode & 0o077:
        yield "database file", Verdict.WARNING, f"other users of this machine can read {file}: chmod 600 {file}"
    database = Database(url)
    try:
        yield _clock(database)
        yield from _leases(settings, database)
    except StoreUnavailable as error:
        yield "database", Verdict.FAILED, str(error)
    finally:
        database.dispose()


def _clock(database: Database) -> CheckResult:
    asked = datetime.now(UTC)
    with database.read() as session:
        database_time = store_time(session)
    answered = datetime.now(UTC)
    difference_s = max((asked - database_time).total_seconds(), (database_time - answered).total_seconds(), 0.0)
    if difference_s < _MAX_CLOCK_DIFFERENCE_S:
        return "clock", Verdict.OK, "this machine's clock agrees with the database's"
    advice = "run an NTP client (chronyd, systemd-timesyncd) on both"
    return "clock", Verdict.WARNING, f"this machine's clock and the database's differ by {difference_s:.1f} s: {advice}"


def _leases(settings: Settings, database: Database) -> Iterator[CheckResult]:
    standings = {standing.lease.cluster: standing for standing in SqlLeaseStore(database).leases()}
    for name in sorted(settings.clusters or {"local"}):
        found = standings.get(name)
        if found is None:
            yield (
                f"lease of {name}",
                Verdict.WARNING,
                "no service has supervised this cluster yet: start one with `orchestrator serve`",
            )
        elif found.expired:
            yield (
                f"lease of {name}",
                Verdict.WARNING,
                "no service supervises this cluster now: start one with `orchestrator serve`",
            )
        else:
            yield f"lease of {name}", Verdict.OK, f"held by {found.lease.holder}"
    for name in sorted(standings.keys() - set(settings.clusters or {"local"})):
        if not standings[name].expired:
            advice = "give all services the same [clusters] in orchestrator.toml"
            yield (
                f"lease of {name}",
                Verdict.WARNING,
                f"another service supervises it, but it is not configured here: {advice}",
            )


def _folder(root: Path) -> Iterator[CheckResult]:
    there = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield (
            "run directory",
            Verdict.FAILED,
            f"this user cannot write to {there}: chown it, or set ORCHESTRATOR_ROOT",
        )
        return
    if root.exists() and root.stat().st_mode & 0o002:
        yield "run directory", Verdict.FAILED, f"any user can write to {root} and impersonate a job: chmod o-w {root}"
    else:
        yield "run directory", Verdict.OK, f"{root} is writable"
        yield from _readers(root)
    yield judge_space(os.statvfs(there), there)


def _readers(root: Path) -> Iterator[CheckResult]:
    """Warn about a run directory that every user can read. The mode stays as it is, because it may be intended."""
    mode = root.stat().st_mode if root.exists() else 0
    if mode & 0o005:
        advice = f"chmod 700 {root}, or chgrp and chmod 750 to let one group read it"
        sentence = f"every user of this machine can read {root} and the unmasked logs in it: {advice}"
        yield "readers", Verdict.WARNING, sentence
    elif mode & 0o050:
        yield "readers", Verdict.OK, f"the group of {root} can read the unmasked logs in it"


def judge_space(disk: os.statvfs_result, path: Path) -> CheckResult:
    """Judge the free bytes, their fraction of the disk, and the fraction of the inodes."""
    if not disk.f_blocks:
        return "disk", Verdict.OK, f"{path} does not report its free space"
    space = disk.f_bavail * disk.f_frsize
    free, inodes = disk.f_bavail / disk.f_blocks, disk.f_favail / disk.f_files if disk.f_files else 1.0
    sentence = f"{space / _GIB:.1f} GiB ({free:.0%}) of the disk and {inodes:.0%} of its inodes are free at {path}"
    advice = "keep fewer snapshots (snapshot.keep), shorten [retention], or use a larger disk"
    if space < _CRITICAL_SPACE or inodes < _CRITICAL:
        return "disk", Verdict.FAILED, f"{sentence}: {advice}"
    if space < _LOW_SPACE or free < _CRITICAL or inodes < _LOW:
        return "disk", Verdict.WARNING, f"{sentence}: {advice}"
    return "disk", Verdict.OK, sentence


def _running(root: Path) -> Iterator[CheckResult]:
    own = importlib.metadata.version("elastic-orchestrator")
    try:
        document = json.loads((root / "service.json").read_text())
        version, url = str(document["version"]), str(document["url"])
    except (OSError, ValueError, KeyError, TypeError):
        yield "version", Verdict.OK, f"{own} is installed; no service uses this run directory"
        return
    if version == own:
        yield "version", Verdict.OK, f"{own} is installed and runs at {url}"
    else:
        yield "version", Verdict.WARNING, f"{own} is installed and {version} runs at {url}: restart the service"


def _access(settings: Settings) -> Iterator[CheckResult]:
    if settings.host in LOOPBACK_HOSTS:
        closed = settings.require_token or settings.token is not None or settings.proxy is not None
        rule = (
            "every user needs a token"
            if closed
            else "every user of it is trusted. On a shared machine set ORCHESTRATOR_REQUIRE_TOKEN"
        )
        yield "access", Verdict.OK, f"the service listens on this machine only; {rule}"
    elif settings.token is None and settings.proxy is None and not _has_admin(settings):
        advice = "set ORCHESTRATOR_TOKEN (`openssl rand -hex 32` creates one), or configure [proxy]"
        yield (
            "access",
            Verdict.FAILED,
            f"the service would listen on {settings.host}, but nobody could sign in: {advice}",
        )
    else:
        yield "access", Verdict.OK, f"the service listens on {settings.host}; every user needs a token"


def _has_admin(settings: Settings) -> bool:
    url = settings.resolved_database_url
    try:
        schema.check(url)
    except (SchemaMismatch, StoreUnavailable, ConfigurationError):
        return False
    database, now = Database(url), datetime.now(UTC)
    try:
        tokens = TokenStore(database).tokens()
        return any(token.principal().may_everywhere(Role.ADMIN) and token.lives(now) for token in tokens)
    except StoreUnavailable:
        return False
    finally:
        database.dispose()


def _tls(settings: Settings) -> Iterator[CheckResult]:
    if settings.tls_cert is None:
        if settings.host in LOOPBACK_HOSTS:
            yield "TLS", Verdict.OK, "not used; not needed on loopback"
        else:
            advice = "run it behind a TLS proxy (docs/deploy.md), or set ORCHESTRATOR_TLS_CERT and ORCHESTRATOR_TLS_KEY"
            yield "TLS", Verdict.WARNING, f"not used, so tokens are sent in clear text: {advice}"
        return
    try:
        certificate = x509.load_pem_x509_certificate(settings.tls_cert.read_bytes())
    except (OSError, ValueError) as error:
        yield "TLS", Verdict.FAILED, f"{settings.tls_cert} is not a certificate: {error}"
        return
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    until = f"the certificate is valid until {certificate.not_valid_after_utc:%Y-%m-%d}"
    if left <= timedelta():
        yield "TLS", Verdict.FAILED, f"{until}: renew it and restart the service"
    elif left < _EXPIRES_SOON:
        yield "TLS", Verdict.WARNING, f"{until}: renew it"
    else:
        yield "TLS", Verdict.OK, until


def _secrets(settings: Settings) -> Iterator[CheckResult]:
    """Check that only their owner can read the files that hold secrets."""
    if settings.secret_keys is not None:
        yield "keys", Verdict.OK, "the service's keys come from ORCHESTRATOR_SECRET_KEYS"
    else:
        yield _keys(settings)
    if settings.tls_key is not None:
        yield _private("TLS key", settings.tls_key, required=True)
    for name, webhook in sorted(settings.webhooks.items()):
        if webhook.secret_file is not None:
            yield _private(f"secret of {name}", webhook.secret_file, required=True)
    for name, cluster in sorted(settings.clusters.items()):
        token = cluster.rest_token_file if isinstance(cluster, SlurmClusterSettings) else None
        if token is not None and token.exists():  # the check of the cluster says if it is missing
            yield _private(f"token of {name}", token, required=True)


def _keys(settings: Settings) -> CheckResult:
    path = (settings.secret_key_file or settings.root / "secret.key").expanduser()
    for name, given in sorted(settings.clusters.items()):
        shared = given.service_root if isinstance(given, KubernetesClusterSettings) else None
        if shared is not None and path.resolve().is_relative_to(shared.resolve()):
            advice = "set ORCHESTRATOR_SECRET_KEYS instead"
            return "keys", Verdict.FAILED, f"the jobs of cluster {name} can read {path}: {advice}"
    return _private("keys", path, required=settings.secret_key_file is not None)


def _private(check: str, path: Path, *, required: bool) -> CheckResult:
    """Check that only its owner can read a file. Without `required`, the service creates a missing file."""
    path = path.expanduser()
    try:
        mode = path.stat().st_mode
    except OSError:
        if required:
            return check, Verdict.FAILED, f"{path} does not exist: the service does not start without it"
        return check, Verdict.OK, f"{path} is created at the first start"
    if mode & 0o077:
        return check, Verdict.FAILED, f"other users can read {path}: chmod 600 {path}"
    return check, Verdict.OK, f"only its owner can read {path}"


def _address(settings: Settings, reached: Reach) -> Iterator[CheckResult]:
    elsewhere = any(not isinstance(given, LocalClusterSettings) for given in settings.clusters.values())
    url = settings.advertise_url
    if url is None:
        yield "reports", Verdict.OK, "ORCHESTRATOR_ADVERTISE_URL is not set, so agents report through the run directory"
        return
    host = urlsplit(url).hostname or ""
    if elsewhere and host in LOOPBACK_HOSTS:
        advice = "set the address at which compute nodes reach this machine, or unset it"
        sentence = f"ORCHESTRATOR_ADVERTISE_URL is {url}, which on a compute node is the node itself: {advice}"
        yield "reports", Verdict.FAILED, sentence
        return
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        yield "reports", Verdict.FAILED, f"ORCHESTRATOR_ADVERTISE_URL is {url}, but {host} does not resolve: {error}"
        return
    why = reached(url)
    if why is None:
        yield "reports", Verdict.OK, f"a service answers at {url}"
    else:
        advice = "start the service, or check firewalls and proxies. Until then agents report through the run directory"
        yield "reports", Verdict.WARNING, f"no service answers at {url} ({why}): {advice}"


def _ports(settings: Settings) -> Iterator[CheckResult]:
    low, high = settings.rendezvous_ports
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return
    if low <= last and first <= high:
        advice = f"set ORCHESTRATOR_RENDEZVOUS_PORTS outside {first} to {last}"
        sentence = f"rendezvous ports {low} to {high} overlap the ephemeral range, so any program may get one: {advice}"
        yield "ports", Verdict.WARNING, sentence
    else:
        yield "ports", Verdict.OK, f"rendezvous ports {low} to {high} are outside the ephemeral range"
