"""Decide from the settings which folders the service may copy for jobs. Its own files are always private."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.backends.kubernetes.kubeconfig import kubeconfigs
from orchestrator.bootstrap.identity import is_open
from orchestrator.client_settings import config_file
from orchestrator.cluster_settings import LocalClusterSettings
from orchestrator.domain.specs.workdir import WorkdirPolicy
from orchestrator.settings import Settings
from orchestrator.store.engine import parse_url, sqlite_file


def build_policy(settings: Settings) -> WorkdirPolicy:
    """Build the policy. Without the setting `workdirs`, an open service copies any folder, and one with tokens none."""
    allowed, config = settings.workdirs, config_file()
    if allowed is None and not is_open(settings):
        allowed = ()
    own: list[Path] = [*_own_files(settings)]
    left_out: list[Path] = []
    if config is not None:  # on an open service it often lies in the copied folder
        (left_out if allowed is None else own).append(config)
    return WorkdirPolicy(
        allowed=None if allowed is None else tuple(map(_resolve, allowed)),
        private=tuple(dict.fromkeys(map(_resolve, own))),
        left_out=tuple(map(_resolve, left_out)),
        home=_resolve(Path.home()),
    )


def _own_files(settings: Settings) -> Iterator[Path]:
    database = sqlite_file(parse_url(settings.resolved_database_url))
    if database is not None:
        yield from (database, database.with_name(f"{database.name}-wal"), database.with_name(f"{database.name}-shm"))
    named = (settings.secret_key_file, settings.tls_key, settings.tls_cert)
    hooks = (hook.secret_file for hook in settings.webhooks.values())
    yield from (settings.root, settings.root / "secret.key", *kubeconfigs())
    yield from (file for file in (*named, *hooks) if file is not None)
    for given in settings.clusters.values():
        if not isinstance(given, LocalClusterSettings):
            roots = given.service_root, given.root, getattr(given, "kubeconfig", None)
            yield from (root for root in roots if root is not None)


def _resolve(path: Path) -> Path:
    return path.expanduser().absolute().resolve()
