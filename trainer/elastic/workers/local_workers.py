"""A node's workers of one generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.elastic.chaos import Worker
from trainer.elastic.health.postmortem import Death
from trainer.elastic.workers.fork_server_client import ForkedProcess
from trainer.elastic.workers.streams import Output
from trainer.elastic.workers.workers import AgentPlace


@dataclass(frozen=True, kw_only=True)
class LocalWorkers:
    """This node's workers of one generation, by local rank."""

    place: AgentPlace
    processes: dict[int, ForkedProcess]
    environs: Mapping[int, Mapping[str, str]]
    outputs: Mapping[int, Output]  # outside a job
    folders: Mapping[int, Path]  # with a worker's error file, and in a job also its log and stacks

    @property
    def running(self) -> dict[int, ForkedProcess]:
        return {rank: process for rank, process in self.processes.items() if process.returncode is None}

    @property
    def orders(self) -> list[int]:
        """The numbers of the workers' orders to the fork server."""
        return [process.number for process in self.processes.values()]

    @property
    def by_rank(self) -> dict[int, Worker]:
        """The running workers, by rank."""
        return {
            self.place.ranks[local_rank]: Worker(pid=process.pid, folder=self.folders[local_rank])
            for local_rank, process in self.running.items()
        }

    def find_deaths(self) -> list[Death]:
        """The workers that have ended with another exit code than 0."""
        codes = {local_rank: process.poll() for local_rank, process in self.processes.items()}
        return [
            Death(
                rank=self.place.ranks[local_rank],
                local_rank=local_rank,
                exit_code=code,
                folder=self.folders[local_rank],
            )
            for local_rank, code in codes.items()
            if code
        ]
