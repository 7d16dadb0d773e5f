"""LaunchPlan: what a backend starts for one attempt, built from a job, an attempt and a site. Pure.

The launch is a torchx AppDef with one role (torchx.specs). All replicas have the same arguments and environment, except
for torchx's macro of the replica's number. A dollar sign of the user's is written as `$$`, as in every AppDef.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchx.specs import AppDef, Resource, Role, macros

from orchestrator.domain.job.appdef import escape, fill_in
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.group_flags import ENVIRONMENT, Group, render_group_flags
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.worker_token import issue_worker_token
from orchestrator.domain.specs.spec import JobSpec, Placement, Resources
from trainer.contract import env
from trainer.contract.config import render_config
from trainer.contract.failure import Pattern
from trainer.contract.launch import LaunchPolicy
from trainer.contract.location import join

# Replaced by the job's id in values of `run.env`. The name is torchx's.
JOB_ID_MACRO = "${app_id}"
ELASTICRUN = "trainer.elastic.elasticrun"
# The launcher's flags for each kind of program.
_SCRIPT, _MODULE, _COMMAND = (), ("--module",), ("--no-python",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The settings of a cluster that go into a plan. Paths are those of its nodes."""

    root: Path  # the run directory
    python: str  # an interpreter with the trainer installed
    child: str  # trainer/elastic/child.py, which gives each worker its log
    rendezvous_host: str
    gpus_per_node: int
    report_url: str | None
    stop_timeout_s: float
    log_limit_bytes: int
    failure_patterns: tuple[Pattern, ...] = ()  # tried before the built-in ones
    join_timeout_s: int = 120  # how long agents wait for each other
    local_address: str | None = None  # where other nodes reach a node; None means the rendezvous host
    worker_key: bytes | None = field(default=None, repr=False)  # derives the tokens of agents; None means no tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What a backend needs to start an attempt: `app`, and what an AppDef has no place for.

    `secrets` go into every replica's environment and nowhere else: no script, no text, no log. A plan that is only
    shown has none.
    """

    key: AttemptKey
    app: AppDef
    rendezvous_id: str
    rendezvous_host: str
    port: int
    workers_per_node: int
    excluded_nodes: tuple[str, ...]  # nodes to avoid; ignored on a local cluster
    job_dir: str
    workdir: str
    policy: LaunchPolicy
    resources: Resources
    placement: Placement
    image: str | None  # None: no container
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def min_nodes(self) -> int:
        least: int | None = self._role.min_replicas
        return self.max_nodes if least is None else least

    @property
    def max_nodes(self) -> int:
        nodes: int = self._role.num_replicas
        return nodes

    @property
    def command(self) -> tuple[str, ...]:
        """The same for every replica."""
        return (self._role.entrypoint, *(fill_in(word) for word in self._role.args))

    @property
    def shared_environment(self) -> dict[str, str]:
        """The environment of every replica, without its number."""
        return {name: fill_in(value) for name, value in self._role.env.items() if name != env.REPLICA}

    @property
    def node_environment(self) -> dict[str, str]:
        """The shared environment with the secrets, and with the image in which the node starts the agent."""
        image = {} if self.image is None else {env.IMAGE: self.image}
        return {**self.secrets, **self.shared_environment, **image}

    def environment(self, replica: int) -> dict[str, str]:
        return {name: fill_in(value, replica_id=str(replica)) for name, value in self._role.env.items()}

    @property
    def takes_back(self) -> bool:
        """Whether the group can lose a replica and take it back while it trains. torchrun fails when it grows."""
        return self.min_nodes < self.max_nodes and self.command[1:3] == ("-m", ELASTICRUN)

    @property
    def _role(self) -> Role:
        return self.app.roles[0]


def build_plan(job: Job, attempt: Attempt, site: Site, secrets: Mapping[str, str] | None = None) -> LaunchPlan:
    """Build the plan of an attempt. The same job, attempt, site and secrets give the same plan."""
    supervise = job.spec.supervise
    policy = LaunchPolicy(
        max_restarts=restarts_left(job),
        stop_timeout_s=site.stop_timeout_s,
        log_limit_bytes=site.log_limit_bytes,
        patterns=site.failure_patterns,
        refund_after_s=supervise.refund_after_s,
        startup_timeout_s=supervise.startup_timeout_s,
        heartbeat_timeout_s=None if supervise.heartbeat_timeout_s == "auto" else supervise.heartbeat_timeout_s,
    )
    return LaunchPlan(
        key=attempt.key,
        app=_app(job, attempt, site, policy),
        rendezvous_id=attempt.rendezvous_id,
        rendezvous_host=site.rendezvous_host,
        port=attempt.port,
        excluded_nodes=attempt.excluded_nodes,
        workers_per_node=job.spec.topology.count_workers(site.gpus_per_node),
        job_dir=str(site.root / job.id),
        workdir=job.spec.run.workdir,
        policy=policy,
        resources=job.spec.resources,
        placement=job.spec.placement,
        image=job.spec.run.image,
        secrets=dict(secrets or {}),
    )


def restarts_left(job: Job) -> int:
    """Return how many times the agent may still restart workers in place."""
    budget = job.spec.supervise.budgets.application
    # torchrun has no "unlimited".
    return 1_000_000 if budget is None else max(0, budget - job.spent.get("application", 0))


def _app(job: Job, attempt: Attempt, site: Site, policy: LaunchPolicy) -> AppDef:
    spec = job.spec
    program, *arguments = _command(job, attempt, site, policy)
    environment = {name: escape(value) for name, value in _environment(job, attempt, site).items()}
    role = Role(
        name=spec.name,
        image=spec.run.image or spec.run.workdir,
        min_replicas=attempt.min_nodes if attempt.min_nodes < attempt.max_nodes else None,
        entrypoint=program,
        args=[escape(word) for word in arguments],
        env={**environment, env.REPLICA: macros.replica_id},
        num_replicas=attempt.max_nodes,
        resource=_resource(spec, site.gpus_per_node),
        port_map={"rendezvous": attempt.port},
    )
    return AppDef(name=str(attempt.key), roles=[role], metadata=dict(spec.labels))


def _resource(spec: JobSpec, gpus_per_node: int) -> Resource:
    """torchx writes -1 for what is not set (torchx.specs.NULL_RESOURCE)."""
    wanted = spec.resources
    return Resource(
        cpu=-1 if wanted.cpus is None else max(1, round(wanted.cpus)),
        gpu=gpus_per_node if spec.topology.workers_per_node == "gpu" else wanted.gpus,
        memMB=-1 if wanted.memory_gb is None else round(wanted.memory_gb * 1024),
    )


def _command(job: Job, attempt: Attempt, site: Site, policy: LaunchPolicy) -> tuple[str, ...]:
    kind, program = _target(job.spec)
    launcher: tuple[str, ...] = (site.python, "-m", ELASTICRUN)
    if job.spec.launcher == "torchrun":
        launcher = (site.python, "-m", "trainer.elastic.guard", "--", site.python, "-m", "torch.distributed.run")
        kind, program = _COMMAND, _wrap(kind, program, site)
    # After "--", argparse reads no argument of the program as a flag of the launcher, and keeps a later "--".
    return (*launcher, *render_group_flags(_group(job, attempt, site, policy)), *kind, "--", *program)


def _group(job: Job, attempt: Attempt, site: Site, policy: LaunchPolicy) -> Group:
    return Group(
        nodes=attempt.nodes,
        workers_per_node=job.spec.topology.count_workers(site.gpus_per_node),
        endpoint=f"{site.rendezvous_host}:{attempt.port}",
        rendezvous_id=attempt.rendezvous_id,
        conf=f"join_timeout={site.join_timeout_s}",
        max_restarts=policy.max_restarts,
        local_address=site.local_address or site.rendezvous_host,
    )


def _target(spec: JobSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the launcher's flags for this kind of program, and the program with its arguments."""
    config = spec.trainer_config()
    if config is not None:
        return _MODULE, ("trainer", "--config", json.dumps(render_config(config), sort_keys=True))
    arguments = (*_local_rank(spec), *spec.run.args)
    if spec.run.module is not None:
        return _MODULE, (spec.run.module, *arguments)
    if spec.run.script is not None:
        return _SCRIPT, (spec.run.script, *arguments)
    return _COMMAND, tuple(spec.run.command or ())


