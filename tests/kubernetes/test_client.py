"""Client, watches and backend with a fake API server over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.backends.kubernetes.client import KubernetesClient, Selection
from orchestrator.backends.kubernetes.mirror import Mirror
from orchestrator.backends.kubernetes.objects import JobObject, parse_job
from orchestrator.backends.kubernetes.render import render_name
from orchestrator.backends.kubernetes.rights import RIGHTS
from orchestrator.backends.kubernetes.site import CONTAINER, MANAGER, MANAGER_LABEL
from orchestrator.backends.kubernetes.watcher import Watcher, WatchTimes, pause_s
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Presence
from tests.elastic.harness import wait_for
from tests.kubernetes.conftest import build
from tests.kubernetes.fake_api import FakeApi, Json, recorded
from tests.kubernetes.test_render import plan_of

JOBS = Selection(resource="jobs")
PLAN = plan_of({"run": {"command": ["true"], "workdir": "/"}, "topology": {"nodes": "1"}}, {})
NAME = render_name(PLAN.key)


def a_manifest(name: str = "train") -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "agent", "image": "trainer:1"}]}
    spec = {"suspend": True, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "training"}, "spec": spec}


def test_an_existing_name_raises_file_exists_error(client: KubernetesClient) -> None:
    client.create("jobs", a_manifest())
    with pytest.raises(FileExistsError, match="already exists"):
        client.create("jobs", a_manifest())


def test_a_missing_job_is_none_and_deleting_it_is_not_an_error(client: KubernetesClient) -> None:
    assert client.job("nosuch") is None
    assert client.delete_job("nosuch") is False
    assert client.delete_pod("nosuch", grace_s=1) is False


def test_a_pod_cannot_be_deleted_without_a_grace_period(client: KubernetesClient) -> None:
    with pytest.raises(ValueError, match="grace_s"):
        client.delete_pod("any", grace_s=0)


def test_all_pages_of_a_list_are_read(api: FakeApi, client: KubernetesClient) -> None:
    for number in range(1203):
        api.store.put("jobs", a_manifest(f"j{number}"), "ADDED")
    items, version = client.list(JOBS)
    assert len({each["metadata"]["name"] for each in items}) == 1203
    assert version == str(api.store.version)


def test_a_watch_reports_changes_since_its_version(api: FakeApi, client: KubernetesClient) -> None:
    _, version = client.list(JOBS)
    client.create("jobs", a_manifest())
    client.patch_job("train", {"metadata": {"annotations": {"mine": "1"}}})
    stream = client.watch(JOBS, version, watch_s=5)
    kinds = [next(stream).get("type") for _ in range(3)]
    assert kinds == [None, "ADDED", "MODIFIED"]


def a_watcher(client: KubernetesClient, **fields: Any) -> tuple[Watcher, Mirror[JobObject]]:
    mirror: Mirror[JobObject] = Mirror(parse_job)
    return Watcher(client, JOBS, mirror, times=WatchTimes(watch_s=0.2, silent_s=5), **fields), mirror


def test_an_expired_version_leads_to_a_new_list(api: FakeApi, client: KubernetesClient) -> None:
    api.store.stream_s = 0.2
    watcher, mirror = a_watcher(client)
    watcher.step()
    api.store.put("jobs", a_manifest("before"), "ADDED")
    api.store.forget_history()
    watcher.step()
    assert mirror.version is None
    watcher.step()
    assert [job.name for job in mirror.objects()] == ["before"]
    assert watcher.problem() is None


def test_a_watch_that_ends_continues_without_a_new_list(api: FakeApi, client: KubernetesClient) -> None:
    api.store.stream_s = 0.2
    watcher, mirror = a_watcher(client)
    for _ in range(3):
        watcher.step()
    api.store.put("jobs", a_manifest("later"), "ADDED")
    watcher.step()
    assert [job.name for job in mirror.objects()] == ["later"]
    assert [verb for _, resource, verb in api.store.calls if resource == "jobs"].count("list") == 1


def test_a_periodic_list_notices_a_server_that_was_restored_from_a_backup(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.store.stream_s = 0.2
    clock = [100.0]
    watcher, mirror = a_watcher(client, monotonic=lambda: clock[0])
    api.store.put("jobs", a_manifest("lost"), "ADDED")
    watcher.step()
    mirror.version = "999999"
    api.store.objects["jobs"].clear()
    watcher.step()
    assert [job.name for job in mirror.objects()] == ["lost"]
    clock[0] += 1801
    watcher.step()
    assert mirror.objects() == []
    assert mirror.version == str(api.store.version)


def test_an_older_list_does_not_remove_a_new_job() -> None:
    mirror: Mirror[JobObject] = Mirror(parse_job)
    made = {"metadata": {"name": "j", "uid": "u", "resourceVersion": "12"}}
    mirror.put(made)
    mirror.replace([], "11")
    assert [job.uid for job in mirror.objects()] == ["u"]
    mirror.replace([], "11")  # the server was restored from a backup
    assert mirror.objects() == []
    mirror.put(made)
    assert mirror.objects() == []


def test_a_newer_list_removes_a_missing_job() -> None:
    mirror: Mirror[JobObject] = Mirror(parse_job)
    mirror.put({"metadata": {"name": "j", "uid": "u", "resourceVersion": "12"}})
    mirror.replace([], "12")
    assert mirror.objects() == []


def test_a_silent_watch_is_a_problem(api: FakeApi, client: KubernetesClient) -> None:
    api.store.stream_s = 0.2
    clock = [100.0]
    watcher, _ = a_watcher(client, monotonic=lambda: clock[0])
    assert watcher.problem() is not None
    watcher.step()
    assert watcher.problem() is None
    clock[0] += 6
    assert "no news about" in (watcher.problem() or "")


def test_pauses_grow_to_half_a_minute() -> None:
    assert pause_s(1) <= 1.0
    assert all(15 <= pause_s(failures) <= 30 for failures in (10, 1000))


def test_older_events_change_nothing_and_a_deleted_object_stays_deleted() -> None:
    mirror: Mirror[JobObject] = Mirror(parse_job, keeps_removed=True)
    old, new = (
        {"metadata": {"name": "train", "uid": "u", "resourceVersion": version}, "spec": {"suspend": suspend}}
        for version, suspend in (("7", True), ("12", False))
    )
    mirror.apply({"type": "ADDED", "object": new})
    mirror.put(old)
    assert [job.suspended for job in mirror.objects()] == [False]
    mirror.apply({"type": "DELETED", "object": new})
    mirror.apply({"type": "MODIFIED", "object": new})
    assert (mirror.objects(), [job.name for job in mirror.removed()]) == ([], ["train"])
    mirror.forget(["u"])
    assert mirror.removed() == []


def test_an_interrupted_submission_is_absent_and_the_next_one_completes_it(
    api: FakeApi, backend: KubernetesBackend
) -> None:
    api.store.next_refusal["services", "create"] = recorded("watch with resourceVersion that is no number")
    with pytest.raises(BackendUnavailable):
        backend.submit(PLAN)
    job = api.store.get("jobs", NAME)
    assert job is not None
    assert job["spec"]["suspend"] is True
    wait_for(lambda: "interrupted" in backend.observe({PLAN.key: PLAN.max_nodes})[PLAN.key].evidence, "sighting")
    assert backend.observe({PLAN.key: PLAN.max_nodes})[PLAN.key].presence is Presence.ABSENT
    backend.submit(PLAN)
    job = api.store.get("jobs", NAME)
    assert job is not None
    assert job["spec"]["suspend"] is False
    for resource in ("services", "secrets"):
        made = api.store.get(resource, NAME)
        assert made is not None
        assert made["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    backend.cancel(PLAN.key, force=True)


@pytest.mark.parametrize("force", [True, False])
def test_a_pod_on_a_node_that_does_not_answer_gets_no_grace_period(
    api: FakeApi, backend: KubernetesBackend, force: bool
) -> None:
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "topology": {"nodes": "2"}}, {})
    for node, ready in (("n0", "True"), ("n1", "Unknown")):
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        api.store.put("nodes", {"metadata": {"name": node}, "status": status}, "ADDED")
    labels = {"batch.kubernetes.io/job-name": NAME, MANAGER_LABEL: MANAGER}
    for number in range(2):
        annotations = {"batch.kubernetes.io/job-completion-index": str(number)}
        metadata = {
            "name": f"{NAME}-{number}",
            "uid": f"u{number}",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{"uid": "j"}],
        }
        containers = [{"name": CONTAINER, "state": {"running": {}}}]
        status = {"phase": "Running", "containerStatuses": containers}
        pod = {"metadata": metadata, "spec": {"nodeName": f"n{number}"}, "status": status}
        api.store.put("pods", pod, "ADDED")
    wait_for(lambda: any(one.node_unreachable for one in backend.observe({plan.key: 2})[plan.key].replicas), "silence")
    asked: list[tuple[str, object]] = []

    def on_delete(resource: str, document: Json, options: Json) -> None:
        if resource == "pods":
            asked.append((document["metadata"]["name"], options["gracePeriodSeconds"]))

    api.store.on_delete = on_delete
    backend.cancel(plan.key, force=force)
    assert sorted(asked) == [(f"{NAME}-{number}", 1) for number in ((0, 1) if force else (1,))]


def test_the_secret_of_an_earlier_job_is_not_reused(api: FakeApi, backend: KubernetesBackend) -> None:
    """The Job is deleted a moment later, so the pods would wait forever for their Secret."""
    api.store.put("secrets", {"metadata": {"name": NAME, "ownerReferences": [{"uid": "gone"}]}}, "ADDED")
    with pytest.raises(BackendUnavailable, match="earlier Job"):
        backend.submit(PLAN)
    assert api.store.all("jobs") == []
    api.store.put("secrets", {"metadata": {"name": NAME}}, "DELETED")
    backend.submit(PLAN)
    (job,), (secret,) = api.store.all("jobs"), api.store.all("secrets")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


@pytest.mark.parametrize("call", [("secrets", "create"), ("jobs", "patch")], ids=" ".join)
def test_a_job_whose_submission_is_refused_is_removed(
    api: FakeApi, backend: KubernetesBackend, call: tuple[str, str]
) -> None:
    api.store.next_refusal[call] = recorded("negative parallelism")
    with pytest.raises(LaunchRefused):
        backend.submit(PLAN)
    assert api.store.all("jobs") == []


def test_a_job_in_a_kueue_queue_stays_suspended_until_it_is_admitted(api: FakeApi, backend: KubernetesBackend) -> None:
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "placement": {"queue": "research"}}, {})
    backend.submit(plan)
    job = api.store.get("jobs", NAME)
    assert job is not None
    assert job["spec"]["suspend"] is True
    seen = backend.observe({plan.key: plan.max_nodes})[plan.key]
    assert (seen.presence, "Kueue" in seen.evidence) == (Presence.PENDING, True)


def test_a_queue_without_kueue_is_refused(api: FakeApi, backend: KubernetesBackend) -> None:
    """The job would stay suspended forever."""
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "placement": {"queue": "research"}}, {})
    assert backend.check(plan) == ()
    api.store.groups.remove("kueue.x-k8s.io")
    (warning,) = backend.check(plan)
    assert "no Kueue" in warning
    with pytest.raises(LaunchRefused, match="no Kueue"):
        backend.submit(plan)
    assert api.store.all("jobs") == []
    assert backend.check(PLAN) == ()


def test_a_full_quota_is_not_a_failure(api: FakeApi, backend: KubernetesBackend) -> None:
    api.store.next_refusal["jobs", "create"] = recorded("quota on jobs exceeded")
    with pytest.raises(BackendBusy, match="exceeded quota"):
        backend.submit(PLAN)


def test_an_unreachable_server_gives_no_sightings(api: FakeApi, backend: KubernetesBackend) -> None:
    assert backend.observe({PLAN.key: PLAN.max_nodes})[PLAN.key].presence is Presence.ABSENT
    api.close()
    with pytest.raises(BackendUnavailable):
        wait_for(lambda: backend.observe({PLAN.key: PLAN.max_nodes}) == {}, "error")  # raises once the watch breaks
    with pytest.raises(BackendUnavailable):
        backend.slots()  # so that no job is admitted


def test_jobs_are_supervised_without_the_right_to_see_nodes_and_events(
    api: FakeApi, backend: KubernetesBackend
) -> None:
    api.store.denied |= {("nodes", "list"), ("events", "list")}
    assert backend.observe({PLAN.key: PLAN.max_nodes})[PLAN.key].presence is Presence.ABSENT


def test_without_the_right_to_see_jobs_there_are_no_sightings(api: FakeApi, backend: KubernetesBackend) -> None:
    api.store.denied.add(("jobs", "list"))
    with pytest.raises(BackendUnavailable, match="no right"):
        backend.observe({PLAN.key: PLAN.max_nodes})


def test_a_thousand_jobs_need_one_list_per_kind_and_no_calls_of_their_own(
    api: FakeApi, backend: KubernetesBackend
) -> None:
    keys = [AttemptKey(f"job-{number}", 1) for number in range(1000)]
    for _ in range(5):
        assert len(backend.observe(dict.fromkeys(keys, 1))) == 1000
    assert {verb for _, _, verb in api.store.calls} == {"list", "watch"}
    assert sum(verb == "list" for _, _, verb in api.store.calls) == 5
    assert len(api.store.calls) < 100, "on a slow machine a watch ends and begins again"


def test_another_service_finds_the_job_by_its_name(
    api: FakeApi, backend: KubernetesBackend, client: KubernetesClient, own: Any
) -> None:
    backend.submit(PLAN)
    other = build(own, client)
    assert other.observe({PLAN.key: PLAN.max_nodes})[PLAN.key].presence in (Presence.PENDING, Presence.RUNNING)
    other.cancel(PLAN.key, force=True)
    ends = (Presence.GONE, Presence.ABSENT)
    wait_for(lambda: other.observe({PLAN.key: PLAN.max_nodes})[PLAN.key].presence in ends, "end of the job")
    other.close()


def test_a_dry_run_reports_the_refusal_and_creates_nothing(api: FakeApi, backend: KubernetesBackend) -> None:
    assert backend.check(PLAN) == ()
    assert api.store.all("jobs") == []
    api.store.next_refusal["jobs", "create"] = recorded("negative parallelism")
    (warning,) = backend.check(PLAN)
    assert "would refuse" in warning
    api.store.next_refusal["jobs", "create"] = recorded("unauthorised: a bearer token nobody issued")
    (warning,) = backend.check(PLAN)
    assert "could not ask" in warning
    api.store.next_refusal["jobs", "create"] = recorded("quota on jobs exceeded")
    (warning,) = backend.check(PLAN)
    assert warning.startswith("the job would wait: a quota")


def test_a_job_without_an_image_is_refused(client: KubernetesClient, own: Any) -> None:
    with pytest.raises(LaunchRefused, match="image"):
        build(replace(own, image=None), client).submit(PLAN)


def test_every_right_has_a_reason_and_each_resource_one_row() -> None:
    assert all(right.why for right in RIGHTS)
    assert len({right.resource for right in RIGHTS}) == len(RIGHTS)
    assert [right.resource for right in RIGHTS if not right.namespaced] == ["nodes"]
