"""The Backend port on any scheduler of torchx. `client` calls torchx's runner, and `sight` judges.

Torchx names apps as it likes, and gives no way to find one whose id was lost. So the service notes each submission
before it is made. The agents of a second submission find that the first has the claim, and end.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends import ship
from orchestrator.backends.torchx.client import AppSight, TorchxClient
from orchestrator.backends.torchx.render import render_app, render_native, render_node_launch
from orchestrator.backends.torchx.sight import RUNS, WAITS, Context, Traces, choose, sight
from orchestrator.backends.torchx.site import TorchxSite
from orchestrator.backends.torchx.submissions import Submissions
from orchestrator.backends.traces import MOST_NAMES, read_claim, read_departure, read_recorded
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.jobfolder.folder import Folder, JobFolder
from trainer.contract import env, layout
from trainer.contract.node import ALIVE, ALIVE_EVERY_S
from trainer.contract.node import render_node_launch as render_document

_LAST_WORDS_BYTES = 4096
_MISSED = 5  # touches of a node's file, until the node counts as silent


class TorchxBackend:
    """`folder` holds the notes of submissions, outside the folders of jobs."""

    def __init__(
        self,
        site: TorchxSite,
        client: TorchxClient,
        folder: Path,
        *,
        package: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._client, self._package = site, client, package
        self._submissions = Submissions(folder)
        self._now, self._monotonic = now, monotonic
        self._over_since: dict[AttemptKey, float] = {}
        self._cancelled: set[AttemptKey] = set()

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return render_native(plan, self._site)

    def submit(self, plan: LaunchPlan) -> str:
        claim = f"torchx-{uuid.uuid4().hex}"
        try:
            self._prepare(plan)
            self._submissions.note(plan.key, claim, None)
            tag = json.dumps([*plan.key, claim])
            app = self._client.submit(render_app(plan, self._site, claim=claim), self._site.cfg, tag=tag)
            self._submissions.note(plan.key, claim, app)
        except OSError as error:
            raise BackendUnavailable(f"cannot write the run directory of {plan.key}: {error}") from error
        return app

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        self._note_late()
        seen: dict[AttemptKey, Sighting] = {}
        apps: dict[AttemptKey, tuple[str | None, Traces]] = {}
        for key, replicas in launched.items():
            try:
                traces = self._read(key, replicas)
                apps[key] = choose(self._submissions.read(key), traces), traces
            except OSError as error:
                words = f"cannot read the run directory: {error}"
                seen[key] = Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
        said = self._client.look({app for app, _ in apps.values() if app is not None})
        for key, (app, traces) in apps.items():
            seen[key] = self._sight(key, app, None if app is None else said.get(app), traces)
        self._forget(launched)
        return seen

    def _note_late(self) -> None:
        for tag, app in self._client.take_late().items():
            job_id, number, claim = json.loads(tag)
            with suppress(OSError):
                self._submissions.note(AttemptKey(job_id, number), claim, app)

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Torchx has one way to cancel: the scheduler sends a signal first, and then kills."""
        with suppress(OSError):
            for app in self._submissions.read(key).values():
                if app is not None:
                    self._cancelled.add(key)
                    self._client.cancel(app)

    def close(self) -> None:
        """End torchx's runner. It ends with the service in any case."""
        self._client.close()

    def slots(self) -> None:
        """Return no limit, since the scheduler has a queue of its own."""

    def _prepare(self, plan: LaunchPlan) -> None:
        """Write what the nodes need. Only the job's user can read the document with its environment."""
        job = JobFolder(self._site.service_root, plan.key.job_id)
        ship.ship_agent(self._package, self._site.service_root)
        pin = ship.Pin(job, f"workdir-{plan.shared_environment[env.RETRY]}.json")
        workdir = self._site.workdirs.provide(Path(plan.workdir), pin=pin)
        document = render_document(render_node_launch(plan, self._site, workdir=workdir))
        with job.make() as folder:
            place = layout.attempt_dir(Path(), plan.key.number) / layout.NODE_LAUNCH
            rundir.write_document(folder, place, document, private=True)
        rundir.write_launch(job, plan.key.number, plan.policy, replicas=plan.max_nodes)

    def _read(self, key: AttemptKey, replicas: int) -> Traces:
        with rundir.open_attempt(JobFolder(self._site.service_root, key.job_id), key.number) as attempt:
            names = attempt.names(limit=MOST_NAMES + 8 * replicas)
            claim = read_claim(attempt, names)
            found = [one for name in names if (one := read_departure(attempt, name, replicas)) is not None]
            return Traces(
                replicas=replicas,
                claim=claim,
                departures={one.replica: one for one in found if one.claim == claim},
                recorded=read_recorded(attempt, replicas),
                alive=self._alive(attempt, replicas),
            )

    def _alive(self, attempt: Folder, replicas: int) -> frozenset[int]:
        marks = {number: attempt.status(Path(f"{ALIVE}{number}")) for number in range(replicas)}
        youngest = self._now() - self._site.settle_s - _MISSED * ALIVE_EVERY_S
        return frozenset(number for number, mark in marks.items() if mark is not None and mark.st_mtime >= youngest)

    def _sight(self, key: AttemptKey, app: str | None, said: AppSight | None, traces: Traces) -> Sighting:
        if said is not None and said.state in {*WAITS, RUNS}:
            self._over_since.pop(key, None)
            return sight(key, app, said, traces, Context())
        job, since = JobFolder(self._site.service_root, key.job_id), self._over_since.setdefault(key, self._monotonic())
        try:
            last_words = self._last_words(job, key, traces.replicas)
        except OSError as error:
            words = f"cannot read the run directory: {error}"
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
        context = Context(
            settled=self._monotonic() - since >= self._site.settle_s,
            ours=key in self._cancelled,
            last_words=last_words,
        )
        return sight(key, app, said, traces, context)

    def _last_words(self, job: JobFolder, key: AttemptKey, replicas: int) -> str:
        """Return the last line of the first log of an agent that has one."""
        with rundir.open_attempt(job, key.number) as attempt:
            logs = (Path(f"replica-{number}", layout.AGENT_LOG) for number in range(replicas))
            lines = (attempt.last_lines(log, size=_LAST_WORDS_BYTES) for log in logs)
            return next((each[-1][:300] for each in lines if each), "")

    def _forget(self, launched: Mapping[AttemptKey, int]) -> None:
        self._over_since = {key: since for key, since in self._over_since.items() if key in launched}
        self._cancelled &= launched.keys()
        with suppress(OSError):
            self._submissions.sweep(launched.keys())
