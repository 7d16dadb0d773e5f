"""A killed worker of the bundled trainer is replaced, and the others keep their processes and states."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.tools import missing
from tests.elastic.generations import await_steps, count_rises, latest, losses, restored, settle, steps_of
from tests.elastic.harness import (
    ELASTICRUN,
    SCRIPTS,
    TWO,
    Agent,
    Job,
    c10d,
    free_port,
    read_lines,
    short_tmpdir,
    wait_for,
)
from trainer.contract import layout
from trainer.elastic.health.processes import is_gone
from trainer.elastic.launch import SPARES


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A killed worker cannot delete what Python's multiprocessing made there."""
    with short_tmpdir() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


CONFIG = {
    "preset": "nano",
    "global_batch": 6,
    "micro_batch": 1,
    "seq_len": 32,
    "snapshot_interval": 1000,
    "steps": 10**6,
}
FORGETFUL = str(SCRIPTS / "forgetful.py")


def start(job: Job, *flags: str, **settings: object) -> Agent:
    config = json.dumps({**CONFIG, **settings})
    return job.policy(max_restarts=100).start(*(flags or (TWO,)), "-m", "trainer", "--config", config)


@pytest.mark.parametrize("data_workers", [0, pytest.param(2, marks=pytest.mark.smoke)])
def test_under_ddp_no_step_is_repeated_and_the_curve_is_the_same(job: Job, tmp_path: Path, data_workers: int) -> None:
    """Processes that read data have inherited the sockets of the group, and outlive a killed worker."""
    undisturbed = start(Job(tmp_path / "whole"), steps=120, strategy="ddp")
    assert undisturbed.wait() == 0, undisturbed.printed()
    agent = start(job, steps=120, strategy="ddp", data_workers=data_workers)
    kept: set[int] = set()
    for generation, victim in enumerate((1, 0, 0, 1), start=1):
        pids = agent.pids(generation)
        await_steps(agent, generation, 5)
        os.kill(pids[victim], signal.SIGKILL)
        following = agent.pids(generation + 1)
        assert following[1 - victim] == pids[1 - victim]
        assert following[victim] != pids[victim]
        kept.add(pids[1 - victim])
    assert agent.wait() == 0, agent.printed()
    assert losses(agent) == losses(undisturbed)
    assert [found["source"] for found in restored(agent)] == ["survivor"] * 4
    for generation in range(1, 5):
        before, after = steps_of(agent, generation), steps_of(agent, generation + 1)
        newest = max(max(steps) for steps in before.values())
        assert {min(steps) for steps in after.values()} == {newest + 1}
    failed = agent.events("worker.failed")
    assert [event["evidence"]["collateral_ranks"] for event in failed] == [[]] * 4
    started = agent.events("generation.started")
    assert [event["evidence"]["survivors"] for event in started] == [[], [0], [1], [1], [0]]
    assert agent.events("worker.replaced") == []


def test_with_three_ranks_the_newest_state_of_any_survivor_counts(job: Job, tmp_path: Path) -> None:
    undisturbed = start(Job(tmp_path / "whole"), "--nproc-per-node=3", steps=60, strategy="ddp")
    assert undisturbed.wait() == 0, undisturbed.printed()
    agent = start(job, "--nproc-per-node=3", steps=60, strategy="ddp")
    for generation, victim in enumerate((0, 1, 2), start=1):
        agent.pids(generation)
        pids = settle(agent, ranks=3)  # one that gloo held on to may have been replaced
        os.kill(pids[victim], signal.SIGKILL)
        following = agent.pids(generation + 1)
        assert {rank for rank in pids if following[rank] == pids[rank]} == {0, 1, 2} - {victim}
    assert agent.wait() == 0, agent.printed()
    assert losses(agent) == losses(undisturbed)
    newest = [max(max(steps) for steps in steps_of(agent, generation).values()) for generation in (1, 2, 3)]
    assert [found["step"] for found in restored(agent)] == newest


