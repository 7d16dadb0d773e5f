"""`submit --preflight`: a preflight runs first, and nodes that fail it are excluded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import typer

from orchestrator.cli.clearing import clear
from orchestrator.cli.common import JOB_FAILED
from orchestrator.client import Client
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from tests.builders import make_spec
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, FakeService

GOOD = "preflight: ports ok: all\npreflight-node: n1 ok\npreflight-node: n2 ok\n"
N2_FAILS = "preflight: names fail: n2 is unknown\npreflight-node: n1 ok\npreflight-node: n2 fail: names\n"
N3_FAILS = "preflight: clocks fail: n3 is late\npreflight-node: n1 ok\npreflight-node: n3 fail: clocks\n"
NOBODY = "preflight: ports fail: n1 does not reach n2\npreflight-node: n1 ok\npreflight-node: n2 ok\n"
SPEC = make_spec(name="gpt", cluster="slurm", topology={"nodes": "2"}, placement={"exclude": ["n9"]})
Tries = Callable[[Sequence[str]], tuple[FakeService, Client]]


@pytest.fixture
def tries(service: FakeService) -> Iterator[Tries]:
    """Preflights that end with these logs, in order."""
    clients: list[Client] = []

    def build(logs: Sequence[str]) -> tuple[FakeService, Client]:
        left = list(logs)

        def end(path: str) -> None:
            if path.endswith("/logs"):
                service.log = left.pop(0)
            for job_id, job in list(service.jobs.items()):
                state = JobState.FAILED if left and " fail: " in left[0] else JobState.SUCCEEDED
                if path == f"/api/v1/jobs/{job_id}" and not job.ended:
                    service.add(job.model_copy(update={"state": state, "finished_at": AT}))

        service.before_answer = end
        clients.append(Client(f"http://127.0.0.1:{service.port}"))
        return service, clients[-1]

    yield build
    for each in clients:
        each.close()


def asked_to_avoid(service: FakeService) -> list[tuple[str, ...]]:
    return [JobSpec.model_validate(body).placement.exclude for body in service.bodies]


def test_a_passed_preflight_does_not_change_the_spec(tries: Tries) -> None:
    service, client = tries([GOOD])
    told: list[str] = []
    assert clear(client, SPEC, say=told.append) == SPEC
    assert asked_to_avoid(service) == [("n9",)]
    assert "node n2: ok" in told
    assert told[-1] == "preflight passed"


def test_failed_nodes_are_excluded_and_their_replacements_tested(tries: Tries) -> None:
    service, client = tries([N2_FAILS, N3_FAILS, GOOD])
    told: list[str] = []
    cleared = clear(client, SPEC, say=told.append)
    assert cleared.placement.exclude == ("n9", "n2", "n3")
    assert (cleared.name, cleared.run) == (SPEC.name, SPEC.run)
    assert asked_to_avoid(service) == [("n9",), ("n9", "n2"), ("n9", "n2", "n3")]
    assert "node n2: failed names" in told
    assert "trying again without n2" in told


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ([NOBODY], "nothing is submitted: no single node caused the failure"),
        ([N2_FAILS, N3_FAILS, N2_FAILS], "nothing is submitted: n2 failed as well"),
    ],
    ids=["nobody", "always another"],
)
def test_nothing_is_submitted_if_preflights_keep_failing(tries: Tries, logs: list[str], words: str) -> None:
    service, client = tries(logs)
    told: list[str] = []
    with pytest.raises(typer.Exit) as ended:
        clear(client, SPEC, say=told.append)
    assert ended.value.exit_code == JOB_FAILED
    assert told[-1] == words
    assert len(service.bodies) == len(logs)


def test_one_machine_has_no_other_node(tries: Tries) -> None:
    service, client = tries([N2_FAILS])
    service.inventory["clusters"] = [
        {"name": "slurm", "kind": "local", "answers": True, "detail": "", "max_jobs": None, "jobs": {}, "lease": None}
        | {"slots": {"used": 0, "total": 4, "free": 4}}
    ]
    told: list[str] = []
    with pytest.raises(typer.Exit):
        clear(client, SPEC, say=told.append)
    assert told[-1] == "nothing is submitted: cluster slurm has no other node"


def test_preflight_and_idempotency_key_cannot_be_combined(run: Run, service: FakeService) -> None:
    done = run("submit", "job.yaml", "--preflight", "--idempotency-key", "k")
    assert done.returncode == 2
    assert "cannot be combined" in done.stderr
    assert service.bodies == []
