"""Many callers who ask for the end of one huge log at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from orchestrator.client import Client
from tests.attacks.hostile import ADMIN, MIB, TOKEN, guarded, peak_bytes, reset_peak
from tests.jobs import python_job, running, until

pytestmark = pytest.mark.timeout(300)

CALLERS, LINES = 30, 9000


def test_thirty_tails_of_lines_beyond_ascii_fit_into_memory(tmp_path: Path) -> None:
    with guarded(tmp_path / "runs") as service, Client(service.url, token=TOKEN) as client:
        job = until(client, client.submit(python_job("import time; time.sleep(600)")).id, running).id
        folder = service.root / job / "attempts/1/replica-0/900/g1/local-0"
        folder.mkdir(parents=True)
        (folder / "log").write_text(("\U0001f600" * 1500 + "\n") * LINES)
        reset_peak(service.pid)

        def ask(_: int) -> int:
            return httpx.get(f"{service.url}/api/v1/jobs/{job}/logs?tail=10000", headers=ADMIN, timeout=200).status_code

        with ThreadPoolExecutor(CALLERS) as callers:
            assert set(callers.map(ask, range(CALLERS))) == {200}
        print(f"peak {peak_bytes(service.pid) // MIB} MiB")
        assert peak_bytes(service.pid) < 300 * MIB
