"""The client of slurmrestd, with recorded answers of Slurm 24.11, and the translation of sbatch's options."""

from __future__ import annotations

import json
import math
import os
import pwd
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.backends.slurm.capacity import parse_nodes as parse_sinfo
from orchestrator.backends.slurm.client import SlurmClient
from orchestrator.backends.slurm.listing import parse_listing
from orchestrator.backends.slurm.render import Request
from orchestrator.backends.slurm.rest import RestAccess, SlurmRest
from orchestrator.backends.slurm.rest_answers import parse_job, parse_nodes, parse_row
from orchestrator.backends.slurm.rest_request import render_job
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, ConfigurationError, LaunchRefused

RECORDED = json.loads((Path(__file__).parent / "records" / "24.11" / "rest.json").read_text())
ERRORS = RECORDED["errors"]
JOB = RECORDED["jobs"][0]
REQUEST = Request(arguments=("--nodes=2",), script="#!/bin/bash\n")

Answer = Callable[[httpx.Request], httpx.Response]


def said(status: int, *texts: str, **fields: Any) -> httpx.Response:
    return httpx.Response(status, json={"errors": [{"error": text} for text in texts], **fields})


def recorded(name: str) -> httpx.Response:
    return httpx.Response(ERRORS[name]["status"], json=ERRORS[name])


@pytest.fixture
def client_of() -> Any:
    opened: list[SlurmRest] = []

    def build(answer: Answer | httpx.Response, **access: Any) -> SlurmRest:
        def reply(request: httpx.Request) -> httpx.Response:
            return answer if isinstance(answer, httpx.Response) else answer(request)

        given = RestAccess(**{"url": "http://slurm:6820", "default_partition": "main", **access})
        opened.append(SlurmRest(given, timeout_s=5, transport=httpx.MockTransport(reply)))
        return opened[-1]

    yield build
    for client in opened:
        client.close()


def test_both_clients_read_the_same_jobs() -> None:
    assert {parse_job(job) for job in RECORDED["jobs"]} == {*parse_listing(RECORDED["squeue"])}
    assert {"RUNNING", "FAILED", "PENDING", "COMPLETING"} <= {parse_job(job).state for job in RECORDED["jobs"]}


def test_both_clients_read_the_same_nodes() -> None:
    found = parse_nodes(RECORDED["nodes"], default="main")
    assert {*found} == {*parse_sinfo(RECORDED["sinfo"])}
    assert {"drained", "completing", "mixed"} <= {node.state for node in found}


@pytest.mark.parametrize(
    "junk", [None, [], "x", 7, {"set": True}, {"set": True, "infinite": False, "number": "x"}, math.inf]
)
def test_a_job_with_junk_in_every_field_still_counts(junk: object) -> None:
    given = {**dict.fromkeys(JOB, junk), "job_id": 5}
    assert parse_job(given).id == 5
    assert parse_row({**dict.fromkeys(("state", "time", "comment", "user", "exit_code"), junk), "job_id": 5}).id == 5


def test_a_job_without_an_id_is_an_error() -> None:
    for junk in (None, [], "x"):
        with pytest.raises(ValueError, match="without an id"):
            parse_job({**JOB, "job_id": junk})


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (["RUNNING"], "RUNNING"),
        (["CANCELLED", "COMPLETING"], "COMPLETING"),
        (["RUNNING", "CONFIGURING"], "CONFIGURING"),
        (["PENDING", "SPECIAL_EXIT"], "SPECIAL_EXIT"),
        (["PENDING", "REQUEUED", "COMPLETING"], "COMPLETING"),
        ([], ""),
    ],
)
def test_flags_of_a_job_go_before_its_state(states: list[str], shown: str) -> None:
    assert parse_job({**JOB, "job_state": states}).state == shown


