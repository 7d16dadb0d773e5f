"""Run a Python function as a job, and get its result.

    job = submit_function(train, (3e-4,), nodes=2, workers_per_node=8)
    print(job.result())

The function runs on every rank, with the workdir's modules and the environment of `elasticrun`. Its code is part of
the job's spec. Only the job's workers unpack it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.client.client import Client, connect
from orchestrator.domain.errors import OrchestratorError, Refused
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import make_name
from orchestrator.domain.specs.validation import merge_patch, parse_spec
from orchestrator.wire.job_views import JobView
from trainer.contract.exit_record import EventKind
from trainer.contract.function_call import MODULE, VALUE, FunctionCall, pack

_OF_THE_FUNCTION = frozenset({"trainer", "script", "module", "command", "args"})


class FunctionFailed(OrchestratorError):
    """The job did not succeed, or its return value has no short JSON. `job` is the job at its end."""

    def __init__(self, job: JobView, message: str) -> None:
        super().__init__(message)
        self.job = job


class FunctionJob:
    """A submitted function. Not thread-safe. Every method raises what Client's methods raise."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"FunctionJob({self.id!r})"

    @property
    def state(self) -> JobState:
        return self.view().state

    def view(self) -> JobView:
        """Return the job as it is now."""
        return self._client.job(self.id)

    def done(self) -> bool:
        return self.view().ended

    def wait(self, timeout_s: float | None = None) -> JobView:
        """Block until the job has ended. Raises WaitTimeout after `timeout_s`; the job continues."""
        return self._client.wait(self.id, timeout_s=timeout_s)

    def result(self, timeout_s: float | None = None) -> object:
        """Wait, and return what the function returned on rank 0, as JSON has it: a tuple becomes a list.

        Raises FunctionFailed if the job did not succeed or the value has no JSON of at most 32,000 characters, and
        WaitTimeout after `timeout_s`.
        """
        job = self.wait(timeout_s)
        if job.state is not JobState.SUCCEEDED:
            raise FunctionFailed(job, _describe(job))
        returned = [event for event in self._client.events(self.id) if event.kind == EventKind.FUNCTION_RETURNED.value]
        text = returned[-1].evidence.get(VALUE) if returned else None
        if not isinstance(text, str):
            raise FunctionFailed(
                job,
                returned[-1].sentence if returned else "rank 0 reported no value; it may have ended the process itself",
            )
        return json.loads(text)

    def exception(self, timeout_s: float | None = None) -> FunctionFailed | None:
        """Wait, and return why the job did not succeed. None if it did. Raises WaitTimeout after `timeout_s`."""
        job = self.wait(timeout_s)
        return None if job.state is JobState.SUCCEEDED else FunctionFailed(job, _describe(job))

    def logs(self, *, rank: int | None = None) -> str:
        """Return the last lines that the function printed, on one rank or on all."""
        return self._client.logs(self.id, rank=rank)

    def cancel(self) -> None:
        self._client.cancel(self.id)


def submit_function(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    nodes: str | int = 1,
    workers_per_node: int | str = 1,
    spec: Mapping[str, object] | None = None,
    client: Client | None = None,
) -> FunctionJob:
    """Submit a job that calls `function(*args, **kwargs)` on every rank.

    `nodes` is a number, or a range such as "2:8". `spec` has further fields of the job, such as
    `{"name": "tune", "cluster": "lab", "run": {"env": {"SEED": "1"}}}`. The workdir is the current folder. Without
    `client`, the service is found as the command line finds it. The nodes need the caller's version of Python.

    Raises InvalidSpec if a field is wrong, and Refused if the function and its arguments cannot be pickled or take more
    than 32,000 characters.
    """
    if not callable(function):
        raise Refused(f"{function!r} is not a function")
    run = (spec or {}).get("run")
    taken = sorted(_OF_THE_FUNCTION & run.keys()) if isinstance(run, Mapping) else []
    if taken:
        raise Refused(f"run.{taken[0]} is set by the function; give values with args and kwargs")
    try:
        text = pack(FunctionCall(function, tuple(args), dict(kwargs or {})))
    except ValueError as error:
        raise Refused(str(error)) from error
    own = {
        "name": make_name(getattr(function, "__name__", "")) or "function",
        "run": {"module": MODULE, "args": [text], "workdir": str(Path.cwd())},
        "topology": {"nodes": str(nodes), "workers_per_node": workers_per_node},
    }
    client = client or connect()
    return FunctionJob(client, client.submit(parse_spec(merge_patch(own, spec or {}))).id)


def _describe(job: JobView) -> str:
    failure = job.failure
    if failure is None:
        return f"{job.id} is {job.state}: {job.reason}"
    return f"{job.id} is {job.state}: {job.reason}\n{failure.traceback or failure.message}"
