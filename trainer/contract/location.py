"""Where snapshots may lie: a path, or the URL of a folder in an object store. Pure: nothing is touched."""

from __future__ import annotations


def is_url(place: str) -> bool:
    return "://" in place


def join(place: str, name: str) -> str:
    return f"{place.rstrip('/')}/{name}"


def why_no_place(url: str) -> str | None:
    """What is wrong with a URL as a place that outlives its process, in a phrase; None where nothing is."""
    scheme, _, rest = url.partition("://")
    if "memory" in (scheme, url.rpartition("://")[0].rpartition(":")[2]):  # at the end of a chain as well
        return "is gone with the process that wrote it"
    return None if scheme and rest.strip("/") else "names no place: write <scheme>://<bucket>/<folder>"
