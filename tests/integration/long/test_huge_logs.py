"""Reading many or long logs of a job takes neither the service's threads nor its memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.integration.hostile import ADMIN, MIB, PATIENCE_S, TOKEN, guarded, peak_bytes, reset_peak, withstanding
from tests.jobs import python_job, running, until


@dataclass(frozen=True)
class Ground:
    service: ThrowawayService
    logs: str  # the address
    formed: Path  # a folder for logs of a generation that no agent manages

    def plant(self, rank: int, size: int) -> Path:
        log = self.formed / f"local-{rank}" / "log"
        log.parent.mkdir(parents=True)
        log.touch()
        os.truncate(log, size)
        return log


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with guarded(tmp_path / "runs") as service, Client(service.url, token=TOKEN) as client:
        job = until(client, client.submit(python_job("import time; time.sleep(600)")).id, running).id
        formed = service.root / job / "attempts/1/replica-0/900/g1"
        yield Ground(service, f"{service.url}/api/v1/jobs/{job}/logs", formed)


def test_a_line_of_a_terabyte_does_not_block_threads(ground: Ground) -> None:
    """Fifty requests for its last lines once blocked every thread for minutes, even after the callers had gone."""
    ground.plant(0, 1 << 40)
    asked = [threading.Thread(target=_ask, args=(ground.logs, 5)) for _ in range(50)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join()
    httpx.get(f"{ground.service.url}/api/v1/jobs", headers=ADMIN, timeout=PATIENCE_S).raise_for_status()
    found = httpx.get(ground.logs, params={"tail": 5}, headers=ADMIN, timeout=PATIENCE_S)
    assert "cut" in found.text


def test_many_long_lines_do_not_fill_the_memory(ground: Ground) -> None:
    """One answer of 16 MB once took 1.6 GB."""
    for rank in range(1500):
        ground.plant(rank, 65536)
    with withstanding(ground.service, "1500 lines of 64 KiB"):
        answer = httpx.get(ground.logs, params={"tail": 10_000}, headers=ADMIN, timeout=2 * PATIENCE_S)
        assert answer.status_code == 200


def test_followed_logs_of_empty_lines_do_not_fill_the_memory(ground: Ground) -> None:
    logs = [ground.plant(rank, 0) for rank in range(16)]
    with (
        withstanding(ground.service, "64 MiB of empty lines"),
        httpx.stream("GET", ground.logs, params={"follow": True}, headers=ADMIN, timeout=PATIENCE_S) as answer,
    ):
        time.sleep(2)
        for log in logs:
            log.write_bytes(b"\n" * (4 << 20))
        received = 0
        for piece in answer.iter_bytes():
            received += len(piece)
            if received > 20_000_000:
                break


def test_unfinished_lines_of_many_logs_do_not_fill_the_memory(ground: Ground) -> None:
    for rank in range(4000):
        ground.plant(rank, 65536)
    with (
        withstanding(ground.service, "4000 lines without an end"),
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("GET", ground.logs, params={"follow": True}, headers=ADMIN, timeout=300) as answer,
    ):
        for _ in answer.iter_bytes():
            pass


def _ask(url: str, timeout_s: float) -> None:
    try:
        httpx.get(url, params={"tail": 10}, headers=ADMIN, timeout=timeout_s)
    except httpx.HTTPError:
        return


CALLERS, LINES = 30, 9000


@pytest.mark.timeout(300)
def test_thirty_tails_of_lines_beyond_ascii_do_not_fill_the_memory(tmp_path: Path) -> None:
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
