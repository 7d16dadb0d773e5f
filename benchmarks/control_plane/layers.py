"""What one submission costs in each layer of the service. The service runs in this process, without its supervisors."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import uvicorn
from starlette.middleware.exceptions import ExceptionMiddleware

from benchmarks.control_plane.load import Caller, Request
from benchmarks.frame import Figures, render_number
from orchestrator.api import authorization, bodies
from orchestrator.api.connection import Connection
from orchestrator.api.edge import Edge
from orchestrator.api.routes import jobs
from orchestrator.bootstrap.service import build
from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.process import SWITCH_INTERVAL_S, check_settings
from orchestrator.settings import Settings
from orchestrator.store.engine import Database
from orchestrator.store.job_store import SqlJobStore
from orchestrator.telemetry.lines import configure_logging

LAYER_COLUMNS = ("n", "median", "share")
OUTSIDE = "connection, HTTP, and the client"
_WARM_UP = 50
_LOOK_AGAIN_S = 0.0002
# The layer of each function, without the time of the functions of other layers that it calls.
_LAYERS: Sequence[tuple[str, object, str]] = (
    ("edge: checks, metrics, log", Edge, "__call__"),
    ("routing, dependencies, threads", ExceptionMiddleware, "__call__"),
    ("authorization", authorization, "identify"),
    ("authorization", authorization, "judge"),
    ("body: read", bodies, "read_body"),
    ("body: parse JSON", bodies, "parse_document"),
    ("validation", bodies, "parse_model"),
    ("command: digest, job, event", Commands, "submit"),
    ("policy: checks of the spec", Checks, "accept"),
    ("SQL", SqlJobStore, "_add_all"),
    ("answer", jobs, "view_of_new_job"),
    ("answer", Commands, "list_warnings"),
    ("answer", jobs, "render_answer"),
)


class Stopwatch:
    """Charges time to the innermost layer, whatever thread it runs in. For one request at a time."""

    def __init__(self) -> None:
        self._layers = [OUTSIDE]
        self._since = perf_counter()
        self._spent_s: dict[str, float] = defaultdict(float)

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        self._charge()
        self._layers.append(name)
        try:
            yield
        finally:
            self._charge()
            self._layers.pop()

    def take(self) -> Mapping[str, float]:
        """Return the seconds of each layer since the last call, once the service has left the last layer."""
        while len(self._layers) > 1:
            time.sleep(_LOOK_AGAIN_S)
        self._charge()
        spent_s, self._spent_s = self._spent_s, defaultdict(float)
        return spent_s

    def _charge(self) -> None:
        now = perf_counter()
        self._spent_s[self._layers[-1]] += now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which may be asynchronous, as a layer."""
        if iscoroutinefunction(function):

            @wraps(function)
            async def timed_there(*args: Any, **kwargs: Any) -> Any:
                with self.layer(name):
                    return await function(*args, **kwargs)

            return timed_there

        @wraps(function)
        def timed_here(*args: Any, **kwargs: Any) -> Any:
            with self.layer(name):
                return function(*args, **kwargs)

        return timed_here


def measure_layers(folder: Path, url: str, requests: Sequence[Request]) -> Figures:
    """The median seconds of each layer, over requests one after the other."""
    watch = Stopwatch()
    with ExitStack() as stack:
        for name, owner, function in _LAYERS:
            timed = watch.timed(name, getattr(owner, function))
            stack.enter_context(patch.object(owner, function, timed))
        stack.enter_context(redirect_stderr(stack.enter_context((folder / "log").open("w"))))
        database = stack.enter_context(Database(url))
        commit = watch.timed("commit", database.engine.dialect.do_commit)
        stack.enter_context(patch.object(database.engine.dialect, "do_commit", commit))
        caller = stack.enter_context(closing(Caller(stack.enter_context(_served(folder, database)))))
        spent_s = []
        for request in requests:
            answer = caller.ask(request)
            assert answer.status == 201, answer
            spent_s.append(watch.take())
    names = dict.fromkeys([*(name for name, _, _ in _LAYERS), "commit", OUTSIDE])
    return {name: _describe([each.get(name, 0.0) for each in spent_s[_WARM_UP:]]) for name in names}


def _describe(seconds: Sequence[float]) -> Figures:
    return {"n": len(seconds), "median_ms": round(1000 * statistics.median(seconds), 4)}


@contextmanager
def _served(folder: Path, database: Database) -> Iterator[str]:
    """Serve without threads of the service, whose work would be charged to the requests. Yields the address."""
    configure_logging(human=False)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings = check_settings(Settings(root=folder / "root"))
    app = build(settings, database, "http://127.0.0.1:0").app
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=Connection, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def render_layers(kind: str, layers: Figures) -> list[list[str]]:
    """Rows under LAYER_COLUMNS."""
    whole_ms = sum(each["median_ms"] for each in layers.values())
    rows = [
        [
            f"{kind}: {name}",
            str(each["n"]),
            render_number(each["median_ms"], "ms"),
            f"{each['median_ms'] / whole_ms:.0%}",
        ]
        for name, each in layers.items()
    ]
    count = str(next(iter(layers.values()))["n"])
    return [*rows, [f"{kind}: all", count, render_number(whole_ms, "ms"), "100%"]]
