"""The service itself."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from orchestrator.wire.answers import Answer

INSTANCE_HEADER = "Orchestrator-Instance"
WARNING_HEADER = "Orchestrator-Warning"  # a sentence on what the service cannot do now


def name_instance(root: Path) -> str:
    """Names the services of a run directory on this host. Clients send it; another service refuses their requests."""
    return hashlib.sha256(f"{socket.gethostname()}:{root}".encode()).hexdigest()[:16]


class Health(Answer):
    status: str
    version: str
    detail: str = ""
