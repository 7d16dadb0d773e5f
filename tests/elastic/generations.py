"""What the workers of an agent did over several generations: losses, steps, sources of states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tests.elastic.harness import Agent, alive, read_lines, wait_for


def losses(agent: Agent) -> dict[int, set[float]]:
    """The losses that were reported for each step: one, unless a step was repeated differently."""
    found: dict[int, set[float]] = {}
    for line in read_lines(agent.folder / "progress.jsonl"):
        if "loss" in line.get("metrics", {}):
            found.setdefault(line["step"], set()).add(line["metrics"]["loss"])
    return found


def steps_of(agent: Agent, generation: int) -> dict[int, list[int]]:
    """The steps that each rank reported in a generation."""
    found: dict[int, list[int]] = {}
    for line in agent.progress(generation):
        if line["phase"] == "step" and line.get("step"):
            found.setdefault(int(str(line["rank"])), []).append(int(str(line["step"])))
    return found


def await_steps(agent: Agent, generation: int, steps: int, ranks: int = 2) -> None:
    def reported() -> bool:
        found = steps_of(agent, generation)
        return len(found) == ranks and min(map(len, found.values())) >= steps

    wait_for(reported, f"{steps} steps of {ranks} ranks in generation {generation}")


def restored(agent: Agent) -> list[dict[str, object]]:
    return [dict(event["evidence"]) for event in agent.events("restored")]  # type: ignore[call-overload]


def settle(agent: Agent, ranks: int = 2) -> dict[int, int]:
    """Wait until all ranks of the newest generation live and have made three steps, and return their pids."""
    pids: dict[int, int] = {}

    def has_settled() -> bool:
        generation = latest(agent)
        steps = steps_of(agent, generation)
        pids.update((int(str(line["rank"])), int(str(line["pid"]))) for line in agent.progress(generation))
        return len(steps) == ranks and min(map(len, steps.values())) >= 3 and all(map(alive, pids.values()))

    wait_for(has_settled, "three steps of all ranks")
    return pids


def count_rises(counts: Sequence[int]) -> int:
    """How often a count was greater than all before. A group that hangs keeps its files until its timeout, so counts
    may rise sometimes. A leak raises them in each generation."""
    return sum(after > most for most, after in zip(accumulate(counts, max), counts[1:], strict=False))


def latest(agent: Agent) -> int:
    """The newest generation."""
    wait_for(lambda: agent.events("generation.started"), "the first generation")
    return max(int(str(event["generation"])) for event in agent.events("generation.started"))
