"""How preemptions on Kubernetes are explained: a whole service, a fake cluster, real agents, default times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kubernetes.whole import World, whole

pytestmark = pytest.mark.timeout(300)

_NOT_RECORDED = "Kubernetes does not record who deletes"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with whole(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def preempt(world: World, job: str, pods: list[str]) -> None:
    world.cluster.preempt(pods[0], by="2e1419f9")


def evict(world: World, job: str, pods: list[str]) -> None:
    world.cluster.evict(pods[1])


def shut_down(world: World, job: str, pods: list[str]) -> None:
    words = "Pod was terminated in response to imminent node shutdown."
    world.cluster.disrupt(pods[0], "TerminationByKubelet", words)


def delete_pod(world: World, job: str, pods: list[str]) -> None:
    pod = world.cluster.store.get("pods", pods[1])
    assert pod is not None
    world.cluster.store.on_delete("pods", pod, {"gracePeriodSeconds": 30})


def delete_job(world: World, job: str, pods: list[str]) -> None:
    (found,) = (each for each in world.cluster.store.all("jobs") if each["metadata"]["name"].startswith(job))
    world.cluster.store.on_delete("jobs", found, {"propagationPolicy": "Background"})


@pytest.mark.parametrize(
    ("inject", "pods", "words"),
    [
        pytest.param(
            evict,
            2,
            ["EvictionByEvictionAPI", "Eviction API: evicting", "does not record who requested"],
            marks=pytest.mark.long,
        ),
        (
            preempt,
            1,
            [
                "a pod with higher priority",
                "PreemptionByScheduler: default-scheduler",
                "by pod 2e1419f9 on",
                "set by kube-scheduler",
            ],
        ),
        pytest.param(shut_down, 1, ["TerminationByKubelet", "imminent node shutdown"], marks=pytest.mark.long),
        pytest.param(
            delete_pod, 2, ["one of its pods was deleted in the cluster", _NOT_RECORDED], marks=pytest.mark.long
        ),
        pytest.param(delete_job, 1, ["its Job was deleted in the cluster", _NOT_RECORDED], marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_preemption_is_explained_and_costs_no_budget(
    world: World, inject: Callable[[World, str, list[str]], None], pods: int, words: list[str]
) -> None:
    job, names = world.running(pods=pods)
    inject(world, job, names)
    again = world.until(job, lambda seen: seen.attempts == 2)
    first = next(iter(world.client.attempts(job)))
    assert first.failure is not None
    assert (first.state, first.failure.kind) == ("PREEMPTED", "preempted")
    ended = [each for each in world.client.events(job) if each.evidence.get("state") == "PREEMPTED"]
    why = world.client.why(job)
    assert why.cause is not None
    for message in (first.failure.message, str(ended[-1].evidence["failure"]), why.cause.failure.message):
        assert all(each in message for each in words), message
        assert "by hand" not in message
    assert (again.spent, again.preemptions) == ({}, 1)
    world.client.cancel(job)


@pytest.mark.long
def test_a_service_that_is_killed_after_deleting_a_job_reports_no_preemption(world: World) -> None:
    job, _ = world.running(pods=1)
    world.client.suspend(job)
    store = world.cluster.store
    with store.changed:
        assert store.changed.wait_for(
            lambda: not any(each.startswith(job) for each in store.objects["jobs"]), timeout=300
        )
    world.service.kill()
    world.service.start()
    world.until(job, lambda seen: seen.state == "SUSPENDED")
    first = next(iter(world.client.attempts(job)))
    assert (first.state, first.failure) == ("CANCELLED", None)
    world.client.cancel(job)


@pytest.mark.long
def test_the_log_of_a_rank_on_another_pod_is_found_without_reports(world: World) -> None:
    job, _ = world.running(pods=2)
    world.until(job, lambda _: "I am rank 1" in world.client.logs(job))
    assert [world.client.logs(job, rank=rank).splitlines() for rank in range(2)] == [["I am rank 0"], ["I am rank 1"]]
    world.client.cancel(job)
