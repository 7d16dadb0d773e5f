"""A worker of a user's own script is killed, and the others enter the script's function again, with their states."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.elastic.generations import await_steps, count_rises, latest, losses, restored, settle, steps_of
from tests.elastic.harness import ROOT, SCRIPTS, Agent, Job, short_tmpdir, wait_for
from trainer import snapshot
from trainer.contract import env, layout


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A killed worker cannot delete what Python's multiprocessing made there."""
    with short_tmpdir() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


def start(job: Job, ranks: int = 2, *, interval: str = "1000000", **options: object) -> Agent:
    arguments = [f"--nproc-per-node={ranks}", str(SCRIPTS / "reentered.py"), json.dumps(options)]
    return job.policy(max_restarts=100).start(*arguments, **{env.SNAPSHOT_INTERVAL: interval})


def undisturbed(tmp_path: Path, ranks: int = 2, **options: object) -> dict[int, set[float]]:
    job = Job(tmp_path / "whole")
    agent = start(job, ranks, **options)
    assert agent.wait() == 0, agent.printed()
    return losses(agent)


def check_curve(agent: Agent, whole: dict[int, set[float]]) -> None:
    """Every reported loss is that of the undisturbed run, also where a step was repeated.

    A rank 0 that was killed between its update and its report leaves a step without a loss: others continue after it.
    """
    found = losses(agent)
    assert {step: (found[step], whole[step]) for step in found if found[step] != whole[step]} == {}
    assert whole.keys() - found.keys() <= {event["step"] for event in restored(agent)}


def kill(agent: Agent, victim: int, ranks: int = 2) -> int:
    """Kill a rank after some steps, and check that all others get an order to stay. Returns the next generation."""
    pids, generation = settle(agent, ranks), latest(agent) + 1
    os.kill(pids[victim], signal.SIGKILL)
    following = agent.pids(generation)
    assert {rank for rank in pids if following[rank] == pids[rank]} == set(range(ranks)) - {victim}
    return generation


def replaced(agent: Agent) -> set[int]:
    """The generations in which a survivor was replaced: sometimes one stays in a collective of gloo."""
    return {int(str(event["generation"])) for event in agent.events("worker.replaced")}


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(2, {}, marks=pytest.mark.smoke),
        (3, {}),
        (2, {"loaders": 2}),
        (2, {"accumulate": 3}),
        (2, {"step_s": 0.01}),
    ],
    ids=["two", "three", "loaders", "accumulation", "slow-update"],
)
def test_no_step_is_repeated_and_the_curve_is_the_same(
    job: Job, tmp_path: Path, ranks: int, options: dict[str, object]
) -> None:
    whole = undisturbed(tmp_path, ranks, **options)
    agent = start(job, ranks, interval="20", **options)
    for victim in (1, 0, 0, ranks - 1):
        kill(agent, victim, ranks)
    assert agent.wait() == 0, agent.printed()
    check_curve(agent, whole)
    handed_over = {each["generation"]: each["evidence"] for each in agent.events("restored")}
    for generation in {2, 3, 4, 5} - replaced(agent):
        evidence = handed_over[generation]
        assert evidence["source"] == "survivor"  # type: ignore[index]
        newest = max(max(steps) for steps in steps_of(agent, generation - 1).values())
        repeated = newest - int(str(evidence["step"]))  # type: ignore[index]
        assert repeated < int(str(options.get("accumulate", 1))), "no update is repeated"


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("exchanges", [False, True], ids=["", "collective-in-the-update"])
def test_kills_at_any_moment_do_not_change_the_curve(job: Job, tmp_path: Path, ranks: int, exchanges: bool) -> None:
    """Also within the update of a survivor, if it exchanges something there, and while states are handed over."""
    options = {"steps": 400, "step_s": 0.004, "exchanges": exchanges}
    whole = undisturbed(tmp_path, ranks, **options)
    agent, rng = start(job, ranks, interval="10", **options), random.Random(f"{ranks} {exchanges}")
    for _ in range(10):
        workers = settle(agent, ranks)
        time.sleep(rng.random() * 0.03)
        with suppress(ProcessLookupError):
            os.kill(workers[rng.randrange(ranks)], signal.SIGKILL)
        time.sleep(rng.random() * 0.2)
        following = agent.pids(latest(agent))
        with suppress(ProcessLookupError):  # it may be the first victim, whose end the agent has not noticed yet
            os.kill(following[rng.randrange(ranks)], signal.SIGKILL)
        if agent.process.poll() is not None:
            break
    assert agent.wait() == 0, agent.printed()
    assert len(agent.events("worker.failed")) >= 5
    check_curve(agent, whole)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"without": ["optimizer"]}, "there is no torch optimizer among the objects"),
        ({"has_buffers": True}, "model saves buffers"),
        ({"is_own": True}, "the objects differ between ranks"),
    ],
    ids=["no-optimizer", "buffers", "different"],
)
def test_without_a_handover_survivors_stay_and_continue_from_a_snapshot(
    job: Job, options: dict[str, object], reason: str
) -> None:
    agent = start(job, interval="3", **options)
    snapshots = layout.snapshots_dir(job.folder)
    wait_for(lambda: snapshot.list_committed(snapshots), "a snapshot")
    for _ in range(2):
        kill(agent, 1)
    assert agent.wait() == 0, agent.printed()
    assert {found["source"] for found in restored(agent)} == {"disk"}
    assert reason in agent.log(1, 0)


