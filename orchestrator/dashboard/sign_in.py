"""Sign in with a token and sign out: the page and the session cookie."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from orchestrator.api.authorization import SESSION_COOKIE
from orchestrator.api.body_stream import read_body
from orchestrator.api.deps import Wired
from orchestrator.api.errors import SIGN_IN, HttpProblem
from orchestrator.dashboard.pages import render_page

_FORM_BYTES = 8 * 1024
_FORM_TYPE = "application/x-www-form-urlencoded"


def show_form(wanted: Annotated[str, Query(alias="next", max_length=2000)] = "/") -> Response:
    return _form(wanted)


async def sign_in(request: Request, wired: Wired) -> Response:
    form = await _read_form(request)
    wanted = _local_path(form.get("next", "/"))
    opened = await run_in_threadpool(wired.identity.tokens.sign_in, form.get("token", "").strip())
    if opened is None:
        return _form(wanted, status=401, trouble="This token is not valid here, or it has expired.")
    cookie, session = opened
    answer = RedirectResponse(wanted, status_code=303)
    _set_cookie(answer, request, cookie, session.expires_at)
    return answer


async def sign_out(request: Request, wired: Wired) -> Response:
    cookie = request.cookies.get(SESSION_COOKIE)
    if cookie is not None:
        await run_in_threadpool(wired.identity.tokens.sign_out, cookie)
    answer = RedirectResponse(SIGN_IN, status_code=303)
    answer.delete_cookie(SESSION_COOKIE, path="/")
    return answer


def _form(wanted: str, *, status: int = 200, trouble: str = "") -> Response:
    return HTMLResponse(render_page("sign_in.html", wanted=_local_path(wanted), trouble=trouble), status)


async def _read_form(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise HttpProblem("unsupported-type", f"send {_FORM_TYPE}")
    raw = await read_body(request, _FORM_BYTES)
    try:
        fields = parse_qs(raw.decode("ascii"), keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise HttpProblem("malformed", "the body is not a form") from error
    return {name: values[-1] for name, values in fields.items()}


def _local_path(wanted: str) -> str:
    """Return the path, or "/" for anything that a browser could resolve to another site."""
    plain = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if plain and wanted.isprintable() and "\\" not in wanted else "/"


def _set_cookie(answer: Response, request: Request, cookie: str, expires_at: datetime) -> None:
    """Scripts cannot read the cookie, and forms of other sites do not send it. With TLS it is sent only over TLS."""
    forwarded = request.headers.get("x-forwarded-proto", "")
    answer.set_cookie(
        SESSION_COOKIE,
        cookie,
        expires=expires_at,
        path="/",
        secure=request.url.scheme == "https" or forwarded == "https",
        httponly=True,
        samesite="lax",
    )
