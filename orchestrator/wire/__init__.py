"""HTTP bodies of `/api/v1`, shared by the service and its clients.

Answers may gain fields; a client ignores unknown ones. Requests refuse unknown fields. Reports ignore them, because
agents of other versions send them.

The client names these modules as `wire.<module>`, which imports a module at its first use: a command needs few of them,
and each takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.wire import array_views as array_views
    from orchestrator.wire import cluster_views as cluster_views
    from orchestrator.wire import credential_views as credential_views
    from orchestrator.wire import history_views as history_views
    from orchestrator.wire import insight as insight
    from orchestrator.wire import job_requests as job_requests
    from orchestrator.wire import plans as plans
    from orchestrator.wire import webhook_views as webhook_views


def __getattr__(name: str) -> ModuleType:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
