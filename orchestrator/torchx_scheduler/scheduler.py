"""The torchx plugin, which turns torchx's calls into the service's. Works with torchx 0.7.0 and its nightly."""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

import yaml
from torchx.runner.config import apply as apply_torchxconfig
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, runopts
from torchx.workspace.api import WorkspaceMixin

from orchestrator.client import Client, ServiceUnreachable, WaitTimeout, connect, read_address
from orchestrator.client_settings import ClientSettings, load_client_settings
from orchestrator.domain.errors import InvalidSpec, NotFound, OrchestratorError
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.domain.specs.workdir import WORKSPACES
from orchestrator.domain.terminal import clean, clean_line
from orchestrator.torchx_scheduler.preview import render_preview
from orchestrator.torchx_scheduler.states import APP_STATES, describe
from orchestrator.torchx_scheduler.torchrun import Untranslatable
from orchestrator.torchx_scheduler.translate import WORKDIR, translate
from orchestrator.torchx_scheduler.workspace import (
    NoWorkspace,
    WorkspaceCopy,
    WorkspaceTooLarge,
    check_size,
    copy_code,
    make_copy,
    parse_workspace,
    plan_copy,
)

NAME = "orchestrator"
_log = logging.getLogger(__name__)
# torchx's own wait ends at the first error, so a restart of the service must not raise one.
_PATIENCE_S = 300
_FIRST_PATIENCE_S = 30  # before the first answer, since the service may not exist
_PREVIEW_PATIENCE_S = 1  # a dry run works without a service
_END_S = 120.0  # how long a deletion waits for the cancelled job to end
_MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """A submission and its destination."""

    spec: dict[str, object]
    url: str | None
    idempotency_key: str | None
    copy: WorkspaceCopy | None = None  # the copy of the workspace, made on submission

    def __str__(self) -> str:
        return yaml.safe_dump(self.spec, sort_keys=False, allow_unicode=True)


class SchedulerError(SystemExit, Exception):
    """Says in one line why a torchx call failed.

    As a SystemExit it ends torchx's command line with that line instead of a traceback. As an Exception it can be
    caught like any other.
    """

    def __init__(self, text: str) -> None:
        super().__init__(clean(text))


