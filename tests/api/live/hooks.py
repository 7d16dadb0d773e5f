"""What Schemathesis is told in its own process: it imports nothing of ours, and reads CONFORMANCE_KNOWN.

Most generated ids lead nowhere, and most generated specs name a cluster that is not there. Here seven of eight ids and
three of four specs are replaced by some that exist, always the same for the same case, so that a failure can be shrunk
and repeated.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import schemathesis

_KNOWN: dict[str, list[str]] = json.loads(os.environ.get("CONFORMANCE_KNOWN", "{}"))
_ENDING = ("/cancel", "/suspend", "/retry")  # the first job keeps running, for what only a running one can do
_OF_THE_RUNNING = ("/snapshot", "/stacks", "/chaos")
_SPARE = "spare_job_id"  # of jobs that have ended and that nothing else needs: they are there to be deleted
_RUNS: tuple[dict[str, Any], ...] = (
    {"command": ["true"], "workdir": "/"},
    {"trainer": {"steps": 3, "global_batch": 2}, "workdir": "/"},
    {"module": "this", "args": ["-v"], "workdir": "/tmp"},
)


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    query = case.query
    if isinstance(query, dict) and "follow" in query:
        query["follow"] = "false"  # a log that is followed ends with its job, which never does
    if _phase(case) == "stateful":
        return  # there the ids come out of answers
    for name, value in (case.path_parameters or {}).items():
        if name in _KNOWN:
            case.path_parameters[name] = _known(_there(case, name), value)
    body = case.body
    if isinstance(body, dict) and "all_jobs" in body:
        body["all_jobs"] = False  # the service would tell hosts of generated names of every job that follows
    if isinstance(body, dict) and isinstance(body.get("run"), dict):
        number = _number(body)
        if number % 4 != 3:
            body |= {"cluster": "local", "run": _RUNS[number % 3], "after": [], "notify": [], "placement": {}}
            body["project"] = _KNOWN["project"][number // 4 % len(_KNOWN["project"])]
    elif isinstance(body, dict) and "incarnation" in body:
        number = _number(body)
        if number % 4 != 3:
            body |= {"job_id": _KNOWN["job_id"][0], "attempt": 1, "replica": 0}


def _there(case: Any, name: str) -> list[str]:
    """The values that exist, of those that this operation may use up."""
    if name != "job_id":
        return _KNOWN[name]
    if case.method == "DELETE":
        return _KNOWN[_SPARE]
    first, *others = _KNOWN[name]
    if case.method == "POST" and case.operation.path.endswith(_OF_THE_RUNNING):
        return [first]
    return others if case.operation.path.endswith(_ENDING) else [first, *others]


def _known(there: list[str], value: Any) -> Any:
    number = _number(value)
    return value if number % 8 == 7 else there[number // 8 % len(there)]


def _number(value: Any) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True, default=str).encode())


def _phase(case: Any) -> str:
    return "" if case.meta is None else str(case.meta.phase.name.value).lower()