@pytest.mark.parametrize(
    ("states", "shown", "broken"),
    [
        (["IDLE"], "idle", False),
        (["MIXED", "PLANNED"], "mixed", False),
        (["IDLE", "PLANNED"], "planned", False),
        (["MIXED", "RESERVED"], "mixed", False),
        (["ALLOCATED", "RESERVED", "MAINTENANCE"], "allocated", False),
        (["ALLOCATED", "REBOOT_ISSUED"], "allocated", False),
        (["IDLE", "REBOOT_REQUESTED"], "reboot", True),
        (["IDLE", "POWERED_DOWN"], "idle", False),
        (["IDLE", "RESERVED"], "reserved", False),
        (["DOWN", "RESERVED"], "down", True),
        (["DOWN", "RESERVED", "MAINTENANCE"], "down", True),
        (["DOWN", "POWERED_DOWN"], "down", True),
        (["DOWN", "COMPLETING"], "down", True),
        (["DOWN", "DRAIN"], "drained", True),
        (["ALLOCATED", "DRAIN"], "draining", True),
        (["IDLE", "DRAIN"], "drained", True),
        (["IDLE", "FAIL"], "fail", True),
        (["DOWN", "NOT_RESPONDING"], "down", True),
        (["IDLE", "NOT_RESPONDING"], "idle", True),
        (["IDLE", "MAINTENANCE"], "maint", True),
        ([], "unknown", True),
    ],
)
def test_flags_of_a_node_go_before_its_state(states: list[str], shown: str, broken: bool) -> None:
    (node,) = parse_nodes([{**RECORDED["nodes"][0], "state": states, "partitions": ["main"]}], default="main")
    assert (node.state, node.broken, node.is_default) == (shown, broken, True)


def test_a_row_of_accounting_names_who_cancelled_the_job() -> None:
    row = {
        "job_id": 7,
        "name": "train-a1",
        "state": {"current": ["CANCELLED"]},
        "user": "root",
        "kill_request_user": "root",
        "nodes": "None assigned",
        "comment": {"administrator": "quota"},
        "time": {"start": 10, "end": 20, "submission": 5},
    }
    found = parse_row(row)
    assert (found.state, found.cancelled_by, found.user, found.comment, found.nodes) == ("CANCELLED", 0, 0, "quota", ())
    assert (found.submitted_at, found.started_at, found.ended_at) == (5.0, 10.0, 20.0)
    assert parse_row({**row, "kill_request_user": "nobody-of-this-name"}).cancelled_by is None


@pytest.mark.parametrize(("limit", "ended_at"), [({"set": True, "number": 2}, 130.0), ({"infinite": True}, None)])
def test_a_running_job_without_a_time_limit_has_no_end(limit: Mapping[str, Any], ended_at: float | None) -> None:
    job = {"job_id": 7, "job_state": ["RUNNING"], "start_time": 10, "end_time": 130, "time_limit": limit}
    assert parse_job(job).ended_at == ended_at
    assert parse_job({**job, "job_state": ["COMPLETED", "COMPLETING"]}).ended_at == 130.0


def test_options_become_fields() -> None:
    options = ["--job-name=train-a1", "--nodes=1-2", "--no-kill", "--no-requeue", "--parsable", "--exclusive"]
    options += ["--mem=16G", "--gres=gpu:h100:8,nic:2", "--time=90", "--signal=TERM@60", "--exclude=n[1-3],m7"]
    options += ["--export=NIL", "--open-mode=append", "--switches=2@01:00:00", "--licenses=ansys:3"]
    assert render_job(options, umask=0o077) == {
        "name": "train-a1",
        "nodes": "1-2",
        "kill_on_node_fail": False,
        "requeue": False,
        "shared": ["none"],
        "memory_per_node": {"set": True, "infinite": False, "number": 16384},
        "tres_per_node": "gres/gpu:h100:8,gres/nic:2",
        "time_limit": {"set": True, "infinite": False, "number": 90},
        "kill_warning_signal": "TERM",
        "kill_warning_delay": {"set": True, "infinite": False, "number": 60},
        "excluded_nodes": ["n1", "n2", "n3", "m7"],
        "environment": ["PATH=/usr/local/bin:/usr/bin:/bin", "SLURM_UMASK=0077"],
        "open_mode": ["APPEND"],
        "required_switches": {"set": True, "infinite": False, "number": 2},
        "wait_for_switch": 3600,
        "licenses": "ansys:3",
    }


def fields(*options: str) -> dict[str, Any]:
    """The fields besides the environment."""
    job = render_job(options, umask=0o022)
    del job["environment"]
    return job


