"""Carry out the actions of the mixed trace: owners' requests, through the real commands, and faults."""

from __future__ import annotations

from functools import partial

from orchestrator.commands.job_commands import Commands
from orchestrator.domain.errors import Conflict, Unavailable
from orchestrator.simulator.simulated_cluster import SimulatedCluster, SubmissionFault
from orchestrator.simulator.virtual_clock import SECOND, VirtualClock, us
from orchestrator.simulator.workload import Action
from orchestrator.wire.job_requests import RetryRequest
from trainer.contract.failure import Failure, FailureKind

_AGAIN_US = 60 * SECOND
_FAULTS = ("kill-node", "cut-off", "kill-worker", "hang", "hang-deaf", "orphan")
_TAKES_ANOTHER_ATTEMPT = ("suspend", "scale", "retry")


class ScriptedActions:
    """`left` is how many actions have not happened yet."""

    def __init__(self, clock: VirtualClock, cluster: SimulatedCluster, commands: Commands) -> None:
        self.left = 0
        self._clock = clock
        self._cluster = cluster
        self._commands = commands

    def schedule(self, job_id: str, action: Action) -> None:
        if action.name in set(SubmissionFault):
            self._cluster.submission_faults[job_id] = SubmissionFault(action.name)
            return
        self.left += 1
        self._clock.at(us(action.at_h * 3600), partial(self._try, job_id, action))

    def _try(self, job_id: str, action: Action) -> None:
        """Carry out the action, or try again in a minute."""
        try:
            done = self._inject(job_id, action.name) if action.name in _FAULTS else self._request(job_id, action)
        except Unavailable:
            done = False
        if done:
            self.left -= 1
            self._cluster.changed = True
        else:
            self._clock.after(_AGAIN_US, partial(self._try, job_id, action))

    def _request(self, job_id: str, action: Action) -> bool:
        """Make a request. One that is refused is not repeated."""
        try:
            self._call(job_id, action)
        except Conflict:
            return True
        if action.name in _TAKES_ANOTHER_ATTEMPT:
            self._cluster.jobs[job_id].faults[action.name] += 1
        return True

    def _call(self, job_id: str, action: Action) -> None:
        match action.name:
            case "retry":
                self._commands.retry(job_id, RetryRequest(patch=dict(action.arguments)))
            case "scale":
                self._commands.scale(job_id, str(action.arguments["nodes"]))
            case "snapshot":
                self._commands.snapshot(job_id)
            case "suspend":
                self._commands.suspend(job_id)
            case "resume":
                self._commands.resume(job_id)
            case "cancel":
                self._commands.cancel(job_id)
            case _:
                raise AssertionError(f"there is no action {action.name}")

    def _inject(self, job_id: str, fault: str) -> bool:
        """Inject a fault. Returns False if the job is not training now."""
        attempt = self._cluster.attempt_of(job_id)
        if attempt is None or not attempt.trains:
            return False
        match fault:
            case "kill-node":
                self._cluster.fail_nodes(attempt.nodes[-1:], repair_us=None)
            case "kill-worker":
                message = "worker 1 was killed by SIGKILL"
                attempt.fail_worker(Failure(kind=FailureKind.UNKNOWN, message=message, rank=1, signal="SIGKILL"))
            case "cut-off":
                attempt.cut_off()
            case "hang" | "hang-deaf":
                attempt.hang(deaf=fault == "hang-deaf")
            case "orphan":
                attempt.orphan()
        return True