class OrchestratorScheduler(WorkspaceMixin[None], Scheduler[Mapping[str, CfgVal]]):  # type: ignore[misc]  # no types
    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        self._answered = False
        self._copies: dict[str, WorkspaceCopy] = {}  # by target

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add(
            "url",
            type_=str,
            default=None,
            help="the service's URL; default: ORCHESTRATOR_URL, or the service on this machine",
        )
        options.add("project", type_=str, default=None, help="the job's project")
        options.add("cluster", type_=str, default=None, help="the cluster: local, or a configured cluster's name")
        options.add("priority", type_=int, default=None, help="-100 .. 100")
        options.add("launcher", type_=str, default=None, help="elasticrun (default) or torchrun")
        options.add("idempotency_key", type_=str, default=None, help="the same key and app again give the same job")
        options.add(
            "workspace_dir",
            type_=str,
            default=None,
            help="the folder for copies of the workspace, as the service and its nodes see it. Default: the run "
            "directory, if it is on this machine; otherwise the job runs in the workspace itself",
        )
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Accept roles without resources, since the spec is checked later. torchx's nightly passes `cfg`."""

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        """Plan the copy of the workspace. `schedule` makes it. Raises SchedulerError."""
        try:
            source = parse_workspace(workspace)
        except NoWorkspace as error:
            raise SchedulerError(f"{NAME}: {error}") from None
        folder = self._workspaces(cfg)
        role.metadata[WORKDIR] = str(source)
        if folder is None:
            return
        excluded = (folder, _settings(_text(cfg.get("url"))).root)
        try:
            check_size(source, without=excluded)
        except WorkspaceTooLarge as error:
            if cfg.get("workspace_dir") is not None:
                raise SchedulerError(f"{NAME}: {error}") from None
            _log.warning("the job runs in the workspace itself: %s", error)
            return
        key = _text(cfg.get("idempotency_key"))
        self._plan(
            role,
            plan_copy(partial(copy_code, source, without=excluded), folder, name=role.name, key=key, source=source),
        )

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Plan the copy of one or several folders (torchx's nightly). Raises SchedulerError.

        Several folders are merged on submission, because torchx would merge them into a folder that is gone by then.
        """
        workspace = role.workspace
        if not workspace:
            return
        if workspace.is_unmapped_single_project():
            self.build_workspace_and_update_role(role, str(workspace), cfg)
            return
        folder = self._workspaces(cfg)
        if folder is None:
            raise SchedulerError(f"{NAME}: a workspace of several folders needs a destination: -cfg workspace_dir=...")
        key = _text(cfg.get("idempotency_key"))
        self._plan(role, plan_copy(lambda to: workspace.merge_into(str(to)), folder, name=role.name, key=key))

    def _plan(self, role: Role, copy: WorkspaceCopy) -> None:
        role.metadata[WORKDIR] = str(copy.target)
        self._copies[str(copy.target)] = copy

    def _workspaces(self, cfg: Mapping[str, CfgVal]) -> Path | None:
        """Return the folder for copies. None if no folder is known that the service can read."""
        given = _text(cfg.get("workspace_dir"))
        if given is not None:
            return Path(given)
        settings = _settings(_text(cfg.get("url")))
        found = read_address(settings.root)
        is_its_own = settings.url is None or (found is not None and settings.url == found.url)
        return settings.root / WORKSPACES if is_its_own and os.access(settings.root, os.W_OK) else None

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[Request]:
        try:
            spec = translate(app, cfg, workdir=str(Path.cwd()))
            parse_spec(spec)
        except (Untranslatable, InvalidSpec) as error:
            raise SchedulerError(f"{NAME}: {error}") from None
        copy = self._copies.get(str(app.roles[0].metadata.get(WORKDIR)))
        request = Request(spec, _text(cfg.get("url")), _text(cfg.get("idempotency_key")), copy)
        return AppDryRunInfo(request, self._preview)

    def _preview(self, request: Request) -> str:
        """Render the submission and, if the service answers, its request to the cluster."""
        try:
            with connect(_settings(request.url), patience_s=_PREVIEW_PATIENCE_S) as client:
                return f"{request}\n{_ask_for_plan(client, request)}"
        except OrchestratorError as error:
            return f"{request}\n# the native request is not known: {error}"

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        request = dryrun_info.request
        if request.copy is not None:
            try:
                make_copy(request.copy)
            except OSError as error:
                raise SchedulerError(f"{NAME}: the workspace cannot be copied: {error}") from None
        with self._client(request.url) as client:
            return client.submit(request.spec, idempotency_key=request.idempotency_key).id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        with self._client() as client:
            try:
                job = client.job(app_id)
            except NotFound:
                return None
            absent: set[int] = set()
            topology = job.spec.topology
            if APP_STATES[job.state] is AppState.RUNNING and topology.min_nodes != topology.max_nodes:
                here = (job.attempt, job.generation)
                present = {w.replica for w in client.workers(app_id) if (w.attempt, w.generation) == here}
                absent = set(range(topology.max_nodes)) - present
            return describe(job, client.url, absent)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the newest jobs. torchx's nightly passes `cfg`."""
        with self._client(_text((cfg or {}).get("url"))) as client:
            jobs = builtins.list(islice(client.jobs(), _MOST_LISTED))
        return [ListAppResponse(app_id=clean_line(job.id), state=APP_STATES[job.state]) for job in jobs]

    def _cancel_existing(self, app_id: str) -> None:
        with self._client() as client:
            client.cancel(app_id)

    def _delete_existing(self, app_id: str) -> None:
        """Cancel the job, then delete its record (torchx's nightly). Raises SchedulerError."""
        with self._client() as client:
            if not client.job(app_id).ended:
                client.cancel(app_id)
                try:
                    client.wait(app_id, timeout_s=_END_S)
                except WaitTimeout:
                    raise SchedulerError(
                        f"{NAME}: job {app_id} is being cancelled; delete it once it has ended"
                    ) from None
            client.delete(app_id)

    def describe_native(self, app_id: str) -> AppDryRunInfo[Request] | None:
        """Return the job's current spec (torchx's nightly)."""
        with self._client() as client:
            try:
                spec = client.job(app_id).spec
            except NotFound:
                return None
            return AppDryRunInfo(Request(spec.model_dump(mode="json", exclude_defaults=True), client.url, None), str)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yield the lines of the k-th node's workers. One log holds both streams, without times.

        Raises ValueError for `since`, `until`, and any stream but COMBINED.
        """
        if streams not in (None, Stream.COMBINED):
            raise ValueError(f"the log holds both streams: --streams is {streams.value}, must be combined")
        if since is not None or until is not None:
            raise ValueError("the log keeps no times of its lines: give no since and no until")
        lines = self._log_lines(app_id, k, should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _log_lines(self, app_id: str, replica: int, follow: bool) -> Iterator[str]:
        with self._client() as client:
            if follow:
                lines = client.follow_logs(app_id, replica=replica)
            else:
                lines = iter(client.logs(app_id, replica=replica).splitlines())
            yield from (f"{clean(line)}\n" for line in lines)

    @contextmanager
    def _client(self, url: str | None = None) -> Iterator[Client]:
        """Connect to the given service, else to that of `.torchxconfig`, else to the one found on this machine."""
        patience_s = _PATIENCE_S if self._answered else _FIRST_PATIENCE_S
        try:
            with connect(_settings(url), patience_s=patience_s, on_retry=_log_retry) as client:
                yield client
            self._answered = True
        except NotFound:
            raise
        except OrchestratorError as error:
            raise SchedulerError(f"{NAME}: {error}") from None


def create_scheduler(session_name: str, **_: object) -> OrchestratorScheduler:
    """Create the scheduler. torchx passes every variable TORCHX_* as an argument; all are ignored."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # torchx shows INFO, which has a line for each poll
    return OrchestratorScheduler(session_name)


def _ask_for_plan(client: Client, request: Request) -> str:
    """Ask for a plan with the original workspace, because the copy is only made on submission."""
    copy, run = request.copy, request.spec["run"]
    if copy is None or copy.source is None or not isinstance(run, dict):
        return render_preview(client.plan(request.spec))
    here = {**request.spec, "run": {**run, "workdir": str(copy.source)}}
    return f"# as if from {copy.source}, which will be copied\n{render_preview(client.plan(here))}"


def _log_retry(failure: ServiceUnreachable) -> None:
    _log.info("%s; trying again", failure)


def _settings(url: str | None) -> ClientSettings:
    configured: dict[str, CfgVal] = {} if url is None else {"url": url}
    apply_torchxconfig(NAME, configured)  # adds what is not there
    found = _text(configured.get("url"))
    settings = load_client_settings()
    return settings if found is None else settings.model_copy(update={"url": found})


def _text(value: CfgVal) -> str | None:
    return str(value) if value is not None else None
