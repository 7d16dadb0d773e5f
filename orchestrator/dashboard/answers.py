"""Answer a request for a page with the whole page, with the part that polls fetch, or with 304."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request, Response
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from orchestrator.api.authorization import Caller
from orchestrator.api.body_memory import SHORT_BYTES
from orchestrator.api.body_stream import read_body, turn_to_parse
from orchestrator.api.errors import HttpProblem
from orchestrator.dashboard.page_cache import Recent
from orchestrator.dashboard.pages import RELEASE, render_page
from orchestrator.domain.access.identity import Principal
from orchestrator.domain.specs.spec import MAX_SPEC_BYTES

_RELATIVE_TIMES = re.compile(r"(<time [^>]*>)[^<]*")  # the page's script keeps them up to date
_MAX_FORM_BYTES = 3 * MAX_SPEC_BYTES  # a spec, with every byte escaped
_MAX_FIELDS = 1000
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_BYTES = {b"%02x" % value: bytes([value]) for value in range(256)}

FormBody = dict[str, list[str]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page, or with `fragment` only for the content of <main>. `known` is the tag of the shown page."""

    address: str
    fragment: bool
    known: str | None
    caller: Principal

    @property
    def polls(self) -> bool:
        return self.fragment and self.known is not None


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A built page with its tag."""

    content: str
    tag: str


async def _read_request(
    request: Request,
    caller: Caller,
    fragment: Annotated[str | None, Header(alias="X-Fragment")] = None,
    known: Annotated[str | None, Header(alias="If-None-Match")] = None,
) -> PageRequest:
    return PageRequest(f"{request.url.path}?{request.url.query}", fragment == "main", known, caller)


async def _read_form(request: Request) -> FormBody:
    raw = await read_body(request, _MAX_FORM_BYTES)
    if len(raw) <= SHORT_BYTES:
        return parse_form(raw)
    async with turn_to_parse(request):
        return await run_in_threadpool(parse_form, raw)


def parse_form(raw: bytes) -> FormBody:
    """Parse a form. urllib.parse.parse_qs would take a hundred times the memory of its text. Raises HttpProblem."""
    form: FormBody = {}
    if raw.count(b"&") >= _MAX_FIELDS:
        raise HttpProblem("malformed", f"the form has more than {_MAX_FIELDS} fields")
    for field in filter(None, raw.split(b"&")):
        name, _, value = field.partition(b"=")
        form.setdefault(_unescape(name), []).append(_unescape(value))
    if sum(len(value) for values in form.values() for value in values) > MAX_SPEC_BYTES:
        raise HttpProblem("too-large", f"the form has more than {MAX_SPEC_BYTES} characters")
    return form


def _unescape(raw: bytes) -> str:
    """Decode `+` and `%xx`. Raises HttpProblem."""
    try:
        return _ESCAPED.sub(lambda found: _BYTES[found[1].lower()], raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError as error:
        raise HttpProblem("malformed", "the form is not UTF-8") from error


CurrentRequest = Annotated[PageRequest, Depends(_read_request)]
Posted = Annotated[FormBody, Depends(_read_form)]


def page_of(kind: type[T]) -> Callable[[Request], Coroutine[None, None, T]]:
    """Return a dependency: the page of this kind that all requests to an application share.

    So the routes hold no page, and all applications of a process share them.
    """

    async def find(request: Request) -> T:
        page: T = request.app.state.pages[kind]
        return page

    return find


def first_of(form: FormBody, name: str) -> str:
    """Return the value of a field without surrounding spaces. Empty if the field is missing."""
    return form.get(name, [""])[0].strip()


def answer_page(
    request: PageRequest, template: str, *, status: int = 200, tag: str | None = None, **values: object
) -> Response:
    """`tag` identifies the content of the page. Default: a hash of the page."""
    content = render_page(template, fragment=request.fragment, caller=request.caller, **values)
    return _tagged(request, tag or tag_of(content), content, status)


def answer_unchanged(request: PageRequest, tag: str) -> Response | None:
    """Return 304 if the browser shows this content already, else None."""
    return Response(status_code=304, headers=_headers(tag)) if request.polls and request.known == _quoted(tag) else None


async def answer_cached(
    request: PageRequest, recent: Recent[CachedPage], template: str, values: Callable[[], dict[str, object]]
) -> Response:
    """Answer with a page that many browsers poll.

    Polls of one address by one caller share a page built within the last second. A shared page takes no thread.
    """

    def build() -> CachedPage:
        content = render_page(template, fragment=request.fragment, caller=request.caller, **values())
        return CachedPage(content, tag_of(content))

    key = f"{request.caller} {request.address}"
    kept = recent.recall(key) if request.polls else None
    if kept is None:
        kept = await run_in_threadpool(lambda: recent.get(key, build) if request.polls else build())
    return _tagged(request, kept.tag, kept.content, 200)


def tag_of(content: str) -> str:
    """Return a hash of the page without its relative times."""
    return hashlib.sha256(_RELATIVE_TIMES.sub(r"\1", content).encode()).hexdigest()[:16]


def _tagged(request: PageRequest, tag: str, content: str, status: int) -> Response:
    unchanged = answer_unchanged(request, tag) if status == 200 else None
    return unchanged or HTMLResponse(content, status, headers=_headers(tag))


def _headers(tag: str) -> dict[str, str]:
    return {"ETag": _quoted(tag), "Vary": "X-Fragment", "X-Release": RELEASE}


def _quoted(tag: str) -> str:
    return f'W/"{tag}-{RELEASE}"'  # weak: relative times may differ
