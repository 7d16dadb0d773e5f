"""Orders to a worker that outlives its group, and the worker's answers, through the real pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.contract import env
from trainer.contract.env import WorkerPlace, parse_place
from trainer.elastic.workers import reentry
from trainer.elastic.workers.reentry import Reentry, Stage, open_reentry, train_again
from trainer.elastic.workers.survivors import Survivors

PID = os.getpid()


@pytest.fixture
def survivors() -> Iterator[Survivors]:
    lines = Survivors(2)
    yield lines
    lines.close()


def place_of(survivors: Survivors) -> WorkerPlace:
    return parse_place({**survivors.environment, "LOCAL_RANK": "1"})


@pytest.fixture(autouse=True)
def a_worker_s_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Orders change this process: its environment, and where its output goes."""
    for name in ("RANK", "WORLD_SIZE", env.GENERATION):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("ORCHESTRATOR_REPLICA_DIR", raising=False)
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setattr(reentry, "_ORDER_WITHIN_S", 0.3)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def test_an_order_gives_a_worker_its_next_place(survivors: Survivors) -> None:
    worker = Reentry(place_of(survivors))
    survivors.replace(1, {"RANK": "1", "WORLD_SIZE": "2", "GONE": "1"})
    assert not survivors.has_joined(1, PID, 1)
    worker.tell(1, Stage.JOINED)
    assert survivors.has_joined(1, PID, 1)
    assert not survivors.can_stay(1, PID, 1), "it has not made a step"
    worker.note_step(1, 0.5)
    assert survivors.can_stay(1, PID, 1)
    assert survivors.has_joined(1, PID, 1)
    assert survivors.order(1, 2, {"RANK": "0", "WORLD_SIZE": "2", env.GENERATION: "2"})
    assert worker.await_order(1, lambda: False)
    assert (os.environ["RANK"], os.environ[env.GENERATION], os.environ["WORLD_SIZE"]) == ("0", "2", "")
    assert "GONE" not in os.environ
    assert not survivors.has_joined(1, PID, 2)
    worker.tell(2, Stage.JOINED)
    assert survivors.has_joined(1, PID, 2)
    assert not survivors.can_stay(1, PID, 2)
    assert not survivors.has_joined(1, PID + 1, 2), "another process has this local rank now"
    assert not survivors.has_joined(0, PID, 2)


def test_without_an_order_a_worker_stops_waiting(survivors: Survivors) -> None:
    worker = Reentry(place_of(survivors))
    assert not worker.await_order(1, lambda: False)
    assert survivors.order(1, 2, {})
    assert not worker.await_order(2, lambda: False), "the order is for a generation that is over"
    assert not worker.await_order(2, lambda: True), "after a stop signal"
    assert survivors.order(1, 3, {})
    assert worker.await_order(2, lambda: True), "the others of the group wait for this worker, also to stop"


def test_a_new_process_does_not_get_the_order_of_the_one_before_it(survivors: Survivors) -> None:
    assert survivors.order(1, 2, {"RANK": "0"})
    survivors.replace(1, {"RANK": "0"})
    assert not Reentry(place_of(survivors)).await_order(1, lambda: False)


def test_an_order_that_does_not_fit_into_the_pipe_is_refused(survivors: Survivors) -> None:
    assert not survivors.order(1, 2, {"LARGE": "x" * 100_000})
    survivors.replace(1, {})
    assert survivors.order(1, 3, {"RANK": "1"})
    assert Reentry(place_of(survivors)).await_order(1, lambda: False)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"nonsense", b"[]", b"1", b"{}", b"\xff\xfe", b"[" * 3000),
        b'{"pid": 1, "generation": "x", "stage": "trains", "leaves_within_s": 1}',
        b'{"pid": 1, "generation": 1, "stage": "sleeps", "leaves_within_s": 1}',
    ],
)
def test_an_answer_that_no_worker_gives_is_ignored(survivors: Survivors, answer: bytes) -> None:
    worker = Reentry(place_of(survivors))
    _, answers = place_of(survivors).own_reentry
    with Path(answers).open("wb", buffering=0) as pipe:
        pipe.write(answer + b"\n")
        worker.tell(1, Stage.JOINED)
        assert survivors.has_joined(1, PID, 1)


