"""Injected faults on real agents: what each does, and where it does nothing."""

from __future__ import annotations

from pathlib import Path

from tests.elastic.harness import Job, alive, wait_for
from tests.elastic.requested import await_events, chaos, evidence, request, start
from trainer.contract.chaos import Chaos, Fault
from trainer.contract.exit_record import Outcome
from trainer.contract.launch import DesiredDocument, DesiredState
from trainer.elastic.health.processes import stat_fields


def test_stacks_of_a_rank_on_another_node_are_not_saved(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    request(job, DesiredDocument(number=1, stacks=1, stacks_rank=7))
    request(job, DesiredDocument(number=2, stacks=2, stacks_rank=0))
    assert [evidence(event)["wish"] for event in await_events(agent, "stacks.saved")] == [2]


def test_a_stopped_rank_does_not_answer_a_request_for_stacks(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    chaos(job, Fault.HANG, rank=0)
    await_events(agent, "chaos.injected")
    request(job, DesiredDocument(number=2, stacks=2))
    (event,) = await_events(agent, "stacks.saved")
    assert (evidence(event)["ranks"], evidence(event)["silent"]) == ([1], [0])


def test_a_fault_that_an_earlier_incarnation_has_claimed_is_not_repeated(job: Job, tmp_path: Path) -> None:
    job.attempt.mkdir(parents=True)
    (job.attempt / "chaos-1").touch()
    chaos(job, Fault.KILL)
    agent = start(job, tmp_path)
    pids = agent.pids(1)
    chaos(job, Fault.SLOW, number=2, rank=0)
    await_events(agent, "chaos.injected")
    assert [evidence(each)["number"] for each in agent.events("chaos.injected")] == [2]
    assert all(alive(pid) for pid in pids.values())


def test_an_agent_that_must_stop_injects_no_fault(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    request(job, DesiredDocument(state=DesiredState.STOP, number=1, chaos=Chaos(number=1, fault=Fault.KILL)))
    assert agent.wait(300) == 143
    assert agent.exit_record().outcome is Outcome.CANCELLED
    assert agent.events("chaos.injected") == []


def test_a_slow_worker_stops_and_continues_repeatedly_and_no_worker_dies(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    victim, other = agent.pids(1)[1], agent.pids(1)[0]
    chaos(job, Fault.SLOW, rank=1)
    await_events(agent, "chaos.injected")
    for states in ("T", "SR", "T"):
        wait_for(lambda wanted=states: stat_fields(victim)[0] in wanted, f"state {states}")
    assert stat_fields(other)[0] != "T"
    assert agent.events("worker.failed") == []


def test_a_preempted_agent_ends_with_the_outcome_preempted(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    chaos(job, Fault.PREEMPT)
    assert agent.wait(300) == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED
    assert [evidence(each)["fault"] for each in agent.events("chaos.injected")] == ["preempt"]
    assert (job.attempt / "chaos-1-r0").exists()


def test_a_lost_node_leaves_no_exit_record_and_no_worker(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    pids = agent.pids(1)
    chaos(job, Fault.NODE_LOSS)
    assert agent.wait(300) == -9
    wait_for(lambda: not any(alive(pid) for pid in pids.values()), "end of the workers")
    assert not (agent.folder / "exit.json").exists()
    assert [evidence(each)["fault"] for each in agent.events("chaos.injected")] == ["node-loss"]


def test_a_fault_for_another_agent_is_not_claimed(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    chaos(job, Fault.KILL, replica=3)
    chaos(job, Fault.SLOW, number=2, rank=1)
    await_events(agent, "chaos.injected")
    assert [evidence(each)["number"] for each in agent.events("chaos.injected")] == [2]
    assert not (job.attempt / "chaos-1").exists()
