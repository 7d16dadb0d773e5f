"""Where snapshots may lie: a path, or the URL of a folder in an object store. Pure: nothing is touched."""

from __future__ import annotations


def is_url(place: str) -> bool:
    return "://" in place


def join(place: str, name: str) -> str:
    return f"{place.rstrip('/')}/{name}"


def why_no_place(url: str) -> str | None:
    """Why a URL cannot hold snapshots, as a phrase, or None if it can."""
    scheme, _, rest = url.partition("://")
    if "memory" in (scheme, url.rpartition("://")[0].rpartition(":")[2]):  # also at the end of a chain
        return "does not outlive the process that wrote it"
    return None if scheme and rest.strip("/") else "names no folder: write <scheme>://<bucket>/<folder>"
