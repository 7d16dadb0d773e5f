"""The bundled trainer with a real service: three kills of three kinds do not change the curve."""

from __future__ import annotations

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.e2e.long.test_main_job import at_step, curve, kill, training
from tests.jobs import ended, until

STEPS = 400


@pytest.mark.timeout(700)
def test_three_kills_do_not_change_the_curve(service: ThrowawayService, client: Client) -> None:
    # Enough long steps that training does not end before the last fault.
    spec = training(steps=STEPS, seq_len=128)
    calm = until(client, client.submit(spec).id, ended, timeout_s=300)
    job = client.submit(spec)
    at_step(client, job.id, 15)
    kill(service, only_rank=1)
    at_step(client, job.id, 30)
    service.kill()
    service.start()
    with Client(service.url) as again:
        at_step(again, job.id, 45)
        kill(service)
        done = until(again, job.id, ended, timeout_s=300)
        kinds = [event.kind for event in again.events(job.id)]
    assert (calm.state, done.state) == ("SUCCEEDED", "SUCCEEDED")
    assert done.attempts == 2
    assert "restart.in_place" in kinds
    assert kinds.count("restored") >= 2
    first, second = curve(service, calm), curve(service, done)
    assert sorted(first) == sorted(second) == list(range(1, STEPS + 1))
    assert max(abs(first[step] - second[step]) for step in first) <= 1e-6
