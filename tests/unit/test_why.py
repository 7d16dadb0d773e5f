"""Why a job stands as it does: the right cause, and what helps against it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from orchestrator.domain.accounting.chronicle import Chronicle, read_life
from orchestrator.domain.accounting.goodput import Ledger, add_up
from orchestrator.domain.accounting.life import Kept, lay_out
from orchestrator.domain.explanation.remedies import REMEDIES, find_remedy
from orchestrator.domain.explanation.why import Why, explain
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from tests.builders import at, make_attempt, make_event, make_job, make_spec
from trainer.contract.failure import Failure, FailureKind

RAISED = Failure(
    kind=FailureKind.APPLICATION,
    message="KeyError: 'labels'",
    rank=0,
    traceback=(
        "Traceback (most recent call last):\n"
        '  File "/src/train.py", line 40, in <module>\n    main()\n'
        '  File "/src/train.py", line 12, in main\n    batch["labels"]\n'
        "KeyError: 'labels'\n"
    ),
)
ODD = Failure(kind=FailureKind.APPLICATION, message="AssertionError: 3 is not 4", rank=1, step=30)


def failed(generation: int, *, seconds: float, attempt: int = 1, rank: int = 1, **evidence: object) -> Event:
    told: dict[str, object] = {"kind": "application", "message": "killed by SIGKILL", "rank": rank, "step": 30}
    return make_event(
        "worker.failed", at=at(seconds), attempt=attempt, generation=generation, evidence={**told, **evidence}
    )


def started(generation: int, *, seconds: float, attempt: int = 1) -> Event:
    return make_event(
        "generation.started", at=at(seconds), attempt=attempt, generation=generation, evidence={"world_size": 2}
    )


def tell(job: Job, attempts: list[Attempt], events: list[Event], ledger: Ledger | None = None) -> Why:
    chronicle = Chronicle(job=job, attempts=attempts, events=events, kept={}, heard_at={})
    return explain(chronicle, read_life(chronicle), ledger or Ledger())


def test_a_running_job_tells_what_it_has_recovered_from() -> None:
    events = [failed(1, seconds=5, collateral_ranks=[0, 1]), started(2, seconds=6)]
    why = tell(make_job(state=JobState.RUNNING, reason="step 40 of 300"), [make_attempt()], events)
    assert why.cause is not None
    assert (why.cause.over, why.cause.generation, why.cause.collateral_ranks) == (True, 1, (0,))
    assert why.verdict == ("step 40 of 300; recovered from: application, rank 1 after step 30: killed by SIGKILL")
    assert why.next == "nothing"


def test_the_victim_of_a_lost_peer_is_not_the_cause() -> None:
    events = [
        failed(1, seconds=5, rank=0, lost_a_peer=True, message="connection closed by peer"),
        failed(1, seconds=6, rank=3, lost_a_peer=False),
    ]
    why = tell(make_job(state=JobState.RECOVERING), [make_attempt()], events)
    assert why.cause is not None
    assert why.cause.failure.rank == 3


@pytest.mark.parametrize("behind", [0, 1])
def test_of_ranks_that_several_agents_call_hung_the_one_behind_in_steps_is_the_cause(behind: int) -> None:
    """Where the script says nothing of collectives, who waits in one for a hung rank looks hung too."""
    events = [failed(1, seconds=5, rank=rank, kind="hang", step=30 - (rank == behind)) for rank in (0, 1)]
    why = tell(make_job(state=JobState.RUNNING), [make_attempt()], [*events, started(2, seconds=6)])
    assert why.cause is not None
    assert (why.cause.failure.kind, why.cause.failure.rank) == (FailureKind.HANG, behind)


def test_where_peers_alone_were_lost_and_the_group_shrank_a_node_is_the_cause() -> None:
    shrunk = make_event("group.shrunk", at=at(7), attempt=1, generation=2, sentence="went on with 1 of 2 workers")
    victim = failed(1, seconds=5, rank=0, lost_a_peer=True, message="connection closed by peer")
    events = [victim, shrunk, started(2, seconds=7)]
    why = tell(make_job(state=JobState.RUNNING), [make_attempt()], events)
    assert why.cause is not None
    assert why.cause.failure.kind is FailureKind.NODE
    assert why.cause.failure.message == "a node or its agent was lost: went on with 1 of 2 workers"
    restarted = make_event("restart.in_place", at=at(6), attempt=1, generation=2)
    why = tell(make_job(state=JobState.RUNNING), [make_attempt()], [victim, restarted, started(2, seconds=7)])
    assert why.cause is not None
    assert why.cause.failure.kind is FailureKind.APPLICATION


def test_a_failed_job_names_its_last_attempts_failure_and_what_helps() -> None:
    failure = Failure(
        kind=FailureKind.APPLICATION, message="ModuleNotFoundError: No module named 'einops'", rank=0, exit_code=1
    )
    ended = make_attempt(number=2, state=AttemptState.FAILED, ended_at=at(9), failure=failure, marked_nodes=("n3",))
    job = make_job(state=JobState.FAILED, reason="the same error twice")
    why = tell(job, [make_attempt(), ended], [failed(1, seconds=3)])
    assert why.cause is not None
    assert (why.cause.attempt, why.cause.failure, why.cause.nodes, why.cause.over) == (2, failure, ("n3",), False)
    assert why.verdict.startswith("the same error twice. The first cause: application, rank 0: ModuleNotFoundError")
    assert why.remedy is not None
    assert why.remedy.name == "missing module"
    assert why.next.endswith("then `orchestrator retry job-1`")


def test_what_the_reason_says_already_is_not_said_again() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    reason = f"{ODD.message}; the budget of 0 application failures is spent"
    assert tell(make_job(state=JobState.FAILED, reason=reason), [ended], []).verdict == (
        f"application, rank 1 after step 30: {reason}"
    )
    events = [failed(1, seconds=5), started(2, seconds=6)]
    recovered = tell(make_job(state=JobState.RUNNING, reason="killed by SIGKILL"), [make_attempt()], events)
    assert recovered.verdict.endswith("recovered from: application, rank 1 after step 30")


def test_a_job_without_trouble_has_no_cause() -> None:
    why = tell(make_job(state=JobState.QUEUED, reason="waits for 2 slots"), [], [])
    assert (why.verdict, why.cause, why.remedy, why.lost) == ("waits for 2 slots", None, None, "nothing")


def test_a_failed_job_without_a_known_error_may_be_retried() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    why = tell(make_job(state=JobState.FAILED, reason="the budget is spent"), [ended], [])
    assert (why.remedy, why.next) == (None, "`orchestrator retry job-1`")


def advice_on(failure: Failure, run: dict[str, object]) -> tuple[str | None, str]:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=failure)
    job = make_job(spec=make_spec(run=run), state=JobState.FAILED, reason="the same error twice")
    why = tell(job, [ended], [])
    return None if why.remedy is None else why.remedy.fix, why.next


def test_an_error_of_the_script_has_to_be_fixed_at_its_line() -> None:
    fix, advice = advice_on(RAISED, {"script": "train.py"})
    assert fix == "fix the script at /src/train.py, line 12"
    assert advice == "fix the script at /src/train.py, line 12; then `orchestrator retry job-1`"


def test_wrong_arguments_have_to_be_corrected_before_a_retry() -> None:
    _, advice = advice_on(SAID["arguments"], {"script": "train.py"})
    assert advice == "correct `run.args` (`--set 'run.args=[...]'`); then `orchestrator retry job-1`"


def test_an_error_without_a_line_of_the_script_has_to_be_fixed_all_the_same() -> None:
    elsewhere = replace(RAISED, traceback=(RAISED.traceback or "").replace("/src/", "/opt/venv/site-packages/"))
    assert advice_on(elsewhere, {"module": "train"}) == (
        "fix the script",
        "fix the script; then `orchestrator retry job-1`",
    )


def test_the_bundled_trainer_is_no_script_to_fix_but_a_task_of_ones_own_is() -> None:
    assert advice_on(RAISED, {"trainer": {}}) == (None, "`orchestrator retry job-1`")
    assert advice_on(RAISED, {"trainer": {"task": "train:task"}})[0] == "fix the script at /src/train.py, line 12"


@pytest.mark.parametrize(
    "message",
    [
        "torch.distributed.DistNetworkError: Connection was likely closed. Did the remote server shutdown or crash?",
        "torch.distributed.DistStoreError: wait timeout",
        "RuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: NCCL Error 1: unhandled cuda error",
        "RuntimeError: cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
        "RuntimeError: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm",
        "RuntimeError: HIP error: invalid argument",
        "RuntimeError: Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_what_torch_tells_of_devices_and_peers_is_not_the_scripts(message: str) -> None:
    assert advice_on(replace(RAISED, message=message, traceback=RAISED.traceback), {"script": "train.py"})[0] is None


def test_of_a_kill_is_told_which_signal_it_was_and_who_did_not_send_it() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=replace(SAID["killed"], rank=1))
    why = tell(make_job(state=JobState.RECOVERING), [ended], [])
    assert why.remedy is not None
    assert why.remedy.cause.startswith(
        "SIGKILL ended the worker, and neither the service nor an agent of the job sent it"
    )


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_every_signal_that_ends_a_worker_without_a_word_is_known(signal: str) -> None:
    found = find_remedy(Failure(kind=FailureKind.UNKNOWN, message=f"the worker was killed by {signal}"))
    assert found is not None
    assert found.name == "killed"


def test_nobody_is_suspected_of_a_kill_on_purpose() -> None:
    told = {"kind": "unknown", "message": "the worker was killed by SIGKILL", "signal": "SIGKILL"}
    asked = make_event("chaos.requested", at=at(3), attempt=1, evidence={"fault": "kill", "number": 7, "attempt": 1})
    done = make_event("chaos.injected", at=at(4), attempt=1, generation=1, evidence={"fault": "kill", "number": 7})
    job, events = make_job(state=JobState.RUNNING), [failed(1, seconds=5, **told)]
    suspected, on_purpose = (tell(job, [make_attempt()], each) for each in (events, [asked, done, *events]))
    assert suspected.remedy is not None
    assert on_purpose.cause is not None
    assert on_purpose.cause.chaos is not None
    assert on_purpose.remedy is None


def test_an_error_that_only_speaks_of_a_device_is_the_scripts() -> None:
    message = "AttributeError: 'Batch' object has no attribute 'cuda'"
    assert advice_on(replace(RAISED, message=message), {"script": "train.py"})[0] is not None


def test_a_job_that_succeeded_says_what_it_went_through() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    job = make_job(state=JobState.SUCCEEDED, reason="training finished at step 60")
    why = tell(job, [ended, make_attempt(number=2, state=AttemptState.SUCCEEDED)], [])
    assert why.verdict.startswith("training finished at step 60; recovered from: application, rank 1")
    in_place = tell(job, [make_attempt()], [failed(1, seconds=5)]).cause
    assert in_place is not None
    assert in_place.over


def test_an_attempt_that_replaced_a_failed_one_has_recovered_once_it_runs() -> None:
    attempts = [make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD), make_attempt(number=2)]
    starting = tell(make_job(state=JobState.STARTING), attempts, [failed(1, seconds=8)])
    running = tell(make_job(state=JobState.RUNNING), attempts, [failed(1, seconds=8)])
    assert [why.cause and why.cause.over for why in (starting, running)] == [False, True]
    assert running.cause is not None
    assert (running.cause.failure, running.cause.generation) == (ODD, 1)


def test_a_failure_in_place_is_newer_than_that_of_an_attempt_before() -> None:
    attempts = [make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD), make_attempt(number=2)]
    why = tell(make_job(state=JobState.RUNNING), attempts, [failed(1, seconds=20, attempt=2)])
    assert why.cause is not None
    assert (why.cause.attempt, why.cause.over) == (2, False)
    after = tell(make_job(state=JobState.RUNNING), attempts, [failed(1, seconds=20), failed(2, seconds=21)])
    assert after.cause is not None
    assert (after.cause.attempt, after.cause.failure) == (1, ODD)


def test_a_recovering_job_has_nothing_to_do_but_wait() -> None:
    ended = make_attempt(state=AttemptState.LOST, ended_at=at(9), failure=ODD)
    why = tell(make_job(state=JobState.RECOVERING, reason="the next attempt starts in 5 s"), [ended], [])
    assert why.verdict.startswith("the next attempt starts in 5 s. The first cause: application, rank 1 after step 30")
    assert why.next == "nothing to do; the next attempt starts by itself"


@pytest.mark.parametrize(
    ("has_snapshot", "source", "beginning"),
    [
        (True, None, "the newest snapshot"),
        (True, "/runs/other/snapshots", "the newest snapshot"),
        (False, None, "the beginning"),
        (False, "/runs/other/snapshots", "the snapshot that `snapshot.from` names"),
    ],
)
def test_a_cancelled_jobs_retry_begins_where_it_can(has_snapshot: bool, source: str | None, beginning: str) -> None:
    job = make_job(spec=make_spec(snapshot={"from": source}), state=JobState.CANCELLED, reason="was cancelled")
    chronicle = Chronicle(job=job, attempts=[], events=[], kept={}, heard_at={}, has_snapshot=has_snapshot)
    assert (
        explain(chronicle, read_life(chronicle), Ledger()).next
        == f"`orchestrator retry job-1` begins another attempt from {beginning}"
    )


def test_actions_are_those_since_the_trouble_with_the_rule_that_fired() -> None:
    before = make_event("job.state", at=at(1), sentence="started", evidence={"state": "STARTING", "rule": "start"})
    after = make_event("job.state", at=at(8), sentence="starts anew", evidence={"state": "STARTING", "rule": "recover"})
    why = tell(make_job(state=JobState.RUNNING), [make_attempt()], [before, failed(1, seconds=5), after])
    assert [(action.sentence, action.rule) for action in why.deeds] == [("starts anew", "recover")]


def test_what_was_lost_is_counted_by_the_ledger() -> None:
    events = [started(1, seconds=0), failed(1, seconds=14), started(2, seconds=16)]
    chronicle = Chronicle(
        job=make_job(spec=make_spec(topology={"nodes": "1", "workers_per_node": 2}), state=JobState.RUNNING),
        attempts=[make_attempt(created_at=at(0))],
        events=events,
        kept={(1, 1): kept(1, 10), (1, 2): kept(17, 21)},
        heard_at={1: at(21)},
    )
    life = read_life(chronicle)
    assert (
        explain(chronicle, life, add_up(lay_out(life, at(21)))).lost
        == "12.0 device-seconds of 42.0 (8.0 re-done, 4.0 recovering)"
    )


def kept(first: int, last: int) -> Kept:
    return Kept(steps=last - first + 1, first_at=at(first), last_at=at(last))


def test_times_of_journals_are_read_where_they_are_numbers_only() -> None:
    """Anyone may write into a run directory."""
    nonsense = make_event("group.shrunk", attempt=1, generation=2, evidence={"seconds": "soon"})
    grown = make_event("generation.started", at=at(3), attempt=1, generation=2, evidence={"world_size": "many"})
    chronicle = Chronicle(job=make_job(), attempts=[make_attempt()], events=[nonsense, grown], kept={}, heard_at={})
    (attempt,) = read_life(chronicle).attempts
    assert [(one.world_size, one.noticed_at) for one in attempt.generations] == [(1, nonsense.at)]


def test_a_retried_job_rested_between_its_end_and_the_retry() -> None:
    def state(name: str, when: datetime) -> Event:
        return make_event("job.state", at=when, evidence={"state": name})

    events = [state("STARTING", at(0)), state("FAILED", at(10)), state("QUEUED", at(30)), state("STARTING", at(31))]
    job = make_job(state=JobState.RUNNING, created_at=at(0))
    life = read_life(Chronicle(job=job, attempts=[], events=events, kept={}, heard_at={}))
    assert [(rest.since, rest.until) for rest in life.rests] == [(at(10), at(30))]


SAID = {
    "device memory": Failure(kind=FailureKind.DEVICE_OOM, message="CUDA out of memory"),
    "host memory": Failure(kind=FailureKind.HOST_OOM, message="the kernel killed it for memory"),
    "disk quota": Failure(kind=FailureKind.STORAGE, message="OSError: [Errno 122] Disk quota exceeded"),
    "disk full": Failure(kind=FailureKind.STORAGE, message="OSError: [Errno 28] No space left on device"),
    "missing module": Failure(kind=FailureKind.APPLICATION, message="ImportError: cannot import name 'x'"),
    "permission": Failure(kind=FailureKind.APPLICATION, message="PermissionError: [Errno 13] Permission denied"),
    "image": Failure(kind=FailureKind.LAUNCH, message="ImagePullBackOff: pull access denied for trainer"),
    "refused by the scheduler": Failure(
        kind=FailureKind.LAUNCH, message="Slurm refuses the job: Batch job submission failed: Invalid partition name"
    ),
    "node environment": Failure(
        kind=FailureKind.LAUNCH, message="Slurm job 7 could not start: module torch/99 cannot be loaded"
    ),
    "missing file or command": Failure(kind=FailureKind.LAUNCH, message="the script 'train.py' does not exist"),
    "not a number": Failure(kind=FailureKind.NUMERIC, message="loss is nan"),
    "network interface": Failure(kind=FailureKind.APPLICATION, message="Unable to find address for: eth9"),
    "port taken": Failure(kind=FailureKind.RENDEZVOUS, message="port 29400 is already in use (EADDRINUSE)"),
    "group did not form": Failure(kind=FailureKind.RENDEZVOUS, message="RendezvousTimeoutError"),
    "collective timed out": Failure(
        kind=FailureKind.APPLICATION, message="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    ),
    "lost peer": Failure(kind=FailureKind.APPLICATION, message="RuntimeError: Connection closed by peer [10.0.0.1]"),
    "broken device": Failure(kind=FailureKind.APPLICATION, message="CUDA error: uncorrectable ECC error encountered"),
    "arguments": Failure(
        kind=FailureKind.APPLICATION,
        message="the worker ended with exit code 2: train.py: error: the following arguments are required: --lr",
    ),
    "killed": Failure(kind=FailureKind.UNKNOWN, message="the worker was killed by SIGKILL", signal="SIGKILL"),
    "cancelled in Slurm": Failure(
        kind=FailureKind.PREEMPTED, message="it was cancelled in Slurm by alice (Slurm job 7, CANCELLED)"
    ),
    "hang": Failure(kind=FailureKind.HANG, message="reported nothing for 90 s in phase step"),
    "time limit": Failure(kind=FailureKind.TIMEOUT, message="the time limit of the job"),
    "deleted in Kubernetes": Failure(
        kind=FailureKind.PREEMPTED, message="its Job was deleted in the cluster, and not by this service"
    ),
    "preemption": Failure(kind=FailureKind.PREEMPTED, message="preempted"),
    "lost node": Failure(kind=FailureKind.NODE, message="node n3 is down"),
    "storage": Failure(kind=FailureKind.STORAGE, message="no snapshot could be read"),
    "error in the script": RAISED,
}


@pytest.mark.parametrize("remedy", [remedy.name for remedy in REMEDIES])
def test_each_known_error_is_found_by_what_is_said_of_it(remedy: str) -> None:
    found = find_remedy(SAID[remedy])
    assert found is not None
    assert found.name == remedy


def test_the_owner_of_a_job_that_can_never_start_is_told_to_change_it() -> None:
    reason = "waits in Slurm's queue as job 12: PartitionConfig (it can never start: no node has so much)"
    advice = "`orchestrator cancel job-1`, then submit it with other resources, topology or placement"
    assert tell(make_job(state=JobState.STARTING, reason=reason), [], []).next == advice
    assert (
        tell(make_job(state=JobState.STARTING, reason="waits: Resources"), [], []).next
        == "nothing to do; it starts by itself"
    )


def test_an_unknown_error_gets_no_remedy() -> None:
    assert find_remedy(ODD) is None
