"""Templates and static files, read once at start. Everything that is put into a page is escaped."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.dashboard import curve, present
from orchestrator.wire import Problem

_HERE = Path(__file__).parent
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    tag: str


def _read_asset(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, _MEDIA_TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])


ASSETS = {path.name: _read_asset(path) for path in sorted((_HERE / "static").iterdir()) if path.suffix in _MEDIA_TYPES}


def render_page(template: str, *, fragment: bool = False, **values: object) -> str:
    return _environment.get_template(template).render(fragment=fragment, **values)


def render_problem(problem: Problem) -> str:
    """A problem document as a page."""
    return render_page("problem.html", problem=problem)


def _address_of(name: str) -> str:
    return f"/static/{name}?v={ASSETS[name].tag}"


_environment = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals.update(
    asset=_address_of,
    picture={name: getattr(curve, name) for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM")},
)
_environment.filters.update(
    ago=present.show_ago,
    amount=present.show_bytes,
    clock=present.show_clock,
    duration=present.show_duration,
    number=present.show_number,
    text=present.show_text,
    utc=present.show_time,
)
