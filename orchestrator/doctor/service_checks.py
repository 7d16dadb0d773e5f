"""Looks whether the service itself is set up well: its database, its disk, its clock, and what is unsafe.

It needs no running service, changes nothing and leaves nothing behind. Each sentence that is not good says what to do.
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
from orchestrator.cluster_settings import KubernetesClusterSettings, LocalClusterSettings
from orchestrator.doctor.finding import Finding, Verdict, Word
from orchestrator.domain.access.identity import Role
from orchestrator.domain.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from orchestrator.settings import Settings
from orchestrator.store import schema
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.store_clock import store_time
from orchestrator.store.token_store import TokenStore

SERVICE = "service"
_CLOCKS_S = 2.0  # leases and agents' times are compared with it
_SCARCE, _SHORT = 0.10, 0.03  # of a disk
_EXPIRES_SOON = timedelta(days=14)
_REACH_S = 5.0
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

Reach = Callable[[str], str | None]


def reach(url: str) -> str | None:
    """Why no service answers there; None: one does."""
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/healthz", timeout=_REACH_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def examine_service(settings: Settings, *, reached: Reach = reach) -> Iterator[Finding]:
    words = [
        *_database(settings),
        *_folder(settings.root),
        *_running(settings.root),
        *_access(settings),
        *_tls(settings),
        *_secrets(settings),
        *_address(settings, reached),
        *_ports(settings),
    ]
    for check, verdict, sentence in words:
        yield Finding(cluster=SERVICE, check=check, verdict=verdict, sentence=sentence)


def _database(settings: Settings) -> Iterator[Word]:
    url = settings.resolved_database_url
    file = sqlite_file(parse_url(url))
    if file is not None and not file.exists():
        yield "database", Verdict.OK, f"SQLite in {file}, made at the first start; it serves one service"
        return
    try:
        schema.check(url)
    except (SchemaMismatch, StoreUnavailable, ConfigurationError) as error:
        yield "database", Verdict.FAILED, str(error)
        return
    what = "PostgreSQL" if file is None else "SQLite; it serves one service, two need PostgreSQL"
    yield "database", Verdict.OK, f"answers, and its tables are of this version: {what}"
    if file is not None and file.stat().st_mode & 0o077:
        yield "database file", Verdict.WARNING, f"other users of this machine may read {file}: chmod 600 {file}"
    database = Database(url)
    try:
        yield _clock(database)
        yield from _leases(settings, database)
    except StoreUnavailable as error:
        yield "database", Verdict.FAILED, str(error)
    finally:
        database.dispose()


def _clock(database: Database) -> Word:
    asked = datetime.now(UTC)
    with database.read() as session:
        theirs = store_time(session)
    answered = datetime.now(UTC)
    differ_s = max((asked - theirs).total_seconds(), (theirs - answered).total_seconds(), 0.0)
    if differ_s < _CLOCKS_S:
        return "clock", Verdict.OK, "this machine's clock agrees with the database's"
    advice = "let both run an NTP client (chronyd, systemd-timesyncd)"
    return "clock", Verdict.WARNING, f"this machine's clock and the database's differ by {differ_s:.1f} s: {advice}"


def _leases(settings: Settings, database: Database) -> Iterator[Word]:
    standings = {standing.lease.cluster: standing for standing in SqlLeaseStore(database).leases()}
    for name in sorted(settings.clusters or {"local"}):
        found = standings.get(name)
        if found is None:
            yield f"lease of {name}", Verdict.WARNING, "no service has ever supervised it: orchestrator serve"
        elif found.expired:
            yield f"lease of {name}", Verdict.WARNING, "no service supervises it now: orchestrator serve"
        else:
            yield f"lease of {name}", Verdict.OK, f"held by {found.lease.holder}"
    for name in sorted(standings.keys() - set(settings.clusters or {"local"})):
        if not standings[name].expired:
            advice = "its service has another orchestrator.toml: let all of them have the same [clusters]"
            yield f"lease of {name}", Verdict.WARNING, f"is supervised and not configured here; {advice}"


def _folder(root: Path) -> Iterator[Word]:
    there = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield (
            "run directory",
            Verdict.FAILED,
            f"{there} cannot be written by this user: chown it, or set ORCHESTRATOR_ROOT",
        )
        return
    if root.exists() and root.stat().st_mode & 0o002:
        yield "run directory", Verdict.FAILED, f"everybody may write into {root}, and pass for a job: chmod o-w {root}"
    else:
        yield "run directory", Verdict.OK, f"{root} can be written"
        yield from _readers(root)
    yield judge_space(os.statvfs(there), there)


def _readers(root: Path) -> Iterator[Word]:
    """Warn about a run directory that every user can read. It is not changed: this may be on purpose."""
    mode = root.stat().st_mode if root.exists() else 0
    if mode & 0o005:
        advice = f"chmod 700 {root}, or chgrp and chmod 750 to let one group read it"
        yield (
            "readers",
            Verdict.WARNING,
            f"every user of this machine can read {root} and the unmasked logs in it: {advice}",
        )
    elif mode & 0o050:
        yield "readers", Verdict.OK, f"the group of {root} can read the unmasked logs in it"


def judge_space(disk: os.statvfs_result, path: Path) -> Word:
    """Of bytes and of inodes the scarcer."""
    free = disk.f_bavail / disk.f_blocks if disk.f_blocks else 1.0
    inodes = disk.f_favail / disk.f_files if disk.f_files else 1.0
    what = f"{free:.0%} of the disk and {inodes:.0%} of its inodes are free at {path}"
    advice = "free some: fewer snapshots (snapshot.keep), shorter [retention], or a larger disk"
    scarcer = min(free, inodes)
    if scarcer < _SHORT:
        return "disk", Verdict.FAILED, f"{what}: {advice}"
    return ("disk", Verdict.WARNING, f"{what}: {advice}") if scarcer < _SCARCE else ("disk", Verdict.OK, what)


def _running(root: Path) -> Iterator[Word]:
    own = importlib.metadata.version("elastic-orchestrator")
    try:
        document = json.loads((root / "service.json").read_text())
        version, url = str(document["version"]), str(document["url"])
    except (OSError, ValueError, KeyError, TypeError):
        yield "version", Verdict.OK, f"{own} is installed; no service runs on this run directory"
        return
    if version == own:
        yield "version", Verdict.OK, f"{own} is installed and runs at {url}"
    else:
        yield "version", Verdict.WARNING, f"{own} is installed and {version} runs at {url}: restart the service"


def _access(settings: Settings) -> Iterator[Word]:
    if settings.host in LOOPBACK_HOSTS:
        closed = settings.require_token or settings.token is not None or settings.proxy is not None
        who = (
            "needs a token"
            if closed
            else "is trusted: set ORCHESTRATOR_REQUIRE_TOKEN where several people have accounts"
        )
        yield "access", Verdict.OK, f"listens on this machine alone, and whoever is on it {who}"
    elif settings.token is None and settings.proxy is None and not _has_admin(settings):
        advice = "set ORCHESTRATOR_TOKEN (`openssl rand -hex 32` makes one), or name a proxy in [proxy]"
        yield "access", Verdict.FAILED, f"it would listen on {settings.host} and nobody could sign in: {advice}"
    else:
        yield "access", Verdict.OK, f"listens on {settings.host}, and everybody needs a token"


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


def _tls(settings: Settings) -> Iterator[Word]:
    if settings.tls_cert is None:
        if settings.host in LOOPBACK_HOSTS:
            yield "TLS", Verdict.OK, "none, and none is needed on loopback"
        else:
            advice = "put a proxy with TLS in front (docs/deploy.md), or set ORCHESTRATOR_TLS_CERT and _TLS_KEY"
            yield "TLS", Verdict.WARNING, f"none: tokens travel in clear; {advice}"
        return
    try:
        certificate = x509.load_pem_x509_certificate(settings.tls_cert.read_bytes())
    except (OSError, ValueError) as error:
        yield "TLS", Verdict.FAILED, f"{settings.tls_cert} is no certificate: {error}"
        return
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    until = f"the certificate is good until {certificate.not_valid_after_utc:%Y-%m-%d}"
    if left <= timedelta():
        yield "TLS", Verdict.FAILED, f"{until}: renew it and restart the service"
    else:
        yield (
            "TLS",
            Verdict.WARNING if left < _EXPIRES_SOON else Verdict.OK,
            f"{until}{': renew it' * (left < _EXPIRES_SOON)}",
        )


def _secrets(settings: Settings) -> Iterator[Word]:
    """Files that hold what others must not read."""
    if settings.secret_keys is not None:
        yield "keys", Verdict.OK, "the service's keys come from ORCHESTRATOR_SECRET_KEYS"
    else:
        yield _keys(settings)
    if settings.tls_key is not None:
        yield _private("TLS key", settings.tls_key, "is not there: the service does not start")
    for name, webhook in sorted(settings.webhooks.items()):
        if webhook.secret_file is not None:
            yield _private(f"secret of {name}", webhook.secret_file, "is not there: the service does not start")


def _keys(settings: Settings) -> Word:
    path = (settings.secret_key_file or settings.root / "secret.key").expanduser()
    for name, given in sorted(settings.clusters.items()):
        shared = given.service_root if isinstance(given, KubernetesClusterSettings) else None
        if shared is not None and path.resolve().is_relative_to(shared.resolve()):
            advice = "put the keys into ORCHESTRATOR_SECRET_KEYS"
            return "keys", Verdict.FAILED, f"{path} lies where the jobs of cluster {name} can read it: {advice}"
    absent = (
        "is made at the first start" if settings.secret_key_file is None else "is not there: the service does not start"
    )
    return _private("keys", path, absent)


def _private(check: str, path: Path, absent: str) -> Word:
    path = path.expanduser()
    try:
        mode = path.stat().st_mode
    except OSError:
        return check, Verdict.FAILED if "does not start" in absent else Verdict.OK, f"{path} {absent}"
    if mode & 0o077:
        return check, Verdict.FAILED, f"others may read {path}: chmod 600 {path}"
    return check, Verdict.OK, f"{path} is readable by its owner alone"


def _address(settings: Settings, reached: Reach) -> Iterator[Word]:
    elsewhere = any(not isinstance(given, LocalClusterSettings) for given in settings.clusters.values())
    url = settings.advertise_url
    if url is None:
        yield "reports", Verdict.OK, "no ORCHESTRATOR_ADVERTISE_URL: agents report through the run directory"
        return
    host = urlsplit(url).hostname or ""
    if elsewhere and host in LOOPBACK_HOSTS:
        advice = "name the address by which compute nodes reach this machine, or leave it out"
        yield (
            "reports",
            Verdict.FAILED,
            f"ORCHESTRATOR_ADVERTISE_URL is {url}, which on a node is the node itself: {advice}",
        )
        return
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        yield (
            "reports",
            Verdict.FAILED,
            f"ORCHESTRATOR_ADVERTISE_URL is {url}, and {host} is no known name ({error}): correct it",
        )
        return
    why = reached(url)
    if why is None:
        yield "reports", Verdict.OK, f"a service answers at {url}"
    else:
        advice = "start the service, or see what is between (a firewall, a proxy); meanwhile agents report by files"
        yield "reports", Verdict.WARNING, f"no service answers at {url} ({why}): {advice}"


def _ports(settings: Settings) -> Iterator[Word]:
    low, high = settings.rendezvous_ports
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return
    if low <= last and first <= high:
        advice = f"set ORCHESTRATOR_RENDEZVOUS_PORTS outside of {first} to {last}"
        yield (
            "ports",
            Verdict.WARNING,
            f"rendezvous ports {low} to {high} are ones that any program may be given: {advice}",
        )
    else:
        yield "ports", Verdict.OK, f"rendezvous ports {low} to {high} are outside the ephemeral range"
