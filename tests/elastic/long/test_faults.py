"""Every fault on purpose, on real agents: what it does, and to whom it does nothing."""

from __future__ import annotations

from pathlib import Path

from tests.elastic.errands import chaos, evidence, request, start, state_of, told
from tests.elastic.harness import Job, alive, wait_for
from trainer.contract.chaos import Chaos, Fault
from trainer.contract.exit_record import Outcome
from trainer.contract.launch import DesiredDocument, DesiredState


def test_a_rank_that_is_not_here_tells_nothing(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    request(job, DesiredDocument(number=1, stacks=1, stacks_rank=7))
    request(job, DesiredDocument(number=2, stacks=2, stacks_rank=0))
    assert [evidence(event)["wish"] for event in told(agent, "stacks.saved")] == [2]


def test_a_frozen_rank_is_told_to_be_silent(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    chaos(job, Fault.HANG, rank=0)
    told(agent, "chaos.injected")
    request(job, DesiredDocument(number=2, stacks=2))
    (event,) = told(agent, "stacks.saved")
    assert (evidence(event)["ranks"], evidence(event)["silent"]) == ([1], [0])


def test_what_another_life_of_the_agent_has_claimed_is_not_done_again(job: Job, tmp_path: Path) -> None:
    job.attempt.mkdir(parents=True)
    (job.attempt / "chaos-1").touch()
    chaos(job, Fault.KILL)
    agent = start(job, tmp_path)
    pids = agent.pids(1)
    chaos(job, Fault.SLOW, number=2, rank=0)
    told(agent, "chaos.injected")
    assert [evidence(each)["number"] for each in agent.events("chaos.injected")] == [2]
    assert all(alive(pid) for pid in pids.values())


def test_an_agent_that_is_to_stop_strikes_nobody(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    request(job, DesiredDocument(state=DesiredState.STOP, number=1, chaos=Chaos(number=1, fault=Fault.KILL)))
    assert agent.wait(60) == 143
    assert agent.exit_record().outcome is Outcome.CANCELLED
    assert agent.events("chaos.injected") == []


def test_a_hang_is_noticed_as_any_other_is(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path, heartbeat_timeout_s=3.0)
    victim = agent.pids(1)[0]
    chaos(job, Fault.HANG, rank=0)
    told(agent, "chaos.injected")
    agent.pids(2)
    failure = told(agent, "worker.failed")[0]
    assert (evidence(failure)["kind"], evidence(failure)["rank"]) == ("hang", 0)
    wait_for(lambda: not alive(victim), "end of the frozen worker")


def test_a_slow_worker_stands_still_again_and_again_and_nobody_dies(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    victim, other = agent.pids(1)[1], agent.pids(1)[0]
    chaos(job, Fault.SLOW, rank=1)
    told(agent, "chaos.injected")
    for state in ("T", "S", "T"):
        wait_for(lambda wanted=state: state_of(victim) in (wanted, "R" if wanted == "S" else wanted), f"state {state}")
    assert state_of(other) != "T"
    assert agent.events("worker.failed") == []


def test_a_preempted_agent_ends_as_one_that_its_cluster_told_to_go(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    chaos(job, Fault.PREEMPT)
    assert agent.wait(60) == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED
    assert [evidence(each)["fault"] for each in agent.events("chaos.injected")] == ["preempt"]
    assert (job.attempt / "chaos-1-r0").exists()


def test_a_lost_node_leaves_no_record_and_no_worker(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    pids = agent.pids(1)
    chaos(job, Fault.NODE_LOSS)
    assert agent.wait(60) == -9
    wait_for(lambda: not any(alive(pid) for pid in pids.values()), "end of the workers")
    assert not (agent.folder / "exit.json").exists()
    assert [evidence(each)["fault"] for each in agent.events("chaos.injected")] == ["node-loss"]


def test_a_fault_for_another_agent_is_left_to_it(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    chaos(job, Fault.KILL, replica=3)
    chaos(job, Fault.SLOW, number=2, rank=1)
    told(agent, "chaos.injected")
    assert [evidence(each)["number"] for each in agent.events("chaos.injected")] == [2]
    assert not (job.attempt / "chaos-1").exists()