def _local_rank(spec: JobSpec) -> tuple[str, ...]:
    """Both launchers replace `${local_rank}` with the worker's."""
    return ("--local-rank=${local_rank}",) if spec.run.pass_local_rank else ()


def _wrap(kind: tuple[str, ...], program: tuple[str, ...], site: Site) -> tuple[str, ...]:
    """Return the program under plain torchrun, wrapped so that each worker has its log in the run directory."""
    python = {_SCRIPT: (site.python, "-u"), _MODULE: (site.python, "-u", "-m"), _COMMAND: ()}[kind]
    return (site.python, "-I", "-S", site.child, *python, *program)


def _environment(job: Job, attempt: Attempt, site: Site) -> dict[str, str]:
    job_dir = site.root / job.id
    wanted = job.spec.snapshot
    snapshots = {env.SNAPSHOT_INTERVAL: wanted.interval, env.SNAPSHOT_KEEP: str(wanted.keep)}
    if wanted.keep_every is not None:
        snapshots[env.SNAPSHOT_KEEP_EVERY] = str(wanted.keep_every)
    if wanted.dir is not None:
        snapshots[env.SNAPSHOT_DIR] = join(wanted.dir, job.id)
    restore_from = attempt.restore_from or wanted.source
    restore = {} if restore_from is None else {env.RESTORE_FROM: restore_from}
    report = {} if site.report_url is None else {env.REPORT_URL: site.report_url}
    if report and site.worker_key is not None:
        report[env.REPORT_TOKEN] = issue_worker_token(site.worker_key, attempt.key, attempt.nonce)
    return {
        **ENVIRONMENT,
        **{name: value.replace(JOB_ID_MACRO, job.id) for name, value in job.spec.run.env.items()},
        env.JOB_ID: job.id,
        env.JOB_DIR: str(job_dir),
        env.ATTEMPT: str(attempt.key.number),
        env.RETRY: str(job.retries_done),
        **snapshots,
        **restore,
        **report,
    }