def test_the_environment_has_the_cpus_of_a_task() -> None:
    job = render_job(["--cpus-per-task=4"], umask=0o022)
    assert job["environment"][1:] == ["SLURM_UMASK=0022", "SLURM_CPUS_PER_TASK=4"]


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [
        ("--time=1:29", "time_limit", 2),
        ("--time=90:30", "time_limit", 91),
        ("--time=1-0", "time_limit", 1440),
        ("--mem=512K", "memory_per_node", 1),
        ("--mem=2T", "memory_per_node", 2 * 1024**2),
    ],
)
def test_amounts_are_rounded_up(option: str, field: str, value: int) -> None:
    assert fields(option) == {field: {"set": True, "infinite": False, "number": value}}


def test_lists_of_resources_keep_their_kinds() -> None:
    assert fields("--gpus-per-node=a:1,b:2") == {"tres_per_node": "gres/gpu:a:1,gres/gpu:b:2"}


def test_two_options_for_one_field_are_refused() -> None:
    with pytest.raises(LaunchRefused, match="one field for --gpus-per-node and --gres"):
        fields("--gres=gpu:8", "--gpus-per-node=4")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--burst-buffer=x", "--burst-buffer"),
        ("-N2", "-N2"),
        ("nodes=2", "nodes"),
        ("--mem=lots", "not an amount of memory"),
        ("--time=soon", "not a duration"),
        ("--cpus-per-task=many", "it is not a number"),
        ("--switches=many", "it is not a number"),
        ("--time=0", "limit of 0"),
        ("--time=1:-5", "not a duration"),
        ("--time=-1", "not a duration"),
        ("--cpus-per-task=0", "above 0"),
        ("--switches=0", "above 0"),
        ("--signal=@9", "only"),
        ("--signal=TERM@70000", "longest notice is 65535"),
        ("--no-kill=off", "it takes no value"),
        ("--signal=R:TERM@60", "only"),
        ("--begin=now+1hour", "not supported"),
        ("--export=ALL", "only NIL"),
    ],
)
def test_an_option_without_a_field_is_refused(option: str, says: str) -> None:
    with pytest.raises(LaunchRefused, match=says):
        render_job([option], umask=0o022)


def test_a_plan_shows_what_slurmrestd_gets(client_of: Any) -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            sent.append(json.loads(request.content))
        return said(200, job_id=17)

    client = client_of(answer)
    client.submit(REQUEST)
    shown = client.render(REQUEST)
    title, _, body = shown.text.partition("\n")
    assert (shown.kind, title) == ("slurmrestd", "POST /slurm/v0.0.42/job/submit")
    assert [json.loads(body)] == sent
    assert (sent[0]["script"], sent[0]["job"]["nodes"]) == ("#!/bin/bash\n", "2")


