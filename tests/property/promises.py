"""What must hold after every step, and what must hold once all faults have stopped."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Job, JobState
from tests.fakes.group import FakeAttempt
from tests.property.causes import ran_too_long
from tests.property.world import LOOK_S, SLOTS, World
from trainer.contract.progress import Phase


def check(world: World) -> None:
    assert not world.ledger.wrong, world.ledger.wrong[:3]
    assert not world.cluster.breaches, world.cluster.breaches[:3]
    _check_reality(world)
    _check_limits(world)
    for job in world.jobs():
        _check_counts(world, job)
        oracle = world.oracle(job.id)
        wrong = oracle.follow() if oracle is not None else []
        assert not wrong, f"{job.id}: {wrong}"


def _check_reality(world: World) -> None:
    for key, real in world.cluster.attempts.items():
        known = world.store.tables.attempts[key]
        assert real.starts <= 1, f"{key} trains twice"
        assert real.stop_requests <= 1, f"{key} was asked to stop {real.stop_requests} times"
        assert not (known.state.terminal and real.at_work), f"{key} ended {known.state} and is at work"
    used = world.cluster.used_slots()
    assert used <= SLOTS, f"{used} of {SLOTS} slots are used"


def _check_limits(world: World) -> None:
    live = world.live()
    assert len({attempt.port for attempt in live}) == len(live), "two live attempts share a port"
    assert len({attempt.key.job_id for attempt in live}) == len(live), "a job has two live attempts"
    for attempt in live:
        assert attempt.key in world.store.tables.ports, f"{attempt.key} holds no port"
    devices: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    for attempt in live:
        spec = world.job(attempt.key.job_id).spec
        devices[spec.project] += attempt.max_nodes * spec.topology.count_workers(1)
        jobs[spec.project] += 1
    assert devices.total() <= SLOTS, f"{devices.total()} of {SLOTS} slots are promised"
    limits = world.limits
    assert limits.max_jobs is None or jobs.total() <= limits.max_jobs, f"{jobs.total()} jobs run"
    for project, quota in limits.quotas.items():
        assert quota.max_jobs is None or jobs[project] <= quota.max_jobs, f"{project} runs {jobs[project]} jobs"
        assert quota.max_devices is None or devices[project] <= quota.max_devices, f"{project}: {devices[project]}"


def _check_counts(world: World, job: Job) -> None:
    """Each attempt but the first needs a fault or a request."""
    attempts = world.store.attempts_of(job.id)
    mine = [real for key, real in world.cluster.attempts.items() if key.job_id == job.id]
    never_whole = sum(real.partial or (real.stall is not None and real.stall.phase is Phase.START) for real in mine)
    overlong = sum(ran_too_long(attempt, job.spec.supervise.max_runtime_s) for attempt in attempts)
    causes = world.harm[job.id] + never_whole + overlong + world.ledger.requested[job.id] + world.ledger.grown[job.id]
    assert len(attempts) <= causes + 1, f"{job.id} had {len(attempts)} attempts for {causes} faults and requests"


def check_rest(world: World) -> None:
    """All faults have stopped, and every job has had time to end."""
    for job in world.jobs():
        assert job.state.terminal, f"{job.id} is still {job.state}: {job.reason}"
        assert job.desired.cancelled or job.retries_done == job.desired.retry_number, f"{job.id} awaits its retry"
    assert not world.live()
    running = [str(key) for key, attempt in world.cluster.attempts.items() if attempt.runs]
    assert not running, f"{running} still run"
    # A port may be reserved for an attempt that was never written down. The job's next attempt gets it.
    held = [str(key) for key in world.store.tables.ports if key in world.store.tables.attempts]
    assert not held, f"ports are held by {held}"


def check_settled(world: World) -> None:
    """Faults have stopped and a pass has run: requests and observations must be in the store."""
    for attempt in world.live():
        job = world.job(attempt.key.job_id)
        _check_requests(job, attempt)
        real = world.cluster.attempts.get(attempt.key)
        if real is not None and attempt.stopping_since is None and not real.cut_off:
            _check_seen(job, attempt, real)
        limit_s, started_at = job.spec.supervise.max_runtime_s, attempt.started_at
        if limit_s is not None and started_at is not None and attempt.stopping_since is None:
            assert world.clock.now() - started_at < timedelta(seconds=limit_s + 2 * LOOK_S), f"{attempt.key} runs on"
    for job in world.jobs():
        idle = all(attempt.state.terminal for attempt in world.store.attempts_of(job.id))
        if idle and job.desired.suspended and not job.state.terminal:
            assert job.state is JobState.SUSPENDED, f"{job.id} is suspended and {job.state}"


def _check_requests(job: Job, attempt: Attempt) -> None:
    key, requested, stopping = attempt.key, job.desired, attempt.stopping_since is not None
    unwanted = requested.cancelled or requested.suspended or requested.retry_number > job.retries_done
    assert stopping or not unwanted, f"{key} continues against its owner's request"
    if stopping or attempt.state is not AttemptState.RUNNING:
        return
    assert attempt.snapshots_told == requested.snapshot_number, (
        f"{key} was not told of snapshot {requested.snapshot_number}"
    )
    assert job.spec.topology.max_nodes >= attempt.max_nodes, f"{key} has {attempt.nodes} nodes, more than requested"


def _check_seen(job: Job, attempt: Attempt, real: FakeAttempt) -> None:
    if real.queued is not None:
        assert attempt.state is AttemptState.PENDING, (
            f"{attempt.key} waits in the cluster's queue and is {attempt.state}"
        )
    if real.training and real.working and not any(agent.exit_record for agent in real.agents):
        assert attempt.state is AttemptState.RUNNING, f"{attempt.key} trains and is {attempt.state}"
        assert job.state is JobState.RUNNING, f"{attempt.key} trains and {job.id} is {job.state}"
        alive = {agent.replica for agent in real.agents if agent.running}
        dead = {agent.node for agent in real.agents if agent.claimed and agent.replica not in alive}
        assert dead <= {*attempt.marked_nodes}, f"{attempt.key} continued without {dead}, which were not marked"
