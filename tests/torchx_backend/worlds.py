"""Clusters of torchx's schedulers, for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.dev.crash_points.launcher import write_lean_python
from orchestrator.backends import ship
from orchestrator.backends.torchx.backend import TorchxBackend
from orchestrator.backends.torchx.client import TorchxClient
from orchestrator.backends.torchx.site import TorchxSite
from tests.contract.backends import RealWorld, site
from trainer.contract.node import HEAD, LOCAL

PLUGIN = Path(__file__).parent / "plugin"


def torchx_site(root: Path, scheduler: str, **cfg: object) -> TorchxSite:
    return TorchxSite(
        scheduler=scheduler,
        cfg=cfg,
        root=root,
        service_root=root,
        agent_dir=root / ship.agent_folder(ship.find_package()),
        python=sys.executable,
        settle_s=1.0,
    )


@contextmanager
def open_world(root: Path, scheduler: str, *, patience_s: float = 60, **cfg: object) -> Iterator[RealWorld]:
    root.mkdir(exist_ok=True)
    own = torchx_site(root, scheduler, **cfg)
    client = TorchxClient(scheduler, python=sys.executable, folder=root / ".torchx", timeout_s=60)
    backend = TorchxBackend(own, client, root / ".torchx" / "submissions", package=ship.find_package())
    given = site(
        root,
        python=str(write_lean_python(root)),
        child=str(own.agent_dir / "trainer" / "elastic" / "child.py"),
        rendezvous_host=HEAD,
        local_address=LOCAL,
    )
    try:
        yield RealWorld(root, backend, given, patience_s=patience_s)
    finally:
        backend.close()