def test_a_job_of_another_user_is_cancelled_and_refused(client_of: Any) -> None:
    """Otherwise the service would not find it, and submit the next one."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return said(200, job_id=17, jobs=[{**JOB, "job_id": 17, "user_id": os.getuid() + 1}])

    with pytest.raises(LaunchRefused, match="not as the service's user"):
        client_of(answer).submit(REQUEST)
    assert asked == ["POST", "GET", "DELETE"]


def test_a_job_of_another_user_that_cannot_be_cancelled_is_refused(client_of: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return said(500, errors=[{"error": "Operation not permitted", "error_number": 1}])
        return said(200, job_id=17, jobs=[{**JOB, "job_id": 17, "user_id": os.getuid() + 1}])

    with pytest.raises(LaunchRefused, match="not as the service's user"):
        client_of(answer).submit(REQUEST)


def test_a_job_whose_user_is_not_reported_is_not_refused(client_of: Any) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return said(200, job_id=17, jobs=[{**JOB, "job_id": 17, "user_id": None}])

    assert client_of(answer).submit(REQUEST) == 17


def test_an_authentication_error_names_rest_token_file_if_a_token_was_sent(client_of: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a.b.c")
    for answer in (said(500, "Protocol authentication error"), said(401, "Authentication failure"), said(401)):
        for access, hint in (({"token_file": token}, "; the token in rest_token_file may have expired"), ({}, "$")):
            with pytest.raises(BackendUnavailable, match=f"^[^;]+{hint}"):
                client_of(answer, **access).jobs()


def test_a_404_means_that_slurmrestd_serves_no_accounting(client_of: Any) -> None:
    assert client_of(said(200, pings=[])).has_accounting()
    assert not client_of(httpx.Response(404, text="Unable find requested URL.")).has_accounting()


def test_an_error_of_accounting_is_not_taken_for_its_absence(client_of: Any) -> None:
    for answer in (said(502, "Unable to connect to database"), said(401, "Authentication failure")):
        with pytest.raises(BackendUnavailable):
            client_of(answer).has_accounting()


def test_a_refusal_is_told_apart_from_a_full_and_a_silent_controller(client_of: Any) -> None:
    with pytest.raises(LaunchRefused, match="Invalid partition name specified"):
        client_of(recorded("partition")).submit(REQUEST)
    with pytest.raises(BackendBusy, match="MaxSubmitJob"):
        client_of(said(500, "Job violates accounting/QOS policy (MaxSubmitJobs)")).submit(REQUEST)
    with pytest.raises(BackendUnavailable, match="Unable to contact slurm controller"):
        client_of(recorded("controller down")).submit(REQUEST)
    unexpected = {"error": "Unexpected message received", "error_number": 1000}
    with pytest.raises(BackendUnavailable, match="Unexpected message received"):
        client_of(httpx.Response(500, json={"errors": [unexpected]})).submit(REQUEST)
    with pytest.raises(LaunchRefused, match="Slurm refuses the job: x"):
        client_of(httpx.Response(500, json={"errors": ["x", {"error_number": []}]})).submit(REQUEST)
    with pytest.raises(BackendUnavailable, match="without a job's id"):
        client_of(said(200)).submit(REQUEST)
    assert client_of(said(200, job_id=17)).submit(REQUEST) == 17


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (recorded("controller down"), "Unable to contact slurm controller"),
        (said(500, "Something new"), "Something new"),
        (said(401, "Authentication failure"), "401 Authentication failure"),
        (httpx.Response(404, text="Unable find requested URL."), "does not serve /slurm/v0.0.42/jobs/"),
        (httpx.Response(502, text="<html>"), "502: <html>"),
        (httpx.Response(502, content=b"\xff", headers={"Content-Type": "text/plain; charset=idna"}), "502: "),
        (httpx.Response(200, text="[" * 100_000), r"200: \["),
        (httpx.Response(200, json=[]), r"200: \[\]"),
        (said(200), "no list of objects named jobs"),
        (said(200, jobs={}), "no list of objects named jobs"),
        (said(200, jobs=[None]), "no list of objects named jobs"),
        (said(200, jobs=[{**JOB, "user_id": "0"}]), "without a user's id"),
        (httpx.Response(500, json={"errors": 7}), "answered 500"),
        (said(200, jobs=[{"name": "train-a1", "user_id": os.getuid()}]), "without an id"),
    ],
)
def test_an_answer_that_is_no_listing_proves_nothing(client_of: Any, answer: httpx.Response, says: str) -> None:
    with pytest.raises(BackendUnavailable, match=says):
        client_of(answer).jobs()


def test_a_listing_has_the_attempts_of_the_user_only(client_of: Any) -> None:
    own = os.getuid()
    jobs = [
        {**JOB, "job_id": 1, "name": "train-a1", "user_id": own},
        {**JOB, "job_id": 2, "name": "train-a1", "user_id": own + 1},
        {**JOB, "job_id": 3, "name": "other", "user_id": own},
    ]
    assert [job.id for job in client_of(said(200, jobs=jobs)).jobs()] == [1]


def test_a_name_with_a_byte_that_is_no_utf_8_hides_no_job(client_of: Any) -> None:
    """Any user of the cluster can give a job such a name, and slurmrestd passes it on."""
    own = {**JOB, "job_id": 1, "name": "train-a1", "user_id": os.getuid()}
    content = json.dumps({"jobs": [own, {**own, "job_id": 2, "name": "BYTE"}]}).encode().replace(b"BYTE", b"\xff")
    assert [job.id for job in client_of(httpx.Response(200, content=content)).jobs()] == [1]


def test_a_job_that_slurm_does_not_know(client_of: Any) -> None:
    assert client_of(recorded("unknown job")).job(999) is None
    assert client_of(said(200, jobs=[{**JOB, "job_id": 8}])).job(999) is None
    for jobs in (None, "x", {}, [7], [None]):
        with pytest.raises(BackendUnavailable):
            client_of(said(200, jobs=jobs)).job(999)
    with pytest.raises(BackendUnavailable):
        client_of(recorded("controller down")).job(999)
    for name in ("unknown job", "ended job"):
        client_of(recorded(name)).exclude(999, "n1")
    client_of(recorded("unknown job")).cancel(999)
    denied = httpx.Response(500, json={"errors": [{"error": "Operation not permitted", "error_number": 1}]})
    for answer in (recorded("controller down"), denied):
        with pytest.raises(BackendUnavailable):
            client_of(answer).cancel(999)
        with pytest.raises(BackendUnavailable):
            client_of(answer).signal(999, "TERM")


@pytest.mark.parametrize(("nodes", "names"), [("n[1-2],m7", ["n1", "n2", "m7"]), ("", [""])])
def test_excluded_nodes_are_replaced(client_of: Any, nodes: str, names: list[str]) -> None:
    """An empty list would change nothing."""
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return said(200, results=[])

    client_of(answer).exclude(17, nodes)
    assert sent == [{"excluded_nodes": names}]


def test_without_accounting_there_are_no_rows(client_of: Any) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(404, text="Unable find requested URL.")

    client = client_of(answer)
    assert client.accounting([1, 2]) == client.accounting([1]) == client.accounting([]) == []
    assert len(asked) == 1
    with pytest.raises(BackendUnavailable):
        client.jobs_with_steps()


def test_accounting_tells_which_jobs_run_a_step(client_of: Any) -> None:
    def job(number: int, *steps: tuple[str, str]) -> dict[str, Any]:
        return {"job_id": number, "steps": [{"step": {"id": name}, "state": [state]} for name, state in steps]}

    jobs = [job(1, ("1.batch", "RUNNING"), ("1.0", "RUNNING")), job(2, ("2.batch", "RUNNING"), ("2.0", "COMPLETED"))]
    junk = [{"job_id": 3, "steps": steps} for steps in ("x", None, [7], [{"step": "3.0", "state": 7}])]
    assert client_of(said(200, jobs=[*jobs, *junk])).jobs_with_steps() == {1}


def test_the_token_is_read_for_each_call(client_of: Any, tmp_path: Path) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers.get("X-SLURM-USER-NAME"), request.headers.get("X-SLURM-USER-TOKEN")))
        return said(200, jobs=[])

    token = tmp_path / "token"
    own = pwd.getpwuid(os.getuid()).pw_name
    client = client_of(answer, user="known-to-slurm-only", token_file=token)
    with pytest.raises(BackendUnavailable, match="cannot read the token"):
        client.jobs()
    for content in (b"", b"hush-1\nhush-2", b"hush\0", b"# hush", b"h\xfcsh"):
        token.write_bytes(content)
        with pytest.raises(BackendUnavailable, match="does not hold one token") as found:
            client.jobs()
        assert "hush" not in str(found.value)
    token.write_text("SLURM_JWT=first\n")
    client.jobs()
    token.write_text("second")
    client.jobs()
    client_of(answer, token_file=token).jobs()
    assert seen == [("known-to-slurm-only", "first"), ("known-to-slurm-only", "second"), (own, "second")]
    client_of(answer).jobs()
    assert seen[-1] == (None, None)
    other = next(each.pw_name for each in pwd.getpwall() if each.pw_uid != os.getuid())
    with pytest.raises(ConfigurationError, match=f"rest_user {other} is not the service's user"):
        client_of(answer, user=other, token_file=token)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpcore leaves the socket open
def test_a_socket_that_does_not_exist_is_unavailable(tmp_path: Path) -> None:
    access = RestAccess(url=f"unix:{tmp_path}/none", default_partition="main")
    with closing(SlurmRest(access, timeout_s=5)) as client:
        as_port: SlurmClient = client
        with pytest.raises(BackendUnavailable, match="cannot reach slurmrestd"):
            as_port.jobs()