@pytest.mark.parametrize(("has_second_thread", "within_s"), [(False, 12.5), (True, 14.5)])
def test_a_worker_is_late_if_it_does_not_notice_within_some_of_its_steps(
    survivors: Survivors, monkeypatch: pytest.MonkeyPatch, has_second_thread: bool, within_s: float
) -> None:
    """A second thread gets two seconds more: it begins when the main thread is late. A script has none."""
    now_s = 0.0
    monkeypatch.setattr("trainer.elastic.workers.survivors.time.monotonic", lambda: now_s)
    worker = Reentry(place_of(survivors))
    worker.has_second_thread = has_second_thread
    for step_s in (0.1, 0.15, 0.1, 4.0, 7.9):  # it tells only that steps became much longer
        worker.note_step(1, step_s)
    assert survivors.can_stay(1, PID, 1)
    assert survivors.order(1, 2, {})
    now_s = within_s - 0.1
    assert not survivors.is_late(1)
    now_s = within_s + 0.1
    assert survivors.is_late(1)
    worker.note_step(1, 20.0)
    assert not survivors.has_joined(1, PID, 2)
    assert survivors.is_late(1), "it still trains in the old generation"
    worker.tell(1, Stage.HANDS_OVER)
    assert not survivors.has_joined(1, PID, 2)
    now_s += 29
    assert not survivors.is_late(1), "its state may be large"
    worker.tell(1, Stage.LEAVES)
    assert not survivors.has_joined(1, PID, 2)
    assert not survivors.is_late(1)
    now_s += 1.6
    assert survivors.is_late(1)


def test_a_worker_that_noticed_before_the_agent_can_stay(survivors: Survivors) -> None:
    worker = Reentry(place_of(survivors))
    worker.note_step(1, 0.1)
    worker.tell(1, Stage.LEAVES)
    assert survivors.can_stay(1, PID, 1)


LOST = "[pair.cc:547] Connection closed by peer [127.0.0.1]:33423"


def sizes(world_size: int, local_world_size: int) -> dict[str, str]:
    return {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local_world_size), "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("variables", "has_device", "can_stay"),
    [
        (sizes(2, 2), False, True),
        (sizes(2, 2), True, False),
        (sizes(4, 2), False, False),
        ({**sizes(4, 2), env.COPY_SERVER: "http://n1:1"}, False, True),
        ({**sizes(4, 2), env.COPY_SERVER: "http://n1:1"}, True, False),
        (sizes(1, 1), False, False),
        ({**sizes(1, 1), env.COPY_SERVER: "http://n1:1"}, False, True),
    ],
    ids=["one-node", "gpu", "two-nodes", "two-nodes-read", "two-nodes-gpu", "alone", "alone-of-several-nodes"],
)
def test_a_process_outlives_its_group_on_cpus_if_its_state_can_be_read(
    survivors: Survivors, variables: dict[str, str], has_device: bool, can_stay: bool
) -> None:
    opened = open_reentry(parse_place({**survivors.environment, **variables}), has_device=has_device)
    assert (opened is not None) is can_stay


def test_without_pipes_a_process_ends_with_its_group(survivors: Survivors) -> None:
    place = parse_place({**survivors.environment, **sizes(2, 2)})
    survivors.close()
    assert open_reentry(place, has_device=False) is None
    assert open_reentry(parse_place(sizes(2, 2)), has_device=False) is None


def test_a_process_trains_again_after_it_has_lost_a_peer_and_ends_with_its_own_error(survivors: Survivors) -> None:
    worker = Reentry(place_of(survivors))
    generations: list[int] = []
    excepthook = sys.excepthook

    def train(place: WorkerPlace) -> None:
        generations.append(place.generation)
        assert sys.excepthook is excepthook, "the one of a group adds its rank to a traceback, once for each group"
        sys.excepthook = lambda *_: None
        if len(generations) > 2:
            raise RuntimeError("an error of its own")
        worker.note_step(place.generation, 0.1)
        assert survivors.order(1, place.generation + 1, {env.GENERATION: str(place.generation + 1)})
        assert worker.has_order
        raise RuntimeError(LOST)

    def forget() -> None:
        assert not worker.has_order

    with pytest.raises(RuntimeError, match="of its own"):
        train_again(train, place_of(survivors), worker, is_stopped=lambda: False, forget=forget)
    assert generations == [1, 2, 3]


@pytest.mark.parametrize("has_trained", [False, True])
def test_without_a_step_or_an_order_a_lost_peer_ends_the_process(survivors: Survivors, has_trained: bool) -> None:
    worker = Reentry(place_of(survivors))

    def train(place: WorkerPlace) -> None:
        if has_trained:
            worker.note_step(place.generation, 0.1)
        raise RuntimeError(LOST)

    with pytest.raises(RuntimeError, match="closed by peer"):
        train_again(train, place_of(survivors), worker, is_stopped=lambda: False, forget=lambda: None)
