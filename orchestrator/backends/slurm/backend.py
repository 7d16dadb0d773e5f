"""The Backend port on Slurm. `client` calls Slurm, `attempt_folder` reads traces, and `sight` judges."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends import ship
from orchestrator.backends.slurm.attempt_folder import look_closely, note_submission, noted_at, read_traces
from orchestrator.backends.slurm.cancellations import Cancellations
from orchestrator.backends.slurm.capacity import (
    SlurmNode,
    choose_avoided,
    explain_shortage,
    in_partition,
    summarize,
)
from orchestrator.backends.slurm.client import SlurmClient
from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.render import (
    effective_placement,
    least_cpus,
    render_exclude,
    render_node_launch,
    render_request,
)
from orchestrator.backends.slurm.sight import (
    SightContext,
    Submission,
    Traces,
    choose,
    lost_script,
    matches_submission,
    sight,
    sight_forgotten,
)
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.backends.slurm.states import Standing, meaning, waits_for_nodes
from orchestrator.backends.slurm.steps import Steps
from orchestrator.backends.traces import last_sign
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.node_record import Partition
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.jobfolder.folder import JobFolder
from trainer.contract import env, layout
from trainer.contract.node import render_node_launch as render_document

_CAPACITY_S = 15.0  # maximum age of a cached answer about nodes
_REPEAT_S = 10.0  # minimum time between two cancellations of one Slurm job
_MOST_ASKED = 5  # maximum number of single-job queries in one pass


@dataclass(slots=True)
class _Memory:
    """A cache that may be lost at any time. It saves calls and remembers which jobs the service ended."""

    listed_at: float = float("-inf")
    jobs: dict[str, list[SlurmJob]] = field(default_factory=dict)  # by name
    nodes_at: float = float("-inf")
    nodes: list[SlurmNode] = field(default_factory=list)
    asked: dict[AttemptKey, tuple[float, Sighting]] = field(default_factory=dict)
    cancelled: dict[str, dict[int, float]] = field(default_factory=dict)  # times of cancellation by name and id
    silent: str | None = None  # why the last listing failed


class SlurmBackend:
    """Jobs outlive the service. A restarted service finds them by name."""

    def __init__(
        self,
        site: SlurmSite,
        client: SlurmClient,
        *,
        package: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site = site
        self._client = client
        self._package = package
        self._now = now
        self._monotonic = monotonic
        self._memory = _Memory()
        self._cancellations = Cancellations(self._accounting, user=client.user)
        self._steps = Steps(ask=client.jobs_with_steps, settle_s=site.settle_s)

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return self._client.render(render_request(plan, self._site))

    def submit(self, plan: LaunchPlan) -> str:
        """Submit a job. The Slurm job's id is the claim, so the agents of a second job for the attempt exit."""
        plan = self._fit(plan)
        try:
            self._prepare(plan)
        except OSError as error:
            raise BackendUnavailable(f"cannot write the run directory of {plan.key}: {error}") from error
        number = self._submit(plan)
        with suppress(OSError):  # the job's name finds it too
            note_submission(self._job(plan.key), plan.key.number, number)
        self._memory.listed_at = float("-inf")
        return str(number)

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        # A cluster that did not answer is asked again, even without attempts, because no job starts until it answers.
        jobs = self._list() if launched or self._memory.silent is not None else {}
        self._cancellations.ask({str(key): jobs.get(str(key), ()) for key in launched}, ours=self._memory.cancelled)
        seen: dict[AttemptKey, Sighting] = {}
        missing: dict[AttemptKey, Traces] = {}
        for key, replicas in launched.items():
            try:
                traces = self._read(key, jobs.get(str(key), ()), replicas)
            except OSError as error:
                words = f"cannot read the run directory: {error}"
                seen[key] = Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
                continue
            if traces is None:
                seen[key] = self._sight_waiting(key, jobs[str(key)][0])
            elif str(key) in jobs:
                seen[key] = self._sight(key, jobs[str(key)], traces)
            else:
                missing[key] = traces
        return seen | self._sight_missing(missing)

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Send SIGTERM to running agents and cancel waiting jobs. With `force`, cancel running jobs too."""
        for job in self._list().get(str(key), ()):
            standing = meaning(job).standing
            if standing in (Standing.OVER, Standing.ENDS):
                continue  # if somebody else is ending it, that must stay the recorded cause
            if force or standing is Standing.WAITS:
                self._cancel(job)
            else:
                self._client.signal(job.id, "TERM")

    def avoid_only(self, plan: LaunchPlan) -> None:
        """Update the nodes that a waiting job excludes. The job keeps its position in the queue."""
        with suppress(LaunchRefused):  # if the partition has shrunk, the queue's own reason says so
            plan = self._fit(plan)
        for job in self._list().get(str(plan.key), ()):
            if meaning(job).standing is Standing.WAITS:
                self._client.exclude(job.id, render_exclude(plan, self._site))
        self._memory.listed_at = float("-inf")

    def slots(self) -> None:
        """Return no limit, since Slurm has its own queue. Raises BackendUnavailable if the last listing failed."""
        if self._memory.silent is not None:
            raise BackendUnavailable(self._memory.silent)

    def partitions(self) -> Sequence[Partition]:
        """Return the cluster's partitions, at most 15 s old. Raises BackendUnavailable."""
        return summarize(self._nodes())

    def _prepare(self, plan: LaunchPlan) -> None:
        """Write what the nodes need. Only the job's user can read the document with its environment."""
        site, job = self._site, self._job(plan.key)
        ship.ship_agent(self._package, site.service_root)
        document = render_node_launch(plan, site, workdir=self._workdir(plan, job))
        with job.make() as folder:
            for replica in range(plan.max_nodes):
                folder.make(layout.replica_dir(Path(), plan.key.number, replica)).close()
            place = layout.attempt_dir(Path(), plan.key.number) / layout.NODE_LAUNCH
            rundir.write_document(folder, place, render_document(document), private=True)
        rundir.write_launch(job, plan.key.number, plan.policy, replicas=plan.max_nodes)

    def _workdir(self, plan: LaunchPlan, job: JobFolder) -> str:
        pin = ship.Pin(job, f"workdir-{plan.shared_environment[env.RETRY]}.json")
        return self._site.workdirs.provide(Path(plan.workdir), pin=pin)

    def _fit(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with as many of its avoided nodes excluded as the partition allows.

        Raises LaunchRefused if the partition has too few nodes, or too few with enough CPUs. Slurm 22.05 and 26.05
        accept such a job and let it wait forever.
        """
        try:
            place = effective_placement(plan, self._site)
            members = in_partition(self._nodes(), place.partition)
        except BackendUnavailable:
            return plan
        shortage = explain_shortage(members, needed=plan.min_nodes, cpus=least_cpus(plan, self._site))
        if shortage is not None:
            raise LaunchRefused(shortage)
        avoided = choose_avoided(plan.excluded_nodes, members, place, needed=plan.min_nodes)
        return replace(plan, excluded_nodes=avoided)

    def _submit(self, plan: LaunchPlan) -> int:
        """Submit with the avoided nodes excluded. If Slurm refuses that, submit without the exclusion."""
        try:
            return self._client.submit(render_request(plan, self._site))
        except LaunchRefused:
            if not plan.excluded_nodes:
                raise
        return self._client.submit(render_request(replace(plan, excluded_nodes=()), self._site))

    def _list(self) -> dict[str, list[SlurmJob]]:
        """Return our jobs by name. Passes in quick succession share one listing."""
        if self._monotonic() - self._memory.listed_at < self._site.listing_s:
            return self._memory.jobs
        try:
            listed = self._client.jobs()
        except BackendUnavailable as error:
            self._memory.silent = f"Slurm cannot be observed: {error}"
            raise BackendUnavailable(self._memory.silent) from error
        jobs: defaultdict[str, list[SlurmJob]] = defaultdict(list)
        for job in listed:
            jobs[job.name].append(job)
        self._memory.silent = None
        self._memory.jobs, self._memory.listed_at = dict(jobs), self._monotonic()
        return self._memory.jobs

    def _read(self, key: AttemptKey, jobs: Sequence[SlurmJob], replicas: int) -> Traces | None:
        """Read an attempt's traces. None for a job that only waits."""
        if len(jobs) == 1 and meaning(jobs[0]).standing is Standing.WAITS and jobs[0].restarts == 0:
            return None
        return read_traces(self._job(key), key, replicas)

    def _sight_waiting(self, key: AttemptKey, job: SlurmJob) -> Sighting:
        sighting = sight(key, job, Traces(replicas=1), self._context(key))
        spare = self._names(job, attrgetter("has_room")) if waits_for_nodes(job) else None
        return replace(sighting, spare_nodes=spare, avoids_strictly=True)

    def _sight(self, key: AttemptKey, jobs: Sequence[SlurmJob], traces: Traces) -> Sighting:
        job = choose(jobs, traces)
        if self._cancellations.awaits_accounting(job, now=self._now(), settle_s=self._site.settle_s):
            job = replace(job, state="COMPLETING")
        if meaning(job).standing is Standing.OVER:
            traces = look_closely(traces, self._job(key), key, job.id)
        sighting = self._judge(key, job, traces)
        short = len(job.nodes) < traces.replicas
        if sighting.presence is Presence.RUNNING and meaning(job).standing is Standing.RUNS and short:
            sighting = replace(sighting, spare_nodes=self._names(job, attrgetter("idle")))
        return sighting

    def _judge(self, key: AttemptKey, job: SlurmJob, traces: Traces) -> Sighting:
        """Judge an attempt. If an agent left no record or may have been cut off, also check its node."""
        context = self._context(key)
        sighting = sight(key, job, traces, context)
        if sighting.presence is Presence.RUNNING and lost_script(job, traces):
            listed_at, now = self._memory.listed_at, self._monotonic()
            context = replace(context, step_over=self._steps.are_over(job.id, listed_at=listed_at, now=now))
            sighting = sight(key, job, traces, context)
        recorded = traces.recorded | traces.departures.keys()
        ended_well = job.state == "COMPLETED" and all(one.replica in recorded for one in sighting.replicas)
        if sighting.presence is Presence.GONE and not ended_well:
            return sight(key, job, traces, replace(context, broken=self._broken()))
        return sighting

    def _sight_missing(self, missing: Mapping[AttemptKey, Traces]) -> dict[AttemptKey, Sighting]:
        """Judge attempts that Slurm does not list. Query submitted ones by id, a few in each pass."""
        seen = {
            key: Sighting(key=key, presence=Presence.ABSENT, evidence="Slurm has no job of this name")
            for key, traces in missing.items()
            if not traces.known
        }
        now = self._monotonic()
        lost = {key: traces for key, traces in missing.items() if traces.known}
        self._memory.asked = {key: self._memory.asked[key] for key in lost if key in self._memory.asked}
        for key in lost:
            asked_at, answer = self._memory.asked.get(key, (float("-inf"), None))
            if answer is not None and now - asked_at < self._site.forget_s:
                seen[key] = answer
        open_questions = [key for key in lost if key not in seen][:_MOST_ASKED]
        accounting = self._accounting({number for key in open_questions for number in lost[key].known})
        for key in open_questions:
            seen[key] = self._ask(key, lost[key], accounting)
            self._memory.asked[key] = (now, seen[key])
        for key in lost.keys() - seen.keys():
            seen[key] = Sighting(
                key=key, presence=Presence.UNKNOWN, evidence="Slurm does not list it; a later pass queries its id"
            )
        return seen

    def _ask(self, key: AttemptKey, traces: Traces, accounting: Sequence[SlurmJob]) -> Sighting:
        number = traces.holder or max(traces.known)
        job, found = self._job(key), self._client.job(number)
        noted = noted_at(job, key.number, number)
        made = Submission(name=str(key), user=self._client.user, noted_at=noted)
        if found is not None and matches_submission(found, made):
            words = f"Slurm knows job {number}, but its listing does not show it"
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
        traces = look_closely(traces, job, key, number)
        booked = [one for one in accounting if one.id == number and matches_submission(one, made)]
        if booked and meaning(booked[-1]).standing is Standing.OVER:
            self._cancellations.learn(str(key), booked[-1])
            return self._judge(key, booked[-1], traces)
        sign = last_sign(job, key, traces.replicas)
        quiet = sign is None or self._now() - sign >= 2 * self._site.settle_s
        return sight_forgotten(key, traces, quiet=quiet, reused=found is not None)

    def _accounting(self, numbers: Collection[int]) -> list[SlurmJob]:
        with suppress(BackendUnavailable):  # accounting is optional; only the controller's answer is required
            return self._client.accounting(numbers)
        return []

    def _nodes(self, *, at_most_s: float = _CAPACITY_S) -> list[SlurmNode]:
        if self._monotonic() - self._memory.nodes_at > at_most_s:
            self._memory.nodes = self._client.nodes()
            self._memory.nodes_at = self._monotonic()
        return self._memory.nodes

    def _broken(self) -> Mapping[str, str]:
        """Return the broken nodes with Slurm's words, listed anew: a cached answer may predate the failure."""
        with suppress(BackendUnavailable):
            nodes = self._nodes(at_most_s=self._site.listing_s)
            return {node.name: node.trouble for node in nodes if node.broken}
        return {}

    def _names(self, job: SlurmJob, wanted: Callable[[SlurmNode], object]) -> tuple[str, ...] | None:
        """Return the names of the wanted nodes in the job's partition. None if Slurm does not answer."""
        with suppress(BackendUnavailable):
            return tuple(node.name for node in in_partition(self._nodes(), job.partition) if wanted(node))
        return None

    def _cancel(self, job: SlurmJob) -> None:
        now, said = self._monotonic(), self._memory.cancelled.setdefault(job.name, {})
        if now - said.get(job.id, float("-inf")) >= _REPEAT_S:
            said[job.id] = now
            self._memory.listed_at = float("-inf")
            self._client.cancel(job.id)

    def _context(self, key: AttemptKey) -> SightContext:
        return SightContext(
            now=self._now(),
            settle_s=self._site.settle_s,
            notice_s=self._site.notice_s,
            ours=frozenset(self._memory.cancelled.get(str(key), ())),
            canceller=self._cancellations.explain(str(key)),
        )

    def _job(self, key: AttemptKey) -> JobFolder:
        return JobFolder(self._site.service_root, key.job_id)
