"""The process of torchx's runner: it may be slow, die, or lack torchx."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from torchx.specs import AppDef

from orchestrator.backends.torchx.client import AppStatus, TorchxClient
from orchestrator.backends.torchx.render import render_app
from orchestrator.domain.errors import BackendUnavailable
from tests.torchx_backend.worlds import open_world, torchx_site

# It answers as program.py does, with the delay that the name of the app says.
_ANSWERS = """\
import json, os, sys, time
answers = os.fdopen(int(sys.argv[3]), "w")
for line in sys.stdin:
    request = json.loads(line)
    app = request["app"] if request["call"] == "look" else request.get("cfg", {}).get("delay", "0")
    if app == "end":
        sys.exit(3)
    time.sleep(float(app))
    seen = {"state": "RUNNING", "words": str(os.getpid())}
    value = seen if request["call"] == "look" else "app-7"
    print(json.dumps({"id": request["id"], "value": value}), file=answers, flush=True)
"""


@pytest.fixture
def open_client(tmp_path: Path) -> Callable[..., TorchxClient]:
    def open_client(code: str, timeout_s: float = 60) -> TorchxClient:
        script, program = tmp_path / "answers.py", tmp_path / "python-other"
        script.write_text(code)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
        program.chmod(0o755)
        return TorchxClient("any", python=str(program), folder=tmp_path / "runner", timeout_s=timeout_s)

    return open_client


def test_a_late_answer_is_not_taken_for_that_of_the_next_call(open_client: Callable[..., TorchxClient]) -> None:
    client = open_client(_ANSWERS, 0.5)
    with pytest.raises(BackendUnavailable, match="has not answered for"):
        client.look("1.5")
    found = None
    while found is None:
        with suppress(BackendUnavailable):
            found = client.look("0")
    assert isinstance(found, AppStatus)
    client.close()


def test_the_app_of_a_submission_that_was_answered_too_late_is_known_later(
    open_client: Callable[..., TorchxClient],
) -> None:
    client = open_client(_ANSWERS, 0.5)
    with pytest.raises(BackendUnavailable, match="has not answered for"):
        client.submit(AppDef(name="slow"), {"delay": "1.5"}, tag="mine")
    late: Mapping[str, str] = {}
    while not late:
        with suppress(BackendUnavailable):
            client.look("0")
        late = client.take_late()
    assert (late, client.take_late()) == ({"mine": "app-7"}, {})
    client.close()


def test_a_stopped_runner_blocks_nobody_for_longer_than_the_limit(open_client: Callable[..., TorchxClient]) -> None:
    """A request that is larger than the pipe cannot be written."""
    client = open_client("import time; time.sleep(600)", 0.5)
    with pytest.raises(BackendUnavailable, match="has not answered for"):
        client.look("0" * 500_000)
    with pytest.raises(BackendUnavailable, match="has not answered for"):
        client.schedulers()
    assert client._runner is not None
    client._runner.process.kill()
    client.close()


def test_a_process_that_has_ended_is_started_again(open_client: Callable[..., TorchxClient]) -> None:
    client = open_client(_ANSWERS)
    first = client.look("0")
    with pytest.raises(BackendUnavailable, match="runner failed: exit status 3"):
        client.look("end")
    second = client.look("0")
    assert first is not None
    assert second is not None
    assert first.words != second.words
    client.close()


def test_a_python_without_torchx_is_named(tmp_path: Path) -> None:
    client = TorchxClient("any", python="/nowhere/python", folder=tmp_path / "runner", timeout_s=60)
    with pytest.raises(BackendUnavailable, match="/nowhere/python"):
        client.schedulers()
    client.close()


def test_the_runner_knows_no_setting_of_the_service(
    open_client: Callable[..., TorchxClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a scheduler on this machine inherit its environment."""
    monkeypatch.setenv("ORCHESTRATOR_SECRET_KEYS", "hush")
    client = open_client(_ANSWERS.replace("str(os.getpid())", "str('hush' in str(os.environ))"))
    found = client.look("0")
    assert found is not None
    assert found.words == "False"
    client.close()


def test_torchx_names_its_schedulers_and_plans_for_docker_without_a_daemon(tmp_path: Path) -> None:
    with open_world(tmp_path, "local_docker") as world:
        plan = world.plan("in-docker", nodes="2")
        client = TorchxClient("local_docker", python=sys.executable, folder=tmp_path / "runner", timeout_s=60)
        # Plugins make torchx 0.7.0 forget its own schedulers.
        assert {"local_cwd", "local_docker", "slurm", "lsf", "aws_batch"} <= set(client.schedulers())
        request = client.plan(render_app(plan, torchx_site(tmp_path, "local_docker")), {})
        client.close()
    assert "trainer.elastic.node" in request
    assert "in-docker-a1" in request