@pytest.mark.parametrize(("victim", "strategy"), [(0, "ddp"), (1, "ddp"), (1, "fsdp")])
def test_workers_outlive_the_loss_of_another_node_and_its_return(job: Job, victim: int, strategy: str) -> None:
    """The first agent serves the store."""
    copies, port = ("off" if strategy == "ddp" else 1), free_port()
    config = json.dumps({**CONFIG, "strategy": strategy, "snapshot_memory": copies})
    job.policy(max_restarts=0)

    def start_node(replica: int) -> Agent:
        flags = ["--nnodes=1:2", *c10d(port, host=replica == 0)]
        return job.start(*flags, "-m", "trainer", "--config", config, replica=replica)

    agents = [start_node(replica) for replica in (0, 1)]
    other = agents[1 - victim]
    wait_for(lambda: {size(each) for each in agents} == {2}, "a group of two")
    settle(other, ranks=1)
    (pid,) = other.pids(latest(other)).values()
    for _ in range(3):
        agents[victim].process.kill()
        wait_for(lambda: size(other) == 1, "a group of one")
        settle(other, ranks=1)
        agents[victim] = start_node(victim)
        wait_for(lambda: size(other) == 2, "a group of two")
        settle(other, ranks=1)
    lines = read_lines(other.folder / "progress.jsonl")
    assert {line["pid"] for line in lines} == {pid}
    made = [step for _, step in dict.fromkeys((line["generation"], line["step"]) for line in lines if is_step(line))]
    sources = [found["source"] for agent in job.agents for found in restored(agent)]
    if strategy == "ddp":
        assert made == list(range(1, len(made) + 1)), "each step is made once"
        assert set(sources) == {"survivor"}
    assert len(sources) >= 6
    assert other.events("worker.replaced") == []


def size(agent: Agent) -> int:
    """The world size of the newest generation."""
    started = agent.events("generation.started")
    return int(str(started[-1]["evidence"]["world_size"])) if started else 0  # type: ignore[index]


def is_step(line: dict[str, object]) -> bool:
    return line["phase"] == "step" and bool(line.get("step"))


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_sharded_survivors_continue_from_a_copy(job: Job, tmp_path: Path, strategy: str) -> None:
    undisturbed = start(Job(tmp_path / "whole"), steps=60, strategy=strategy)
    assert undisturbed.wait() == 0, undisturbed.printed()
    agent = start(job, steps=60, strategy=strategy, snapshot_memory=1)
    for generation in (1, 2):
        pids = agent.pids(generation)
        await_steps(agent, generation, 6)
        os.kill(pids[generation % 2], signal.SIGKILL)
        assert agent.pids(generation + 1)[1 - generation % 2] == pids[1 - generation % 2]
    assert agent.wait() == 0, agent.printed()
    assert losses(agent) == losses(undisturbed)
    assert {found["source"] for found in restored(agent)} == {"memory"}
    logs = [path.read_text() for path in job.folder.rglob(layout.WORKER_LOG)]
    assert logs
    assert not any("handed over" in log for log in logs), "no rank has the whole state"


@pytest.mark.parametrize(("strategy", "source"), [("ddp", "survivor"), ("fsdp", "memory")])
def test_neither_survivors_nor_copies_need_dev_shm(job: Job, strategy: str, source: str) -> None:
    own_mounts = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    fill = "mount -t tmpfs -o size=64k tmpfs /dev/shm; head -c 64k /dev/zero > /dev/shm/full; "
    if subprocess.run([*own_mounts, fill], capture_output=True, timeout=60, check=False).returncode:
        missing("this machine allows no mount namespaces")
    config = json.dumps({**CONFIG, "strategy": strategy, "snapshot_memory": 1})
    program = [*own_mounts, fill + 'exec "$@"', "sh", *ELASTICRUN]
    agent = job.policy(max_restarts=9).start(TWO, "-m", "trainer", "--config", config, program=program)
    for generation in (1, 2):
        settle(agent)
        os.kill(agent.pids(generation)[generation % 2], signal.SIGKILL)
        await_steps(agent, generation + 1, 3)
    assert [found["source"] for found in restored(agent)] == [source] * 2


