"""What owners and the world do to single jobs: requests by the service's own commands, faults by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from orchestrator.commands.job_commands import Commands
from orchestrator.domain.errors import Conflict, Unavailable
from orchestrator.simulator.rehearsal.agenda import SECOND, Agenda
from orchestrator.simulator.rehearsal.attempt import SimulatedAttempt
from orchestrator.simulator.rehearsal.cluster import Fate, SimulatedCluster
from orchestrator.simulator.rehearsal.scenario import Deed
from orchestrator.wire.job_requests import RetryRequest
from trainer.contract.failure import Failure, FailureKind

_AGAIN_US = 60 * SECOND
_COSTLY = ("suspend", "scale", "retry")  # requests that take another attempt


class Deeds:
    """`refused` holds requests that came at the wrong time, as they do."""

    def __init__(self, agenda: Agenda, cluster: SimulatedCluster, commands: Commands) -> None:
        self.refused: list[str] = []
        self.left = 0
        self._agenda = agenda
        self._cluster = cluster
        self._commands = commands

    def plan(self, deed: Deed) -> None:
        if deed.what in set(Fate):
            self._cluster.fates[deed.job] = Fate(deed.what)
            return
        self.left += 1
        self._agenda.at(deed.at_us, partial(self._do, deed))

    def _do(self, deed: Deed) -> None:
        """Now, or a minute later where it cannot be done now."""
        fault = _FAULTS.get(deed.what)
        try:
            done = self._request(deed) if fault is None else self._strike(deed.job, fault)
        except Unavailable:
            done = False
        if done:
            self.left -= 1
            self._cluster.changed = True
        else:
            self._agenda.after(_AGAIN_US, partial(self._do, deed))

    def _request(self, deed: Deed) -> bool:
        try:
            match deed.what:
                case "retry":
                    self._commands.retry(deed.job, RetryRequest(patch=dict(deed.value)))
                case "scale":
                    self._commands.scale(deed.job, str(deed.value["nodes"]))
                case "snapshot":
                    self._commands.snapshot(deed.job)
                case "suspend":
                    self._commands.suspend(deed.job)
                case "resume":
                    self._commands.resume(deed.job)
                case "cancel":
                    self._commands.cancel(deed.job)
                case _:
                    raise AssertionError(f"nobody knows how to {deed.what}")
        except Conflict as error:
            self.refused.append(str(error))
            return True
        if deed.what in _COSTLY:
            self._cluster.jobs[deed.job].faults[deed.what] += 1
        return True

    def _strike(self, job_id: str, fault: Callable[[SimulatedCluster, SimulatedAttempt], None]) -> bool:
        attempt = self._cluster.attempt_of(job_id)
        if attempt is None or not attempt.trains:
            return False
        fault(self._cluster, attempt)
        return True


def _kill_node(cluster: SimulatedCluster, attempt: SimulatedAttempt) -> None:
    cluster.fail_nodes(attempt.nodes[-1:], repair_us=None)


def _cut_off(_: SimulatedCluster, attempt: SimulatedAttempt) -> None:
    attempt.cut_off()


def _kill_worker(_: SimulatedCluster, attempt: SimulatedAttempt) -> None:
    message = "worker 1 was killed by SIGKILL"
    attempt.fail_worker(Failure(kind=FailureKind.UNKNOWN, message=message, rank=1, signal="SIGKILL"))


def _hang(deaf: bool, _: SimulatedCluster, attempt: SimulatedAttempt) -> None:
    attempt.hang(deaf=deaf, slow_rank=attempt.plan.workers_per_node)  # the first one of the second node


def _orphan(_: SimulatedCluster, attempt: SimulatedAttempt) -> None:
    attempt.orphan()


_FAULTS: dict[str, Callable[[SimulatedCluster, SimulatedAttempt], None]] = {
    "kill-node": _kill_node,
    "cut-off": _cut_off,
    "kill-worker": _kill_worker,
    "hang": partial(_hang, False),
    "hang-deaf": partial(_hang, True),
    "orphan": _orphan,
}
