"""Run a preflight and exclude the nodes that fail it from the real job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer

from orchestrator.cli.common import JOB_FAILED
from orchestrator.client import Client
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.trials import build_preflight, exclude_nodes
from orchestrator.wire.job_views import JobView
from trainer.contract.blame import NodeVerdict, parse_node_verdict
from trainer.contract.verdict import Outcome, Verdict, parse_verdict

_MOST_LINES = 2000
_ROUNDS = 3  # the nodes that replace bad ones are tested too

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """The result of a preflight."""

    job: JobView
    verdicts: Sequence[Verdict]
    nodes: Sequence[NodeVerdict]

    @property
    def passed(self) -> bool:
        return self.job.state == "SUCCEEDED" and all(each.outcome is not Outcome.FAIL for each in self.verdicts)

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        return tuple(each.node for each in self.nodes if not each.is_good)


def clear(client: Client, spec: JobSpec, *, say: Say) -> JobSpec:
    """Return the job without the nodes that failed the preflight. Exits with status 1 if the job cannot start.

    The nodes that replace them are tested too, so there may be several preflights.
    """
    for left in reversed(range(_ROUNDS)):
        trial = try_place(client, spec, say=say)
        if trial.passed:
            return spec
        if not trial.bad_nodes:
            say("nothing is submitted: no single node caused the failure")
            break
        if _is_one_machine(client, spec.cluster):
            say(f"nothing is submitted: cluster {spec.cluster} has no other node")
            break
        bad = ", ".join(trial.bad_nodes)
        say(f"trying again without {bad}" if left else f"nothing is submitted: {bad} failed as well")
        spec = exclude_nodes(spec, trial.bad_nodes)
    raise typer.Exit(JOB_FAILED)


def try_place(client: Client, spec: JobSpec, *, say: Say) -> Trial:
    """Run the preflight and print its findings."""
    job: JobView = client.submit(build_preflight(spec))
    say(f"{job.id} is submitted")
    job = client.wait(job.id)
    lines = client.logs(job.id, rank=0, tail=_MOST_LINES).splitlines()
    trial = Trial(
        job,
        [verdict for verdict in map(parse_verdict, lines) if verdict is not None],
        [verdict for verdict in map(parse_node_verdict, lines) if verdict is not None],
    )
    for verdict in trial.verdicts:
        say(f"{verdict.check:<10} {verdict.outcome.value:<8} {verdict.sentence}")
    for node in trial.nodes:
        result = "ok" if node.is_good else f"failed {', '.join(node.checks)}"
        say(f"node {node.node}: {result}")
    why = "" if trial.passed else f" failed: {job.id} ended {job.state}, {job.reason}"
    say(f"preflight{why or ' passed'}")
    return trial


def _is_one_machine(client: Client, cluster: str) -> bool:
    return any(each.name == cluster and each.kind == "local" for each in client.clusters())