def test_a_survivor_that_does_not_follow_is_replaced(job: Job) -> None:
    """A stopped process stands for one that cannot leave its group."""
    agent = start(job, strategy="ddp")
    pids = agent.pids(1)
    await_steps(agent, 1, 3)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: agent.events("worker.replaced"), "a replaced worker")
    (replaced,) = agent.events("worker.replaced")
    assert replaced["sentence"] == f"rank 0 joins generation 2 as a new process: process {pids[0]} was late"
    assert replaced["evidence"]["rank"] == 0  # type: ignore[index]
    agent.worker_pids.add(int(replaced["evidence"]["pid"]))  # type: ignore[index]
    await_steps(agent, 2, 3)
    agent.pids(2)
    assert len(agent.events("worker.failed")) == 1, "the replacement costs no restart"


def test_a_survivor_that_is_killed_before_it_joins_is_replaced(job: Job) -> None:
    agent = start(job, strategy="ddp")
    pids = settle(agent)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: agent.events("worker.failed"), "the first death")
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: agent.events("worker.replaced") or len(agent.events("worker.failed")) > 1, "the second death")
    (replaced,) = agent.events("worker.replaced")
    assert (
        replaced["sentence"] == f"rank 0 joins generation 2 as a new process: process {pids[0]} was killed by SIGKILL"
    )


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.smoke)])
def test_survivors_that_hang_in_a_collective_hand_their_states_over(job: Job, ranks: int) -> None:
    """Their processes end then: only the collective's timeout would let the main threads go on."""
    config = json.dumps({**CONFIG, "strategy": "ddp"})
    agent = job.policy(max_restarts=1).start(f"--nproc-per-node={ranks}", FORGETFUL, "--config", config)
    pids, others = agent.pids(1), range(ranks - 1)
    wait_for(lambda: all((job.folder / f"hangs-{rank}").exists() for rank in others), "the collectives of step 6")
    os.kill(pids[ranks - 1], signal.SIGKILL)
    await_steps(agent, 2, 3, ranks)
    (found,) = restored(agent)
    assert (found["source"], found["step"]) == ("survivor", 5)
    replaced = [event["evidence"]["rank"] for event in agent.events("worker.replaced")]  # type: ignore[index]
    assert sorted(replaced) == list(others)
    assert len(agent.events("worker.failed")) == 1, "the replacements cost no restart"


@pytest.mark.parametrize("settings", [{"snapshot_memory": "off"}, {"snapshot_memory": 1, "keep_survivors": False}])
def test_an_evaluation_that_a_death_interrupts_is_made_again(job: Job, settings: dict[str, object]) -> None:
    task = {"task": "tests.elastic.scripts.evaluating:task", "steps": 8, "evaluate_every": 4, "global_batch": 4}
    config = json.dumps({**task, "micro_batch": 1, "strategy": "ddp", "snapshot_interval": 1000, **settings})
    agent = job.policy(max_restarts=2).start(TWO, "-m", "trainer", "--config", config)
    for generation, step in ((1, 4), (2, 8)):
        pids = agent.pids(generation)
        wait_for(partial(evaluates, agent, generation, step), f"the evaluation of step {step}")
        os.kill(pids[1], signal.SIGKILL)
    assert agent.wait() == 0, agent.printed()
    assert [found["step"] for found in restored(agent)] == [4, 8]
    lines = [line for generation in (1, 2, 3) for line in agent.progress(generation)]
    reported = [line["step"] for line in lines if "evaluation_loss" in (line.get("metrics") or {})]  # type: ignore[operator]
    assert reported == [4, 8]


def evaluates(agent: Agent, generation: int, step: int) -> bool:
    return any(line["phase"] == "evaluation" and line["step"] == step for line in agent.progress(generation))


def test_a_stop_during_a_restart_saves_the_state_of_the_survivor(job: Job) -> None:
    config = json.dumps({**CONFIG, "strategy": "ddp"})
    agent = job.policy(max_restarts=9, stop_timeout_s=60).start(
        TWO, "-m", "trainer", "--config", config, **{SPARES: "0"}
    )
    pids = settle(agent)
    os.kill(pids[1], signal.SIGKILL)
    agent.pids(2)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143, agent.printed()
    assert agent.events("stacks.saved") == [], "no worker had to be killed"
    (saved,) = agent.events("snapshot.committed")
    newest = max(step for steps in steps_of(agent, 1).values() for step in steps)
    assert saved["evidence"]["step"] > newest  # type: ignore[index]


