"""The plug-in: torchx's calls to the service's. Works with torchx 0.7.0 and its nightly."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import yaml
from torchx.runner.config import apply as apply_torchxconfig
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, runopts

from orchestrator.client import Client, ServiceUnreachable, connect
from orchestrator.domain.errors import InvalidSpec, NotFound, OrchestratorError
from orchestrator.domain.validation import parse_spec
from orchestrator.settings import Settings, load_settings
from orchestrator.torchx_scheduler.states import APP_STATES, describe
from orchestrator.torchx_scheduler.torchrun import Untranslatable
from orchestrator.torchx_scheduler.translate import translate

NAME = "orchestrator"
_log = logging.getLogger(__name__)
# torchx's own wait ends at the first error: a restart of the service must not reach it.
_PATIENCE_S = 300
_FIRST_PATIENCE_S = 10  # until the service has answered once: it may not be there at all
_MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """What will be submitted, and where."""

    spec: dict[str, object]
    url: str | None
    idempotency_key: str | None

    def __str__(self) -> str:
        return yaml.safe_dump(self.spec, sort_keys=False, allow_unicode=True)


class SchedulerError(SystemExit, Exception):
    """Why torchx's call failed, in a line. As a SystemExit it ends torchx's command line with that line instead of a
    traceback; as an Exception programs catch it like any other."""


class OrchestratorScheduler(Scheduler[Mapping[str, CfgVal]]):  # type: ignore[misc]  # torchx has no types
    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        self._answered = False

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("url", type_=str, default=None, help="the service; default: ORCHESTRATOR_URL, or as it is found")
        options.add("project", type_=str, default=None, help="the job's project")
        options.add("cluster", type_=str, default=None, help="where to run: local, or a configured cluster's name")
        options.add("priority", type_=int, default=None, help="-100 .. 100")
        options.add("launcher", type_=str, default=None, help="elasticrun (default) or torchrun")
        options.add("idempotency_key", type_=str, default=None, help="the same key and app again give the same job")
        return options

    def _validate(self, app: AppDef, scheduler: str) -> None:
        """Roles without resources are fine: the spec's own checks follow."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[Request]:
        try:
            spec = translate(app, cfg, workdir=str(Path.cwd()))
            parse_spec(spec)
        except (Untranslatable, InvalidSpec) as error:
            raise SchedulerError(f"{NAME}: {error}") from None
        return AppDryRunInfo(Request(spec, _text(cfg.get("url")), _text(cfg.get("idempotency_key"))), str)

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        request = dryrun_info.request
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
        """The newest jobs. torchx's nightly passes `cfg`."""
        with self._client(_text((cfg or {}).get("url"))) as client:
            jobs = builtins.list(islice(client.jobs(), _MOST_LISTED))
        return [ListAppResponse(app_id=job.id, state=APP_STATES[job.state]) for job in jobs]

    def _cancel_existing(self, app_id: str) -> None:
        with self._client() as client:
            client.cancel(app_id)

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
        """Lines of the k-th node's workers. Their two streams are one log; times are not kept."""
        if streams not in (None, Stream.COMBINED):
            raise ValueError(f"the log holds both streams: --streams is {streams.value}, must be combined")
        lines = self._log_lines(app_id, k, should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _log_lines(self, app_id: str, replica: int, follow: bool) -> Iterator[str]:
        with self._client() as client:
            if follow:
                lines = client.follow_logs(app_id, replica=replica)
            else:
                lines = iter(client.logs(app_id, replica=replica).splitlines())
            yield from (f"{line}\n" for line in lines)

    @contextmanager
    def _client(self, url: str | None = None) -> Iterator[Client]:
        """A client of the service that is asked for, or of `.torchxconfig`'s, or of the one that is found here."""
        patience_s = _PATIENCE_S if self._answered else _FIRST_PATIENCE_S
        try:
            with connect(_settings(url), patience_s=patience_s, on_retry=_tell) as client:
                yield client
            self._answered = True
        except NotFound:
            raise
        except OrchestratorError as error:
            raise SchedulerError(f"{NAME}: {error}") from None


def create_scheduler(session_name: str, **_: object) -> OrchestratorScheduler:
    """torchx passes every variable TORCHX_* as an argument: none is ours."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # torchx shows INFO: a line for each of its many polls
    return OrchestratorScheduler(session_name)


def _tell(failure: ServiceUnreachable) -> None:
    _log.info("%s; trying again", failure)


def _settings(url: str | None) -> Settings:
    configured: dict[str, CfgVal] = {} if url is None else {"url": url}
    apply_torchxconfig(NAME, configured)  # adds what is not there
    found = _text(configured.get("url"))
    settings = load_settings()
    return settings if found is None else settings.model_copy(update={"url": found})


def _text(value: CfgVal) -> str | None:
    return str(value) if value is not None else None
