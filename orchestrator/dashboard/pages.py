"""Templates and static files, read once at start. Templates escape all values."""

from __future__ import annotations

import gzip
import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.dashboard import present, timeline
from orchestrator.domain.accounting.goodput import show_bin
from orchestrator.domain.accounting.restarts import show_repeated, show_source
from orchestrator.domain.counted import counted
from orchestrator.wire.problems import Problem

_HERE = Path(__file__).parent
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    packed: bytes  # gzip
    media_type: str
    tag: str


def _read_asset(path: Path) -> Asset:
    content = path.read_bytes()
    packed = gzip.compress(content, 9, mtime=0)
    return Asset(content, packed, _MEDIA_TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])


ASSETS = {path.name: _read_asset(path) for path in sorted((_HERE / "static").iterdir()) if path.suffix in _MEDIA_TYPES}


def _read_release() -> str:
    """Return a hash of all files of the pages. An open page offers a reload when the hash changes after an upgrade."""
    files = sorted(path for path in _HERE.rglob("*") if path.suffix in {".html", *_MEDIA_TYPES})
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


RELEASE = _read_release()


def render_page(template: str, *, fragment: bool = False, **values: object) -> str:
    """Render a template, and leave no reference cycle.

    A macro and its page's context refer to each other. A list of jobs is 0.3 MB, which would stay until the garbage
    collector runs. So the context is emptied at the end.
    """
    page = _environment.get_template(template)
    context = page.new_context({"fragment": fragment, **values})
    try:
        return "".join(page.root_render_func(context))
    except Exception:  # noqa: BLE001  # as in Template.render: raised again with the template's line
        return _environment.handle_exception()
    finally:
        context.vars.clear()
        context.parent.clear()


def render_problem(problem: Problem, missing_job: str | None = None) -> str:
    """Render a problem document as a page. With `missing_job` the page offers a search for that job."""
    return render_page("problem.html", problem=problem, missing_job=missing_job)


def address_of(name: str) -> str:
    return f"/static/{name}?v={ASSETS[name].tag}"


_environment = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals.update(
    asset=address_of,
    bin_fills=present.BIN_FILLS,
    lag_shapes=present.LAG_SHAPES,
    pin_names=present.PIN_NAMES,
    pin_shapes=present.PIN_SHAPES,
    release=RELEASE,
)
_environment.filters.update(
    ago=present.show_ago,
    amount=present.show_bytes,
    bin=show_bin,
    clock=present.show_clock,
    command=shlex.join,
    counted=counted,
    duration=present.show_duration,
    hours=present.show_hours,
    number=present.show_number,
    percent=present.show_percent,
    pretty=present.show_json,
    repeated=show_repeated,
    settings=present.list_settings,
    shape=timeline.shape_of,
    source=show_source,
    text=present.show_text,
    utc=present.show_time,
)
