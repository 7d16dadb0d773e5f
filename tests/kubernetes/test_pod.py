"""The program of a pod: it starts the agent and writes its termination message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import ship
from tests.builders import make_exit_record
from tests.elastic.harness import signal_another_thread
from trainer.contract import env, layout
from trainer.contract.exit_record import Outcome, render_exit_record
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.launch import LaunchPolicy
from trainer.contract.node import HEAD, LOCAL, NodeLaunch, find_port
from trainer.contract.pod import (
    LAST_WORDS_BYTES,
    LastWords,
    PodLaunch,
    parse_last_words,
    parse_pod_launch,
    render_last_words,
    render_pod_launch,
)
from trainer.elastic.pod import read_pod, unpack
from trainer.elastic.rendezvous.epochs import Epochs, Served

UNTIL_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
POLICY = LaunchPolicy(max_restarts=2, stop_timeout_s=3, log_limit_bytes=1024)
started: list[subprocess.Popen[str]] = []


def launch(tmp_path: Path, code: str, port: int = 20000) -> PodLaunch:
    environment = {env.JOB_DIR: str(tmp_path / "job"), env.ATTEMPT: "2", env.JOB_ID: "job"}
    command = (sys.executable, "-c", code, f"--rdzv-endpoint={HEAD}:{port}", f"--local-addr={LOCAL}")
    node = NodeLaunch(command=command, environment=environment, workdir=str(tmp_path / "gone"))
    return PodLaunch(node=node, policy=POLICY, replicas=4)


def start(tmp_path: Path, code: str, *, port: int = 20000, **environ: str) -> subprocess.Popen[str]:
    (tmp_path / "launch.json").write_text(json.dumps(render_pod_launch(launch(tmp_path, code, port))))
    given = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ship.find_package().parent),
        "JOB_COMPLETION_INDEX": "0",
        "ORCHESTRATOR_HEAD": "job-a2-0.job-a2",
        "ORCHESTRATOR_POD_IP": "10.1.2.3",
        "ORCHESTRATOR_JOB_UID": "u-1",
        "ORCHESTRATOR_LAST_WORDS": str(tmp_path / "words"),
        **environ,
    }
    command = [sys.executable, "-m", "trainer.elastic.pod", str(tmp_path / "launch.json")]
    pod = subprocess.Popen(command, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    started.append(pod)
    return pod


@pytest.fixture(autouse=True)
def _end_what_was_started() -> Iterator[None]:
    yield
    while started:
        with started.pop() as pod:
            pod.kill()


def test_the_first_pod_hosts_the_rendezvous_at_its_address_and_claims_for_its_job(tmp_path: Path) -> None:
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
    printed, _ = start(tmp_path, code).communicate(timeout=300)
    arguments, environment, folder = json.loads(printed)
    assert arguments == ["--rdzv-endpoint=10.1.2.3:20000", "--local-addr=10.1.2.3"]
    assert (environment[env.CLAIM], environment[env.REPLICA]) == ("kubernetes-u-1", "0")
    assert "ORCHESTRATOR_POD_IP" not in environment
    assert folder == str(tmp_path)  # the workdir does not exist in this container
    written = json.loads((tmp_path / "job/attempts/2" / layout.LAUNCH).read_text())
    assert (written["replicas"], written["policy"]["max_restarts"]) == (4, 2)


def test_another_pod_waits_until_the_rendezvous_of_the_first_answers(tmp_path: Path) -> None:
    given = {"JOB_COMPLETION_INDEX": "1", "ORCHESTRATOR_HEAD": "localhost"}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        process = start(tmp_path, "import sys; print(sys.argv[1])", port=port, **given)
        assert process.stderr is not None
        assert f"waiting for the first replica, localhost, port {port}" in process.stderr.readline()
        assert process.poll() is None
        listener.listen()
        printed, _ = process.communicate(timeout=300)
    assert printed.strip() == f"--rdzv-endpoint=127.0.0.1:{port}"


def test_a_replaced_pod_goes_to_the_agent_that_serves_the_newest_store(tmp_path: Path) -> None:
    """The first pod may have been replaced, too. Then nobody listens at its port."""
    attempt_dir = tmp_path / "job/attempts/2"
    attempt_dir.mkdir(parents=True)
    given = {"JOB_COMPLETION_INDEX": "1", "ORCHESTRATOR_HEAD": "no-such-name.invalid"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for epoch, port in ((1, 1), (2, listener.getsockname()[1])):
            Epochs(attempt_dir).claim(Served(node="n", address="127.0.0.1", port=port), above=epoch)
        printed, _ = start(tmp_path, "import sys; print(sys.argv[1])", **given).communicate(timeout=300)
    assert printed.strip() == "--rdzv-endpoint=127.0.0.1:20000"


def test_a_pod_of_an_attempt_whose_rendezvous_is_closed_starts_its_agent(tmp_path: Path) -> None:
    attempt_dir = tmp_path / "job/attempts/2"
    attempt_dir.mkdir(parents=True)
    Epochs(attempt_dir).claim(Served(node="", address="", port=0, closed="over"), above=0)
    given = {"JOB_COMPLETION_INDEX": "1", "ORCHESTRATOR_HEAD": "no-such-name.invalid"}
    printed, _ = start(tmp_path, "import sys; print(sys.argv[1])", **given).communicate(timeout=300)
    assert printed.strip() == "--rdzv-endpoint=no-such-name.invalid:20000"


def test_a_pod_that_waits_for_the_first_one_ends_on_sigterm(tmp_path: Path) -> None:
    given = {"JOB_COMPLETION_INDEX": "1", "ORCHESTRATOR_HEAD": "no-such-name.invalid"}
    process = start(tmp_path, "pass", **given)
    assert process.stderr is not None
    assert "waiting for the first replica" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("command", "port"),
    [
        (("elasticrun", "--rdzv-endpoint={head}:20000", "--rdzv-endpoint={head}:1"), 20000),
        (("elasticrun", "--rdzv-endpoint=10.0.0.1:20000"), None),
        (("elasticrun", "--rdzv-endpoint={head}:"), None),
        (("bash",), None),
    ],
)
def test_the_rendezvous_port_is_found_in_the_launcher_s_flags(command: tuple[str, ...], port: int | None) -> None:
    assert find_port(command) == port


@pytest.mark.parametrize("to", ["any thread", "a thread that does not wait"])
def test_the_container_ends_with_the_agent_s_exit_code_and_forwards_signals(tmp_path: Path, to: str) -> None:
    process = start(tmp_path, UNTIL_SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    if to == "any thread":
        process.send_signal(signal.SIGTERM)
    else:
        signal_another_thread(process.pid, signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 9
    killed = start(tmp_path, "import os; os.kill(os.getpid(), 9)")
    killed.communicate(timeout=300)
    assert killed.returncode == 137


def test_orphans_are_reaped_and_the_newest_exit_record_is_the_termination_message(tmp_path: Path) -> None:
    lives = layout.replica_dir(tmp_path / "job", 2, 0)
    for number, outcome in ((9, Outcome.FAILED), (10, Outcome.SUCCEEDED)):
        (lives / str(number)).mkdir(parents=True)
        (lives / str(number) / layout.EXIT).write_text(json.dumps(render_exit_record(make_exit_record(outcome))))
    process = start(tmp_path, "import os; os.fork() or os._exit(0); os._exit(0)")
    process.communicate(timeout=300)
    words = parse_last_words((tmp_path / "words").read_text())
    assert words is not None
    assert (words.replica, words.incarnation, words.record.outcome) == (0, 10, Outcome.SUCCEEDED)


def test_lines_of_worker_logs_are_printed_with_a_prefix(tmp_path: Path) -> None:
    log = layout.worker_dir(layout.replica_dir(tmp_path / "job", 2, 0) / "1", 3, 1) / layout.WORKER_LOG
    code = f"import pathlib; log = pathlib.Path({str(log)!r}); log.parent.mkdir(parents=True); log.write_text('loss 1')"
    printed, _ = start(tmp_path, code).communicate(timeout=300)
    assert printed.splitlines() == ["[i1 g3 local-1] loss 1"]


def test_a_replacement_has_a_greater_incarnation_than_every_earlier_pod(tmp_path: Path) -> None:
    given = {"ORCHESTRATOR_POD_FAILURES": "2", "ORCHESTRATOR_POD_DISRUPTIONS": "1", "JOB_COMPLETION_INDEX": "1"}
    code = f"import os; print(os.environ['{env.INCARNATION}'], 'ORCHESTRATOR_POD_FAILURES' in os.environ)"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        printed, _ = start(tmp_path, code, port=port, ORCHESTRATOR_HEAD="localhost", **given).communicate(timeout=300)
    assert printed.split() == ["4", "False"]
    counts = {"ORCHESTRATOR_POD_FAILURES": "", "ORCHESTRATOR_POD_DISRUPTIONS": ""}
    pod = {
        "JOB_COMPLETION_INDEX": "1",
        "ORCHESTRATOR_HEAD": "h",
        "ORCHESTRATOR_POD_IP": "a",
        "ORCHESTRATOR_JOB_UID": "u",
    }
    assert [read_pod({**pod, **each}).incarnation for each in ({}, counts, given)] == [1, 1, 4]


def test_a_replacement_of_the_first_pod_that_shares_no_folder_does_not_start_a_second_group(tmp_path: Path) -> None:
    process = start(tmp_path, "print('started')", ORCHESTRATOR_POD_DISRUPTIONS="1")
    printed, errors = process.communicate(timeout=300)
    assert (printed, process.returncode) == ("", 1)
    assert "finds no rendezvous store" in errors


@pytest.mark.parametrize("environ", [{}, {"JOB_COMPLETION_INDEX": "x"}])
def test_a_missing_or_invalid_index_is_an_error(environ: dict[str, str]) -> None:
    with pytest.raises((KeyError, ValueError)):
        read_pod(environ)


def test_a_termination_message_fits_and_loses_the_traceback_first() -> None:
    for message, traceback in (("short", "t" * 40_000), ("m" * 9_000, "t" * 40_000), ("\x00" * 9_000, None)):
        failure = Failure(kind=FailureKind.APPLICATION, message=message, traceback=traceback, exit_code=1)
        text = render_last_words(LastWords(replica=3, incarnation=1, record=make_exit_record(failure=failure)))
        assert len(text.encode()) <= LAST_WORDS_BYTES
        words = parse_last_words(text)
        assert words is not None
        assert words.record.failure is not None
        assert (words.replica, words.record.failure.kind) == (3, FailureKind.APPLICATION)
        assert message.startswith(words.record.failure.message)


@pytest.mark.parametrize(
    "text", ["", "rank 0", "[]", "{}", '{"replica": 1}', '{"replica": 1, "incarnation": 1, "record": []}']
)
def test_another_program_s_termination_message_is_ignored(text: str) -> None:
    assert parse_last_words(text) is None


def test_a_pod_launch_survives_its_document_and_an_invalid_one_is_refused(tmp_path: Path) -> None:
    given = launch(tmp_path, "pass")
    assert parse_pod_launch(json.loads(json.dumps(render_pod_launch(given)))) == given
    broken: dict[str, Any]
    for broken in ({}, {"node": {}}, {"node": {}, "launch": {"policy": 1}}):
        with pytest.raises(ValueError, match="launch"):
            parse_pod_launch(broken)


def test_the_package_can_be_unpacked_twice(tmp_path: Path) -> None:
    for _ in range(2):
        unpack(tmp_path)
    assert (tmp_path / "trainer" / "elastic" / "pod.py").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["trainer"]