def test_a_survivor_that_wakes_up_too_late_is_replaced_once(job: Job) -> None:
    agent = start(job, strategy="ddp")
    pids = settle(agent)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: is_gone(pids[0]) or has_pending(pids[0], signal.SIGTERM), "the replacement")
    with suppress(ProcessLookupError):
        os.kill(pids[0], signal.SIGCONT)
    await_steps(agent, 2, 3)
    assert len(agent.events("worker.failed")) == 1, agent.printed()
    assert len(agent.events("worker.replaced")) == 1


def has_pending(pid: int, number: int) -> bool:
    """Whether a signal to this process waits (proc(5), status, ShdPnd)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd"))
    return bool(mask >> (number - 1) & 1)


def test_survivors_end_with_a_job_that_may_not_restart(job: Job) -> None:
    config = json.dumps({**CONFIG, "strategy": "ddp"})
    agent = job.policy(max_restarts=0).start(TWO, "-m", "trainer", "--config", config)
    pids = agent.pids(1)
    await_steps(agent, 1, 3)
    os.kill(pids[1], signal.SIGKILL)
    assert agent.wait() == 1


def test_a_stop_reaches_survivors_and_new_workers(job: Job) -> None:
    agent = start(job, strategy="ddp")
    pids = agent.pids(1)
    await_steps(agent, 1, 3)
    os.kill(pids[1], signal.SIGKILL)
    agent.pids(2)
    await_steps(agent, 2, 2)
    agent.process.send_signal(signal.SIGTERM)
    agent.wait()
    assert any("committed" in str(event["kind"]) for event in agent.events()), "a snapshot before the stop"


def test_survivors_can_be_switched_off(job: Job) -> None:
    agent = start(job, strategy="ddp", keep_survivors=False)
    pids = agent.pids(1)
    await_steps(agent, 1, 3)
    os.kill(pids[1], signal.SIGKILL)
    assert set(agent.pids(2).values()).isdisjoint(pids.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "ddp"},
        {"strategy": "fsdp"},
        {"strategy": "ddp", "tensorboard": True},
        {"strategy": "ddp", "profile": "2:100000"},
    ],
    ids=["ddp", "fsdp", "tensorboard", "profile"],
)
def test_a_survivor_of_many_generations_holds_no_more_than_one_of_few(job: Job, settings: dict[str, object]) -> None:
    agent, pid = start(job, snapshot_memory=1, global_batch=2, **settings), 0
    files, threads, sizes = list[int](), list[int](), list[int]()
    while len(files) < 20:
        pids = settle(agent)
        if pids[0] != pid:  # the main thread hung in gloo, and a new process replaced it
            pid, files, threads, sizes = pids[0], [], [], []
        process = Path(f"/proc/{pid}")
        files.append(len(list((process / "fd").iterdir())))
        threads.append(len(list((process / "task").iterdir())))
        resident = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
        sizes.append(int(resident.split()[1]))
        os.kill(pids[1], signal.SIGKILL)
        wait_for(partial(is_gone, pids[1]), "the end of rank 1")
    for counts in (files, threads):
        assert count_rises(counts) <= 5, counts
    assert max(sizes[10:]) <= 1.25 * max(sizes[:5]), sizes


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_kills_at_any_moment_of_a_restart_do_not_change_the_curve(job: Job, tmp_path: Path, strategy: str) -> None:
    """The survivor, or the new worker, is killed too, while states are handed over, chosen and read."""
    settings = {"steps": 120, "strategy": strategy, "snapshot_memory": 1, "snapshot_interval": 20}
    undisturbed = start(Job(tmp_path / "whole"), **settings)
    assert undisturbed.wait() == 0, undisturbed.printed()
    agent, rng = start(job, **settings), random.Random(strategy)
    for _ in range(12):
        workers = settle(agent)
        os.kill(workers[rng.randrange(2)], signal.SIGKILL)
        time.sleep(rng.random() * 0.2)
        following = agent.pids(latest(agent))
        with suppress(ProcessLookupError):  # it may be the first victim, whose end the agent has not noticed yet
            os.kill(following[rng.randrange(2)], signal.SIGKILL)
    assert agent.wait() == 0, agent.printed()
    assert len(agent.events("worker.failed")) >= 12
    assert losses(agent) == losses(undisturbed)
