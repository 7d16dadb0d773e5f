"""A typed, synchronous client of `/api/v1`.

with connect() as client:
    job = client.submit({"name": "gpt", "run": {"script": "train.py", "workdir": "/src"}})
    assert client.wait(job.id).state is JobState.SUCCEEDED
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Literal, Self, Unpack
from urllib.parse import quote

from orchestrator import wire
from orchestrator.client import watch
from orchestrator.client.admin_calls import AccessCalls
from orchestrator.client.calls import PAGE, Calls, path_of
from orchestrator.client.errors import ServiceUnreachable
from orchestrator.client.locator import Address, Locator
from orchestrator.client.profiles import choose_profile
from orchestrator.client.transport import Transport
from orchestrator.client.watch import LogChoice
from orchestrator.client_settings import ClientSettings, load_client_settings
from orchestrator.domain.accounting.breakdown import Grouping
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.wire.answers import Page
from orchestrator.wire.job_views import AttemptView, DeletionView, EventView, JobView, SubmittedView

Spec = JobSpec | Mapping[str, object]


def connect(
    settings: ClientSettings | None = None,
    *,
    patience_s: float = 30,
    on_retry: Callable[[ServiceUnreachable], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Client:
    """Create a client of the service that the settings or the chosen profile name, or else of the one on this machine.

    Default of `settings`: the environment and `orchestrator.toml`. The client finds a service on this machine again
    after a restart on another port. `on_warning` gets what the service says that it cannot do now.
    """
    settings = settings or load_client_settings()
    token = None if settings.token is None else settings.token.get_secret_value()
    profile = choose_profile(settings)
    if profile is None:
        return Client(Locator(settings), token, patience_s=patience_s, on_retry=on_retry, on_warning=on_warning)
    given = token or profile.token
    return Client(profile.url, given, patience_s=patience_s, on_retry=on_retry, on_warning=on_warning)


class Client(AccessCalls):
    """Not thread-safe. Every call raises NotFound, RequestRefused or ServiceUnreachable. Idempotent calls are retried
    for up to `patience_s`."""

    def __init__(
        self,
        url: str | Callable[[], Address],
        token: str | None = None,
        *,
        timeout_s: float = 30,
        patience_s: float = 30,
        on_retry: Callable[[ServiceUnreachable], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        transport = Transport(
            partial(Address, url.rstrip("/")) if isinstance(url, str) else url,
            token=token,
            timeout_s=timeout_s,
            patience_s=patience_s,
            on_retry=on_retry,
            on_warning=on_warning,
        )
        super().__init__(Calls(transport))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._calls.transport.close()

    @property
    def url(self) -> str:
        """The current URL of the service."""
        return self._calls.transport.locate().url

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> SubmittedView:
        """Submit a job. Repeated calls with the same key return the same job. Default: a new key.

        Each item of the answer's `warnings` is a sentence on a field that has no effect on the job.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._calls.post("/jobs", SubmittedView, body=_document(spec), headers=headers, repeatable=True)

    def submit_array(
        self, spec: Mapping[str, object], *, idempotency_key: str | None = None
    ) -> wire.array_views.ArrayView:
        """Submit the jobs of a sweep. Repeated calls with the same key return the same array. Default: a new key."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._calls.post(
            "/arrays", wire.array_views.ArrayView, body=dict(spec), headers=headers, repeatable=True
        )

    def array(self, array_id: str, *, patience_s: float | None = None) -> wire.array_views.ArrayView:
        """Return an array and its members."""
        return self._calls.get(f"/arrays/{quote(array_id, safe='')}", wire.array_views.ArrayView, patience_s=patience_s)

    def cancel_array(self, array_id: str) -> wire.array_views.ArrayView:
        """Cancel the members that have not ended. Idempotent."""
        return self._calls.post(
            f"/arrays/{quote(array_id, safe='')}/cancel", wire.array_views.ArrayView, repeatable=True
        )

    def retry_array(self, array_id: str) -> wire.array_views.ArrayView:
        """Retry the members that failed."""
        return self._calls.post(
            f"/arrays/{quote(array_id, safe='')}/retry", wire.array_views.ArrayView, repeatable=False
        )

    def plan(self, spec: Spec, *, against: str | None = None) -> wire.plans.PlanView:
        """Show what would be launched, and how that differs from the job `against`. Submits nothing."""
        params = None if against is None else {"against": against}
        return self._calls.post("/plan", wire.plans.PlanView, params=params, body=_document(spec), repeatable=True)

    def jobs(
        self,
        *,
        state: str | None = None,
        project: str | None = None,
        cluster: str | None = None,
        label: str | None = None,
        query: str | None = None,
    ) -> Iterator[JobView]:
        """Yield jobs, newest first. `label` is "name=value". `query` is a text in the id, name or reason."""
        filters = {"state": state, "project": project, "cluster": cluster, "label": label, "q": query}
        return self._calls.pages("/jobs", Page[JobView], {name: value for name, value in filters.items() if value})

    def job(self, job_id: str, *, patience_s: float | None = None) -> JobView:
        return self._calls.get(path_of(job_id), JobView, patience_s=patience_s)

    def cancel(self, job_id: str) -> JobView:
        """Cancel a job. Returns before it has ended. Idempotent."""
        return self._calls.post(f"{path_of(job_id)}/cancel", JobView, repeatable=True)

    def delete(self, job_id: str, *, snapshots: Literal["keep", "delete"] = "keep") -> DeletionView:
        """Delete the record of an ended job. With "delete", its folder with snapshots and logs is deleted soon after.
        Idempotent."""
        return self._calls.delete(path_of(job_id), DeletionView, {"snapshots": snapshots})

    def suspend(self, job_id: str) -> JobView:
        """Take a snapshot and stop the job until it is resumed. Returns before it has stopped. Idempotent."""
        return self._calls.post(f"{path_of(job_id)}/suspend", JobView, repeatable=True)

    def resume(self, job_id: str) -> JobView:
        """Resume a suspended job, which returns to the queue. Idempotent."""
        return self._calls.post(f"{path_of(job_id)}/resume", JobView, repeatable=True)

    def snapshot(self, job_id: str) -> JobView:
        """Take a snapshot of a running job, which continues. Returns before the snapshot is taken."""
        return self._calls.post(f"{path_of(job_id)}/snapshot", JobView, repeatable=False)

    def ask_stacks(self, job_id: str, *, rank: int | None = None) -> JobView:
        """Request the Python stacks of a running job's ranks. Returns before they exist. `stacks` reads them."""
        body = wire.job_requests.StacksRequest(rank=rank).model_dump(mode="json")
        return self._calls.post(f"{path_of(job_id)}/stacks", JobView, body=body, repeatable=True)

    def stacks(self, job_id: str, *, rank: int | None = None) -> list[wire.history_views.StacksView]:
        """Return the last stack of each rank, ordered by rank. Only the newest attempt with stacks counts."""
        params = None if rank is None else {"rank": rank}
        return self._calls.get(f"{path_of(job_id)}/stacks", Page[wire.history_views.StacksView], params).items

    def chaos(self, job_id: str, fault: str, *, rank: int | None = None, node: str | int | None = None) -> JobView:
        """Inject a fault into a running job. Returns before it happens. The call is not retried, because a second one
        would inject a second fault."""
        body = {"fault": fault, "rank": rank, "node": node}
        given = {name: value for name, value in body.items() if value is not None}
        return self._calls.post(f"{path_of(job_id)}/chaos", JobView, body=given, repeatable=False)

    def scale(self, job_id: str, nodes: str | int) -> JobView:
        """Change the number of nodes, or its range such as "2:8". Returns before the job has them. Idempotent."""
        body = wire.job_requests.ScaleRequest(nodes=nodes).model_dump(mode="json")
        return self._calls.post(f"{path_of(job_id)}/scale", JobView, body=body, repeatable=True)

    def retry(
        self, job_id: str, *, restore_from: str | None = None, patch: Mapping[str, object] | None = None
    ) -> JobView:
        """Start another attempt, from a snapshot or with a patched spec (RFC 7396) if given."""
        body = wire.job_requests.RetryRequest(
            restore_from=restore_from, patch=dict(patch) if patch is not None else None
        )
        document = body.model_dump(mode="json", exclude_none=True) if patch is None else body.model_dump(mode="json")
        return self._calls.post(f"{path_of(job_id)}/retry", JobView, body=document, repeatable=False)

    def attempts(self, job_id: str) -> Iterator[AttemptView]:
        """Return the attempts of a job, oldest first."""
        return self._calls.pages(f"{path_of(job_id)}/attempts", Page[AttemptView], {})

    def events(self, job_id: str) -> Iterator[EventView]:
        """Return the events of a job, in the order of arrival."""
        return self._calls.pages(f"{path_of(job_id)}/events", Page[EventView], {})

    def events_page(self, job_id: str, *, cursor: str | None, patience_s: float | None = None) -> Page[EventView]:
        """Return one page of events. A later call with the same cursor returns the events that came after it."""
        params: dict[str, str | int] = {"limit": PAGE} | ({"cursor": cursor} if cursor else {})
        return self._calls.get(f"{path_of(job_id)}/events", Page[EventView], params, patience_s=patience_s)

    def snapshots(self, job_id: str) -> Iterator[wire.history_views.SnapshotView]:
        """Return the snapshots of a job, newest step first."""
        return self._calls.pages(f"{path_of(job_id)}/snapshots", Page[wire.history_views.SnapshotView], {})

    def shares(
        self,
        by: Grouping,
        *,
        project: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> wire.insight.SharesView:
        """Where the device time of all jobs went, by default in the last 30 days."""
        moments = {"since": since, "until": until}
        params: dict[str, str | int] = {name: at.isoformat() for name, at in moments.items() if at is not None}
        params |= {"by": by.value} if project is None else {"by": by.value, "project": project}
        return self._calls.get("/goodput", wire.insight.SharesView, params)

    def goodput(self, job_id: str) -> wire.insight.GoodputView:
        """Where the device time of a job went."""
        return self._calls.get(f"{path_of(job_id)}/goodput", wire.insight.GoodputView)

    def why(self, job_id: str) -> wire.insight.WhyView:
        """Return why a job is in its state."""
        return self._calls.get(f"{path_of(job_id)}/why", wire.insight.WhyView)

    def workers(self, job_id: str) -> Iterator[wire.history_views.WorkerView]:
        """Return the last report of each worker, newest attempt first."""
        return self._calls.pages(f"{path_of(job_id)}/workers", Page[wire.history_views.WorkerView], {})

    def resources(
        self, job_id: str, *, rank: int | None = None, points: int | None = None
    ) -> wire.history_views.ResourcesView:
        """Return the memory, CPU and GPU use of the ranks. Empty under torchrun, whose agent takes no samples."""
        wanted = {"rank": rank, "points": points}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._calls.get(f"{path_of(job_id)}/resources", wire.history_views.ResourcesView, params)

    def job_nodes(self, job_id: str) -> Iterator[wire.history_views.JobNodeView]:
        """Return the nodes of the newest attempt, by replica."""
        return self._calls.pages(f"{path_of(job_id)}/nodes", Page[wire.history_views.JobNodeView], {})

    def metrics(
        self, job_id: str, *, names: str | None = None, since_step: int | None = None, points: int | None = None
    ) -> wire.history_views.MetricsView:
        """Return down-sampled series of metrics. `names` are separated by commas."""
        wanted = {"names": names, "since_step": since_step, "points": points}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._calls.get(f"{path_of(job_id)}/metrics", wire.history_views.MetricsView, params)

    def clusters(self) -> list[wire.cluster_views.ClusterView]:
        """Return the configured clusters."""
        return self._calls.get("/clusters", Page[wire.cluster_views.ClusterView]).items

    def nodes(self, *, cluster: str | None = None) -> list[wire.cluster_views.NodeView]:
        """Return the nodes with recorded failures."""
        return self._calls.get(
            "/nodes", Page[wire.cluster_views.NodeView], None if cluster is None else {"cluster": cluster}
        ).items

    def clear_node(self, cluster: str, node: str) -> None:
        """Clear the record of a node, so that attempts may use it again. Idempotent."""
        self._calls.post_empty(f"/nodes/{quote(cluster, safe='')}/{quote(node, safe='')}/clear")

    def projects(self) -> list[wire.cluster_views.ProjectView]:
        """Return the projects with a quota or with active jobs."""
        return self._calls.get("/projects", Page[wire.cluster_views.ProjectView]).items

    def logs(self, job_id: str, **which: Unpack[LogChoice]) -> str:
        """Return the last lines of the workers' logs, 10,000 unless `tail` says how many."""
        return self._calls.text(f"{path_of(job_id)}/logs", watch.chosen(which))

    def whole_log(self, job_id: str, **which: Unpack[LogChoice]) -> Iterator[str]:
        """Yield all lines of the workers' logs, without line ends, oldest generation first. `tail` has no effect."""
        return watch.whole_log(self._calls, job_id, which)

    def follow_logs(self, job_id: str, *, outage_s: float = 600, **which: Unpack[LogChoice]) -> Iterator[str]:
        """Yield the last lines, without line ends, and each new one until the job has ended.

        After an outage shorter than `outage_s`, it continues with the lines written meanwhile, at most as many as were
        shown before.
        """
        return watch.follow_logs(self._calls, job_id, which, outage_s=outage_s)

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_change: Callable[[JobView], None] | None = None,
        outage_s: float = 600,
    ) -> JobView:
        """Block until the job has ended and return it. Outages of the service shorter than `outage_s` are tolerated.
        Raises WaitTimeout after `timeout_s`; the job continues."""
        return watch.wait(self._calls, job_id, timeout_s=timeout_s, on_change=on_change, outage_s=outage_s)


def _document(spec: Spec) -> object:
    return spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else dict(spec)
