"""Lists and shows with many stored jobs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.control_plane.load import Clients, ask, render_get
from benchmarks.control_plane.stored import RARE

LISTS = {
    "list": "",
    "list state=FAILED": "&state=FAILED",
    "list state=RUNNING": "&state=RUNNING",
    "list project=vision": "&project=vision",
    "list project=rare": f"&project={RARE}",
    "list label": "&label=team%3Dresearch",
    "list oldest": "&order=oldest",
}


def measure_reads(clients: Clients, url: str, ids: Sequence[str], repeats: int) -> dict[str, object]:
    """One client, one request after the other."""
    found, last_page = walk(url)
    figures: dict[str, object] = {"stored": found}
    paths = {name: f"/api/v1/jobs?limit=50{query}" for name, query in LISTS.items()}
    paths["list last page"] = f"/api/v1/jobs?limit=50&cursor={last_page}"
    for name, path in paths.items():
        clients.run(partial(repeat, path, 5))
        figures[name] = clients.run(partial(repeat, path, repeats)).figures()
    figures["show"] = clients.run(partial(shows, ids, repeats)).figures()
    return figures


def walk(url: str) -> tuple[int, str]:
    """Every page once: how many jobs there are, and a cursor with some 50 jobs or more behind it."""
    found, cursor, cursors = 0, "", [""]
    while True:
        status, page = ask(url, f"/api/v1/jobs?limit=200{cursor and '&cursor=' + cursor}")
        assert status == 200, page
        items = page["items"]
        assert isinstance(items, list)
        found += len(items)
        if page["next_cursor"] is None:
            return found, cursors[-1] if len(items) >= 50 else cursors[-2]
        cursor = str(page["next_cursor"])
        cursors.append(cursor)


def repeat(path: str, count: int) -> Iterator[bytes]:
    return itertools.repeat(render_get(path), count)


def shows(ids: Sequence[str], count: int) -> Iterator[bytes]:
    return (render_get(f"/api/v1/jobs/{job_id}") for job_id in random.Random(1).choices(ids, k=count))
