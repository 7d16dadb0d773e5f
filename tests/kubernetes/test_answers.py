"""Every recorded answer of a real API server becomes the expected error of the client: scenario 17."""

from __future__ import annotations

import json

import httpx
import pytest

from orchestrator.backends.kubernetes.client import Expired, Forbidden, KubernetesClient, Selection
from orchestrator.backends.kubernetes.kubeconfig import Access
from orchestrator.backends.kubernetes.printed import parse_stamp
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused
from tests.kubernetes import records

ANSWERS = [row for row in records.read("17-api-answers") if "step" not in row]
PODS, JOBS = Selection(resource="pods"), Selection(resource="jobs")
# Answers that are not the fault of the request, which may be repeated. None: not an error.
EXPECTED: dict[str, type[Exception] | None] = {
    "create of an existing name": FileExistsError,
    "create of an existing name, dry run": FileExistsError,
    "namespace that does not exist": BackendUnavailable,
    "get of a missing job": None,
    "delete of a missing job": None,
    "update with a stale resourceVersion": BackendUnavailable,
    "delete with a precondition on another uid": BackendUnavailable,
    "server-side apply, conflict with another field manager": BackendUnavailable,
    "unauthorised: a bearer token nobody issued": BackendUnavailable,
    "forbidden: anonymous": Forbidden,
    "forbidden: a service account without a role, list": Forbidden,
    "forbidden: a service account without a role, create": Forbidden,
    "forbidden: a service account without a role, watch": Forbidden,
    "quota on jobs exceeded": BackendBusy,
    "eviction refused by a PodDisruptionBudget": BackendUnavailable,
    "watch with a resourceVersion of the future": None,  # the server stays silent
    "list with a resourceVersion of the future": BackendUnavailable,
    "watch with resourceVersion that is no number": BackendUnavailable,
    "watch with an expired resourceVersion (pods)": Expired,
    "watch with an expired resourceVersion (jobs)": Expired,
    "list at an expired exact resourceVersion": Expired,
}
WORDS = {  # in the error's message
    "unauthorised: a bearer token nobody issued": "credentials",
    "forbidden: a service account without a role, create": "no right",
    "quota on jobs exceeded": "quota",
    "namespace that does not exist": "namespace does not exist",
    "negative parallelism": "must be greater than or equal to 0",
    "name too long for an Indexed Job": "metadata.name",
    "unknown field, fieldValidation=Strict": "unknown field",
    "quantity that is no quantity": "quantities must match",
    "list with a resourceVersion of the future": "504",
    "watch with resourceVersion that is no number": "500",
    "eviction refused by a PodDisruptionBudget": "429",
    "update with a stale resourceVersion": "409",
}
_WRONG = {400, 415, 422}  # the request is wrong: a repetition would fail too


def client_of(row: dict[str, object]) -> KubernetesClient:
    """Build a client of a server that gives this answer to every request."""
    body = row["body"]
    content = body if isinstance(body, str) else json.dumps(body)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(int(str(row["status"])), content=content.encode())

    access = Access(server="https://lab", namespace=None, verify=False, auth=None)
    return KubernetesClient(access, namespace="s17", timeout_s=5, transport=httpx.MockTransport(answer))


def ask(client: KubernetesClient, row: dict[str, object]) -> None:
    """Make the client's call that corresponds to the recorded request."""
    request = row["request"]
    assert isinstance(request, dict)
    method, path = str(request["method"]), str(request["path"])
    if "watch=" in path:
        list(client.watch(PODS, "1", watch_s=1))
    elif "/log" in path:
        with client.follow_log("train-0", "agent", since=None) as stream:
            list(stream)
    elif method == "GET" and path.partition("?")[0].endswith(("/jobs", "/pods")):
        client.list(JOBS)
    elif method == "GET":
        client.job("nosuch")
    elif method == "DELETE":
        client.delete_job("nosuch")
    elif method in ("PATCH", "PUT"):
        client.patch_job("train", {})
    else:
        client.create("jobs", {"metadata": {"name": "train"}})


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row["name"])
def test_a_recorded_answer_raises_the_expected_error(row: dict[str, object]) -> None:
    name, status = str(row["name"]), int(str(row["status"]))
    expected = EXPECTED.get(name, LaunchRefused if status in _WRONG else None)
    client = client_of(row)
    if expected is None:
        ask(client, row)
        return
    with pytest.raises(expected, match=WORDS.get(name)) as raised:
        ask(client, row)
    assert raised.type is expected


def test_every_recorded_refusal_has_an_expected_error() -> None:
    refusals = {row["name"] for row in ANSWERS if row["status"] >= 300 and row["status"] not in _WRONG}
    assert refusals <= EXPECTED.keys() <= {row["name"] for row in ANSWERS}
    assert WORDS.keys() <= {row["name"] for row in ANSWERS}


def test_an_error_line_in_a_watch_raises_expired() -> None:
    for line in records.read("17b-watch-error-410"):
        row = {"status": 200, "body": json.dumps({"type": line["type"], "object": line["object"]}) + "\n"}
        with pytest.raises(Expired, match="too old resource version"):
            list(client_of(row).watch(PODS, "1", watch_s=1))


def test_the_times_of_a_recorded_log_are_parsed() -> None:
    row = next(each for each in ANSWERS if each["name"] == "logs of a running pod")
    with client_of(row).follow_log("train-0", "agent", since=None) as stream:
        lines = [line for each in stream for line in each]
    stamps = [parse_stamp(line.partition(b" ")[0].decode()) for line in lines]
    assert lines
    assert all(stamp is not None and stamp % 1_000_000_000 for stamp in stamps)