def test_an_error_of_the_script_itself_ends_its_process(job: Job, tmp_path: Path) -> None:
    whole = undisturbed(tmp_path)
    agent = start(job, raises_at=6)
    first, second = agent.pids(1), agent.pids(2)
    assert (first[0] == second[0], first[1] == second[1]) == (True, False), "only its peer stays"
    assert agent.wait() == 0, agent.printed()
    check_curve(agent, whole)
    assert "ValueError: an error of its own" in str(agent.events("worker.failed")[0]["sentence"])


def test_a_stop_reaches_a_process_that_has_entered_the_function_again(job: Job) -> None:
    agent = start(job, steps=10**6)
    kill(agent, 1)
    settle(agent)
    agent.process.send_signal(signal.SIGTERM)
    agent.wait()
    assert agent.events("snapshot.committed"), "a snapshot before the stop"


def test_a_process_of_many_generations_holds_no_more_than_one_of_few(job: Job) -> None:
    agent = start(job, steps=10**6)
    counts, sizes, kept = [], [], 0
    while len(counts) < 16:
        pids = settle(agent)
        if pids[0] != kept:
            counts, sizes, kept = [], [], pids[0]
        process = Path(f"/proc/{kept}")
        counts.append((len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))))
        resident = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
        sizes.append(int(resident.split()[1]))
        kill(agent, 1)
        assert latest(agent) < 80
    for each in zip(*counts, strict=True):
        assert count_rises(each) <= 5, each
    assert max(sizes[8:]) <= 1.25 * max(sizes[:5]), sizes


@pytest.mark.parametrize(
    ("hangs_in", "state"),
    [
        pytest.param("collective", ("survivor", 6), marks=pytest.mark.smoke),
        ("update", ("disk", 5)),
        ("script", ("disk", 5)),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_survivor_that_hangs_hands_over_only_in_a_collective(
    job: Job, hangs_in: str, state: tuple[str, int], ranks: int
) -> None:
    """Elsewhere the script may be changing its objects. Its process ends then: only a timeout would let it go on."""
    agent = start(job, ranks, interval="5", steps=10**6, hangs_in=hangs_in)
    pids, others = agent.pids(1), range(ranks - 1)
    wait_for(lambda: all((job.folder / f"hangs-{rank}").exists() for rank in others), "step 6")
    os.kill(pids[ranks - 1], signal.SIGKILL)
    await_steps(agent, 2, 3, ranks)
    (found,) = restored(agent)
    assert (found["source"], found["step"]) == state
    replaced = [event["evidence"]["rank"] for event in agent.events("worker.replaced")]  # type: ignore[index]
    assert sorted(replaced) == list(others)
    assert len(agent.events("worker.failed")) == 1, "the replacements cost no restart"


def test_a_kill_during_a_snapshot_leaves_a_survivor(job: Job) -> None:
    """The survivor waits for files of the killed rank, and not in a collective."""
    agent = start(job, interval="5", steps=10**6, stops_in_save=True)
    pids = agent.pids(1)
    snapshots = layout.snapshots_dir(job.folder)
    stopped = job.folder / "stopped"
    wait_for(stopped.exists, "rank 1 in a save")
    os.kill(pids[1], signal.SIGKILL)
    assert agent.pids(2)[0] == pids[0]
    await_steps(agent, 2, 2)
    (found,) = restored(agent)
    assert (found["source"], found["step"]) == ("survivor", 5)
    assert all(name.term.generation == 2 for name in snapshot.list_committed(snapshots))
    assert agent.events("worker.replaced") == []


def test_the_example_of_the_documentation_repeats_no_step(job: Job) -> None:
    arguments = ["--nproc-per-node=2", str(ROOT / "docs/examples/reentered_ddp.py"), "--steps=400"]
    agent = job.policy(max_restarts=3).start(*arguments)
    kill(agent, 0)
    assert agent.wait() == 0, agent.printed()
    if not replaced(agent):
        (found,) = restored(agent)
        assert found["source"] == "survivor"
        assert found["step"] == max(max(steps) for steps in steps_of(agent, 1).values())
