"""The torchx tracker `orchestrator`: turns a script's calls of torchx's AppRun into metrics and events of its job.

    # .torchxconfig, where the job is submitted
    [torchx:tracker]
    orchestrator =

    # in the script
    run = AppRun.run_from_env()
    run.add_metadata(step=120, accuracy=0.93)   # numbers with a step: series on the job's page
    run.add_metadata(dataset="c4")              # anything else: an event, "dataset: c4"
    run.add_artifact("model", "/data/model.pt")

Only rank 0 writes, and only to its journal, so a call never waits for the service. Reads query the service. The
tracker's `config` is the service's URL; without it the tracker finds the service as the command line does.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, SupportsFloat

from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource

from trainer.contract.env import WorkerPlace, parse_place
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from orchestrator.client import Client
    from orchestrator.wire.job_views import EventView

_STEP = "step"
_PARENT_LABEL = "torchx/parent"  # the same as in translate.py, which workers do not import
_MOST_RUNS = 1000
_log = logging.getLogger(__name__)


class JobTracker(TrackerBase):  # type: ignore[misc]  # torchx has no types
    """Writes to the journal and reads from the service at `url`. A write to another job's run raises ValueError."""

    def __init__(self, url: str | None, environ: Mapping[str, str]) -> None:
        self._url, self._place = url, parse_place(environ)
        self._has_warned = False

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record numbers with an integer `step` as metrics of that step, and everything else as an event."""
        heartbeat = self._heartbeat(run_id)
        if heartbeat is None or not kwargs:
            return
        step = kwargs.get(_STEP)
        measured = {name: _number(value) for name, value in kwargs.items() if name != _STEP}
        numbers = {name: value for name, value in measured.items() if value is not None}
        if type(step) is int and step >= 0 and numbers:
            heartbeat.note(step, numbers)
            kwargs = {name: value for name, value in kwargs.items() if name != _STEP and name not in numbers}
        if kwargs:
            plain = {name: _plain(value) for name, value in kwargs.items()}
            sentence = ", ".join(f"{name}: {value}" for name, value in plain.items())
            heartbeat.tell(EventKind.METADATA_NOTED, sentence, plain)

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        heartbeat = self._heartbeat(run_id)
        if heartbeat is not None:
            evidence: dict[str, object] = {"name": name, "path": path, "metadata": _plain(dict(metadata or {}))}
            heartbeat.tell(EventKind.ARTIFACT_ADDED, f"artifact {name}: {path}", evidence)

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        heartbeat = self._heartbeat(run_id)
        if heartbeat is not None:
            what = "" if artifact_name is None else f", its {artifact_name}"
            evidence: dict[str, object] = {"source": source_id, "artifact": artifact_name}
            heartbeat.tell(EventKind.SOURCE_ADDED, f"made from {source_id}{what}", evidence)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the last value recorded under each name, and the newest value of each series of the job."""
        with self._client() as client:
            notes = [event.evidence for event in _events(client, run_id, EventKind.METADATA_NOTED)]
            newest = client.metrics(_job_id(run_id)).newest()
        return {name: value for evidence in notes for name, value in evidence.items()} | newest

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        with self._client() as client:
            found = [event.evidence for event in _events(client, run_id, EventKind.ARTIFACT_ADDED)]
        made = (TrackerArtifact(str(one["name"]), str(one["path"]), one.get("metadata") or None) for one in found)
        return {artifact.name: artifact for artifact in made}

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        with self._client() as client:
            found = [event.evidence for event in _events(client, run_id, EventKind.SOURCE_ADDED)]
        made = [TrackerSource(str(one["source"]), one.get("artifact")) for one in found]
        return [source for source in made if artifact_name in (None, source.artifact_name)]

    def lineage(self, run_id: str) -> Lineage:
        raise NotImplementedError("torchx defines no content for a lineage; use sources and run_ids")

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return handles of the newest jobs. `parent_run_id` limits them to jobs submitted with that parent."""
        parent = kwargs.get("parent_run_id")
        label = None if parent is None else f"{_PARENT_LABEL}={parent}"
        with self._client() as client:
            jobs = client.jobs(label=label)
            return [f"orchestrator://torchx/{job.id}" for job, _ in zip(jobs, range(_MOST_RUNS), strict=False)]

    def _heartbeat(self, run_id: str) -> Heartbeat | None:
        """Return the writer of this job's journals. None on other ranks, and outside a job."""
        place = self._place
        if place.replica_dir is None:
            if not self._has_warned:
                _log.warning("this process is not a worker of an orchestrator job: tracker calls are ignored")
            self._has_warned = True
            return None
        if not _is_own(run_id, place):
            raise ValueError(f"run {run_id} is not this job, {place.job_id}: a job can only write to its own run")
        if place.rank != 0:
            return None
        return Heartbeat.current or Heartbeat(place, None, Phase.NOTE)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        # Imported here, because a worker that only writes needs no HTTP client.
        client = importlib.import_module("orchestrator.client")
        settings = importlib.import_module("orchestrator.client_settings")
        chosen = settings.load_client_settings()
        with client.connect(chosen.model_copy(update={"url": self._url}) if self._url else chosen) as connected:
            yield connected


def create_tracker(config: str | None) -> JobTracker:
    """Create the tracker, as torchx's entry point. `config` is the service's URL."""
    return JobTracker(config or None, os.environ)


def _events(client: Client, run_id: str, kind: EventKind) -> list[EventView]:
    return [event for event in client.events(_job_id(run_id)) if event.kind == kind.value]


def _job_id(run_id: str) -> str:
    """Return the id in a handle such as orchestrator://torchx/gpt-4k2m. An id is returned unchanged."""
    return run_id.rpartition("/")[2]


def _is_own(run_id: str, place: WorkerPlace) -> bool:
    """Whether a run is this job. AppRun's id is the handle, or "<UNDEFINED>" if torchx did not start the job."""
    return _job_id(run_id) in (place.job_id, "<UNDEFINED>")


def _number(value: object) -> float | None:
    """Return a finite number, also for scalars of torch and NumPy. None for anything else."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch and NumPy raise these for several values
        return None
    return number if math.isfinite(number) else None


def _plain(value: object) -> object:
    """Return the value as JSON stores it. Other types become text."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)
