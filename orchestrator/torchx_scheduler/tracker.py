"""The torchx tracker `orchestrator`: what a job's script tells torchx's AppRun becomes the job's metrics and events.

    # .torchxconfig, where the job is submitted
    [torchx:tracker]
    orchestrator =

    # in the script
    run = AppRun.run_from_env()
    run.add_metadata(step=120, accuracy=0.93)   # numbers with a step: series on the job's page
    run.add_metadata(dataset="c4")              # anything else: an event, "dataset: c4"
    run.add_artifact("model", "/data/model.pt")

Rank 0 alone writes, to its journal: it waits for nobody, and an unreachable service costs nothing. Reading asks the
service; the tracker's `config` is its address, if it is not found as the command line finds it.
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
_PARENT_LABEL = "torchx/parent"  # as translate.py has it
_MOST_RUNS = 1000
_log = logging.getLogger(__name__)


class JobTracker(TrackerBase):  # type: ignore[misc]  # torchx has no types
    """`url` is for reading. Writing to a run that is not this process's own job raises ValueError."""

    def __init__(self, url: str | None, environ: Mapping[str, str]) -> None:
        self._url, self._place = url, parse_place(environ)
        self._is_refused = False

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Numbers beside an integer `step` are measurements of it; all else is told in an event."""
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
        """What was told last under each name, and the newest value of each series of the job."""
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
        raise NotImplementedError("torchx defines nothing that a lineage could hold; see sources and run_ids")

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Handles of the newest jobs; with `parent_run_id`, of those that were submitted under it."""
        parent = kwargs.get("parent_run_id")
        label = None if parent is None else f"{_PARENT_LABEL}={parent}"
        with self._client() as client:
            jobs = client.jobs(label=label)
            return [f"orchestrator://torchx/{job.id}" for job, _ in zip(jobs, range(_MOST_RUNS), strict=False)]

    def _heartbeat(self, run_id: str) -> Heartbeat | None:
        """What writes this job's journals; None on other ranks, and outside of a job."""
        place = self._place
        if place.replica_dir is None:
            if not self._is_refused:
                _log.warning("this is no job of the orchestrator: what is tracked here is not kept")
            self._is_refused = True
            return None
        if not _is_own(run_id, place):
            raise ValueError(f"run {run_id} is not this job, {place.job_id}: a job writes to itself alone")
        if place.rank != 0:
            return None
        return Heartbeat.current or Heartbeat(place, None, Phase.NOTE)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        # Declared lazy start-up path: a worker that only writes needs no HTTP client.
        client, settings = (
            importlib.import_module("orchestrator.client"),
            importlib.import_module("orchestrator.settings"),
        )
        chosen = settings.load_settings()
        with client.connect(chosen.model_copy(update={"url": self._url}) if self._url else chosen) as connected:
            yield connected


def create_tracker(config: str | None) -> JobTracker:
    """The entry point. `config` is the service's address."""
    return JobTracker(config or None, os.environ)


def _events(client: Client, run_id: str, kind: EventKind) -> list[EventView]:
    return [event for event in client.events(_job_id(run_id)) if event.kind == kind.value]


def _job_id(run_id: str) -> str:
    """Of a handle, as orchestrator://torchx/gpt-4k2m, or an id."""
    return run_id.rpartition("/")[2]


def _is_own(run_id: str, place: WorkerPlace) -> bool:
    """AppRun's id is the handle; where torchx did not start the job it is "<UNDEFINED>"."""
    return _job_id(run_id) in (place.job_id, "<UNDEFINED>")


def _number(value: object) -> float | None:
    """A finite number, a library's own scalar included; None for anything else."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ):  # a tensor of several values, as torch and NumPy say it
        return None
    return number if math.isfinite(number) else None


def _plain(value: object) -> object:
    """As JSON has it; what JSON does not have becomes its text."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)
