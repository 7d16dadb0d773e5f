"""The Backend port on any scheduler of torchx. `client` calls torchx's runner, and `sight` judges.

Torchx names apps as it likes, and gives no way to find one whose id was lost. So the service notes each submission
before it is made. The agents of a second submission find that the first has the claim, and end.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends import ship
from orchestrator.backends.torchx.client import AppStatus, TorchxClient
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
from orchestrator.jobfolder.folder import JobFolder
from trainer.contract import env, layout
from trainer.contract.node import ALIVE, ALIVE_EVERY_S
from trainer.contract.node import render_node_launch as render_document

_LAST_WORDS_BYTES = 4096
_MISSED = 5  # a node counts as silent after so many missed touches of its file
_LONGEST_LOOK_S = 5.0  # after this time in one pass, no further app is queried


class TorchxBackend:
    """`folder` holds the notes of submissions, outside the folders of jobs."""

    def __init__(
        self,
        site: TorchxSite,
        client: TorchxClient,
        folder: Path,
        *,
        package: Path,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._client, self._package = site, client, package
        self._submissions = Submissions(folder)
        self._monotonic = monotonic
        self._answers: dict[str, tuple[float, AppStatus | None]] = {}  # the last ones, by app, and when they came
        self._since: dict[AttemptKey, tuple[str, float]] = {}  # the state that torchx names, and since when
        self._marks: dict[tuple[AttemptKey, int], tuple[float, float]] = {}  # times of files, and when they changed
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
        self._look({app for app, _ in apps.values() if app is not None})
        for key, (app, traces) in apps.items():
            seen[key] = self._sight(key, app, traces)
            if seen[key].presence is Presence.ABSENT and app is not None:
                with suppress(BackendUnavailable):  # it may still wait in a queue
                    self._client.cancel(app)
        self._forget(launched)
        return seen

    def _look(self, apps: Collection[str]) -> None:
        """Ask for each app, the longest unasked first, for a limited time. Raises BackendUnavailable."""
        self._answers = {app: answer for app, answer in self._answers.items() if app in apps}
        began = self._monotonic()
        for app in sorted(apps, key=lambda app: self._answers.get(app, (float("-inf"), None))[0]):
            if self._monotonic() - began > _LONGEST_LOOK_S:
                break
            self._answers[app] = self._monotonic(), self._client.look(app)

    def _note_late(self) -> None:
        for tag, app in self._client.take_late().items():
            job_id, number, claim = json.loads(tag)
            with suppress(OSError):
                self._submissions.note(AttemptKey(job_id, number), claim, app)

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Cancel the attempt's apps. Raises BackendUnavailable.

        torchx has one way to cancel, so `force` changes nothing. Whether agents get a signal before they are killed
        depends on the scheduler.
        """
        errors = []
        with suppress(OSError):
            for app in filter(None, self._submissions.read(key).values()):
                self._cancelled.add(key)
                try:
                    self._client.cancel(app)
                except BackendUnavailable as error:
                    errors.append(error)
        if errors:
            raise errors[0]

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
            statuses = ((number, attempt.status(Path(f"{ALIVE}{number}"))) for number in range(replicas))
            marks = {number: status.st_mtime for number, status in statuses if status is not None}
            names, claim = attempt.names(limit=MOST_NAMES + 8 * replicas), read_claim(attempt)
            found = [one for name in names if (one := read_departure(attempt, name, replicas)) is not None]
            return Traces(
                replicas=replicas,
                claim=claim,
                departures={one.replica: one for one in found if one.claim == claim},
                recorded=read_recorded(attempt, replicas),
                ever_alive=frozenset(marks),
                alive=frozenset(number for number, time in marks.items() if self._is_alive((key, number), time)),
            )

    def _is_alive(self, mark: tuple[AttemptKey, int], time: float) -> bool:
        """Whether a node's file has changed lately. No clock is compared with another machine's."""
        known = self._marks.get(mark)
        if known is None or known[0] != time:
            self._marks[mark] = known = time, self._monotonic()
        return self._monotonic() - known[1] < self._site.settle_s + _MISSED * ALIVE_EVERY_S

    def _sight(self, key: AttemptKey, app: str | None, traces: Traces) -> Sighting:
        not_asked = 0.0, AppStatus("UNKNOWN", "torchx was not asked yet")
        said = None if app is None else self._answers.get(app, not_asked)[1]
        state = "" if said is None else said.state
        if state != self._since.get(key, (None,))[0]:
            self._since[key] = state, self._monotonic()
        if state in {*WAITS, RUNS}:
            return sight(key, app, said, traces, Context())
        job, since = JobFolder(self._site.service_root, key.job_id), self._since[key][1]
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
        self._since = {key: since for key, since in self._since.items() if key in launched}
        self._marks = {mark: times for mark, times in self._marks.items() if mark[0] in launched}
        self._cancelled &= launched.keys()
        with suppress(OSError):
            self._submissions.sweep(launched.keys())
