"""A scheduler plugin for torchx, as somebody else would write it. Its apps are detached processes and folders.

A file beside the apps chooses its moods: `holds` lets apps wait, `dumb` makes it fail after it has started an app,
`forgets` makes it know no app, and `garbles` makes it unable to read what it knows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, macros, runopts

NAME = "queue_of_files"
_RUN = 'echo $$ >"$0.pid"; "$@"; echo $? >"$0.code"'


class QueueOfFiles(Scheduler[dict[str, Any]]):
    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        print("plugins print what they like")

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("folder", type_=str, required=True, help="where the apps are")
        return options

    def _submit_dryrun(self, app: AppDef, cfg: dict[str, Any]) -> AppDryRunInfo[Any]:
        (role,) = app.roles
        app_id = make_unique(app.name)
        replicas = []
        for number in range(role.num_replicas):
            values = macros.Values(img_root=role.image, app_id=app_id, replica_id=str(number), rank0_env="FIRST_NODE")
            one = values.apply(role)
            replicas.append({"command": [one.entrypoint, *one.args], "env": one.env})
        return AppDryRunInfo({"id": app_id, "folder": cfg["folder"], "replicas": replicas}, json.dumps)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        request = dryrun_info.request
        base = Path(request["folder"])
        folder = base / request["id"]
        folder.mkdir(parents=True)
        Path(".where").write_text(str(base))
        (folder / "request.json").write_text(json.dumps(request))
        if not (base / "holds").exists():
            start(folder)
        if (base / "dumb").exists():
            raise ConnectionError("the queue does not answer")
        return str(request["id"])

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        base = Path(Path(".where").read_text())
        folder = base / app_id
        if (base / "garbles").exists():
            raise ValueError("garbage from the queue")
        if not folder.exists() or (base / "forgets").exists():
            return None
        if not (folder / "started").exists() and not (base / "holds").exists():
            start(folder)
        return DescribeAppResponse(app_id=app_id, state=state_of(folder), msg="as the queue says")

    def _cancel_existing(self, app_id: str) -> None:
        folder = Path(Path(".where").read_text()) / app_id
        (folder / "cancelled").touch()
        for pid in folder.glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.killpg(int(pid.read_text()), signal.SIGKILL)

    def list(self) -> list[ListAppResponse]:
        return []

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
        return []


def start(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    (folder / "started").touch()
    for number, one in enumerate(request["replicas"]):
        subprocess.Popen(
            ["sh", "-c", _RUN, str(folder / str(number)), *one["command"]],
            env={"PATH": os.environ["PATH"], "FIRST_NODE": "localhost", **one["env"]},
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def state_of(folder: Path) -> AppState:
    count = len(json.loads((folder / "request.json").read_text())["replicas"])
    codes = [each.read_text().strip() for each in folder.glob("*.code")]
    if (folder / "cancelled").exists():
        return AppState.CANCELLED
    if not (folder / "started").exists():
        return AppState.PENDING
    if len(codes) < count:
        return AppState.RUNNING
    return AppState.SUCCEEDED if set(codes) == {"0"} else AppState.FAILED


def create_scheduler(session_name: str, **_: object) -> QueueOfFiles:
    return QueueOfFiles(session_name)
