"""Schemathesis's hooks. They run in its process, import nothing of this project and read CONFORMANCE_KNOWN.

Most generated ids and clusters do not exist. The hooks replace seven of eight ids and three of four specs by existing
ones, always the same for the same case, so that a failure can be shrunk and repeated.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import schemathesis

_KNOWN: dict[str, list[str]] = json.loads(os.environ.get("CONFORMANCE_KNOWN", "{}"))
_ENDING = ("/cancel", "/suspend", "/retry")  # not for the first job, which has to keep running
_OF_THE_RUNNING = ("/snapshot", "/stacks", "/chaos")
_SPARE = "spare_job_id"  # ended jobs that may be deleted
_RUNS: tuple[dict[str, Any], ...] = (
    {"command": ["true"], "workdir": "/"},
    {"trainer": {"steps": 3, "global_batch": 2}, "workdir": "/"},
    {"module": "this", "args": ["-v"], "workdir": "/tmp"},
)


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    query = case.query
    if isinstance(query, dict) and "follow" in query:
        query["follow"] = "false"  # a followed log ends with its job, which never ends
    if _phase(case) == "stateful":
        return  # the ids come from earlier answers
    for name, value in (case.path_parameters or {}).items():
        if name in _KNOWN:
            case.path_parameters[name] = _known(_there(case, name), value)
    body = case.body
    if isinstance(body, dict) and "all_jobs" in body:
        body["all_jobs"] = False  # the service would notify generated hosts of every later job
    if isinstance(body, dict) and isinstance(body.get("run"), dict):
        number = _number(body)
        if number % 4 != 3:
            body |= {"cluster": "local", "run": _RUNS[number % 3], "after": [], "notify": [], "placement": {}}
            body["project"] = _KNOWN["project"][number // 4 % len(_KNOWN["project"])]
            if "sweep" in body and number // 4 % 2:
                body["sweep"] = {"list": [{"run.env.SEED": 1}, {"run.env.SEED": 2}]}
    elif isinstance(body, dict) and "incarnation" in body:
        number = _number(body)
        if number % 4 != 3:
            body |= {"job_id": _KNOWN["job_id"][0], "attempt": 1, "replica": 0}


def _there(case: Any, name: str) -> list[str]:
    """Return the existing values that this operation may use up."""
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
