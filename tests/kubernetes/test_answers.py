"""Every recorded answer of a real API server, and what the client makes of it: scenario 17."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from orchestrator.backends.kubernetes.client import Expired, Forbidden, KubernetesClient, Selection
from orchestrator.backends.kubernetes.kubeconfig import Access
from orchestrator.backends.kubernetes.printed import parse_stamp
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused
from tests.kubernetes import records

ANSWERS = [row for row in records.read("17-api-answers") if "step" not in row]
PODS, JOBS = Selection(resource="pods"), Selection(resource="jobs")
# What is not the request's own fault, and a watch that goes on: nothing is concluded, and it is asked again.
STATED: dict[str, type[Exception] | None] = {
    "create of an existing name": FileExistsError,
    "create of an existing name, dry run": FileExistsError,
    "namespace that does not exist": BackendUnavailable,
    "get of a missing job": None,  # there is none: an answer
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
    "watch with a resourceVersion of the future": None,  # silence
    "list with a resourceVersion of the future": BackendUnavailable,
    "watch with resourceVersion that is no number": BackendUnavailable,
    "watch with an expired resourceVersion (pods)": Expired,
    "watch with an expired resourceVersion (jobs)": Expired,
    "list at an expired exact resourceVersion": Expired,
}
_WRONG = {400, 415, 422}  # the request itself: asking again would not help


def client_of(row: dict[str, object]) -> KubernetesClient:
    """Of a server that gives this answer to whatever it is asked."""
    body = row["body"]
    content = body if isinstance(body, str) else json.dumps(body)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(int(str(row["status"])), content=content.encode())

    access = Access(server="https://lab", namespace=None, verify=False, auth=None)
    return KubernetesClient(access, namespace="s17", timeout_s=5, transport=httpx.MockTransport(answer))


def ask(client: KubernetesClient, row: dict[str, object]) -> None:
    """What of the client's calls the recorded request is."""
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
def test_a_recorded_answer_means_what_is_stated(row: dict[str, object]) -> None:
    name, status = str(row["name"]), int(str(row["status"]))
    expected = STATED.get(name, LaunchRefused if status in _WRONG else None)
    client = client_of(row)
    if expected is None:
        ask(client, row)
        return
    with pytest.raises(expected) as raised:
        ask(client, row)
    assert raised.type is expected


def test_every_refusal_is_stated_or_the_request_s_own_fault() -> None:
    refusals = {row["name"] for row in ANSWERS if row["status"] >= 300 and row["status"] not in _WRONG}
    assert refusals <= set(STATED) <= {row["name"] for row in ANSWERS}


def test_a_watch_that_has_expired_is_a_line_in_a_good_answer_and_is_listed_anew() -> None:
    for line in records.read("17b-watch-error-410"):
        row = {"status": 200, "body": json.dumps({"type": line["type"], "object": line["object"]}) + "\n"}
        with pytest.raises(Expired, match="too old resource version"):
            _drain(client_of(row).watch(PODS, "1", watch_s=1))


def test_a_recorded_log_s_lines_have_times_that_are_read() -> None:
    row = next(each for each in ANSWERS if each["name"] == "logs of a running pod")
    with client_of(row).follow_log("train-0", "agent", since=None) as stream:
        lines = [line for each in stream for line in each]
    stamps = [parse_stamp(line.partition(b" ")[0].decode()) for line in lines]
    assert lines
    assert all(stamp is not None and stamp % 1_000_000_000 for stamp in stamps)


def _drain(events: Iterator[object]) -> None:
    for _ in events:
        pass
