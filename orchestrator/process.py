"""The process of the service: its socket, its announcement, and its shutdown."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import structlog
import uvicorn

from orchestrator import rundir
from orchestrator.api.connection import Connection, limit_unread
from orchestrator.bootstrap.database import make_root, open_database
from orchestrator.bootstrap.service import Service, build
from orchestrator.collector import calm_collector, limit_free_memory
from orchestrator.domain.errors import ConfigurationError
from orchestrator.jobfolder.folder import Folder
from orchestrator.open_files import raise_open_file_limit
from orchestrator.settings import Settings
from orchestrator.telemetry.lines import configure_logging
from orchestrator.wire.service import name_instance

# A request releases the interpreter lock at each query. While a pass computes, the request gets the lock back only
# after this time. With the default of 5 ms, a submission took 60 ms.
SWITCH_INTERVAL_S = 0.0005

log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Run the service until SIGTERM or SIGINT. Jobs continue without it. Raises ConfigurationError."""
    configure_logging(level=logging.getLevelNamesMapping()[settings.log_level.upper()])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    limit_free_memory()
    raise_open_file_limit()
    calm_collector()  # called before the imports too; this call excludes the objects that they created
    signal.signal(signal.SIGTERM, _leave)
    settings = check_settings(settings)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(open_database(settings))
        listener = stack.enter_context(_listener(settings))
        scheme = "http" if settings.tls_cert is None else "https"
        url = f"{scheme}://{_bracketed(settings.host)}:{listener.getsockname()[1]}"
        service = build(settings, database, url)
        _require_a_way_in(settings, service)
        for thread in service.threads:
            thread.start()
            stack.callback(thread.stop)
        stack.enter_context(_announced(settings.root, url))
        print(f"orchestrator is at {url}, run directory {settings.root}", flush=True)
        config = uvicorn.Config(
            service.app,
            http=Connection,
            log_config=None,
            timeout_graceful_shutdown=5,
            proxy_headers=False,  # the gate reads the proxy's headers, and needs the real peer
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        _Server(config, service.closing).run(sockets=[listener])


def _require_a_way_in(settings: Settings, service: Service) -> None:
    """Require an admin's token beyond loopback, where every caller needs one. Raises ConfigurationError."""
    if service.is_open or settings.proxy is not None or service.has_admin():
        return
    raise ConfigurationError(
        f"ORCHESTRATOR_HOST is {settings.host} but nobody could sign in: set ORCHESTRATOR_TOKEN to a first admin's "
        "token of 16 characters or more (`openssl rand -hex 32` makes one), or name a proxy in [proxy]"
    )


def check_settings(settings: Settings) -> Settings:
    """Check the settings, and make the root absolute. Raises ConfigurationError."""
    _check_tls(settings)
    low, high = settings.rendezvous_ports
    if not 1024 <= low <= high <= 65535:
        raise ConfigurationError(f"ORCHESTRATOR_RENDEZVOUS_PORTS is {low}, {high}: not a range within 1024 .. 65535")
    root = settings.root.expanduser().absolute()
    try:
        make_root(root)
        root = root.resolve()
        with Folder.of(root) as folder:
            rundir.write_document(folder, Path(".writable"), {})
            folder.remove(Path(".writable"))  # no error if another starting service has removed it
    except OSError as error:
        raise ConfigurationError(f"the run directory {root} cannot be written: {error.strerror}") from error
    return settings.model_copy(update={"root": root})


def _check_tls(settings: Settings) -> None:
    """Raises ConfigurationError unless the files are a valid certificate and its key."""
    if settings.tls_cert is None and settings.tls_key is None:
        return
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigurationError("ORCHESTRATOR_TLS_CERT and ORCHESTRATOR_TLS_KEY go together: set both or neither")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"ORCHESTRATOR_TLS_CERT {settings.tls_cert} and ORCHESTRATOR_TLS_KEY {settings.tls_key}: {error}"
        ) from error


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End a service that does not serve yet, as after an error: close what it has opened. A second signal kills it."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(0)


class _Server(uvicorn.Server):
    """Ends streams as soon as a shutdown begins. Uvicorn waits for them before it notifies the application.

    Uvicorn would also end the process with the signal that it caught. Here the supervisor finishes its pass first.
    """

    def __init__(self, config: uvicorn.Config, closing: threading.Event) -> None:
        super().__init__(config)
        self._closing = closing

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        interrupt = signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGTERM, self.handle_exit)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, interrupt)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one kills it

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._closing.set()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("the service stops; jobs continue")
        await super().shutdown(sockets)


@contextlib.contextmanager
def _listener(settings: Settings) -> Iterator[socket.socket]:
    """Open a listening socket. Port 0 means any free port. Raises ConfigurationError if the port is in use."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol must be named: only then does asyncio set TCP_NODELAY. Without it, an answer on a kept-alive
    # connection waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        limit_unread(listener)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)  # before the announcement, so that clients can connect at once
        yield listener
    except OSError as error:
        raise ConfigurationError(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): "
            "set ORCHESTRATOR_PORT to another one, or to 0 for any free one"
        ) from error
    finally:
        listener.close()


@contextlib.contextmanager
def _announced(root: Path, url: str) -> Iterator[None]:
    """Write `service.json` while the service runs, for clients on this machine. The last of several services counts."""
    version = importlib.metadata.version("elastic-orchestrator")
    announcement = {"url": url, "pid": os.getpid(), "version": version, "instance": name_instance(root)}
    path = Path("service.json")
    with Folder.of(root) as folder:
        rundir.write_document(folder, path, announcement)
        try:
            yield
        finally:
            if rundir.read_document(folder, path) == announcement:
                folder.remove(path)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
