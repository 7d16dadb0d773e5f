"""Render the views that handlers return as JSON, with an ETag."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel


class RenderingRoute(APIRoute):
    """Render a handler's view in the handler's own thread, and answer 304 to a caller that has it already.

    FastAPI would switch threads to validate the view again, which is a wire model already.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], *, status_code: int | None = None, **rest: Any) -> None:
        super().__init__(path, _rendering(endpoint, status_code or 200), status_code=status_code, **rest)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            return unless_known(request, await handle(request))

        return answer


def unless_known(request: Request, answer: Response) -> Response:
    """Add an ETag to an answer, and answer 304 if the caller has this version (RFC 9110, 13.1.2)."""
    if request.method != "GET" or answer.status_code != 200 or type(answer) is not Response:
        return answer
    tag = f'W/"{hashlib.blake2b(answer.body, digest_size=12).hexdigest()}"'
    # Another caller may see other data, and a cache must revalidate each time.
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}
    known = {each.strip() for each in request.headers.get("if-none-match", "").split(",")}
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    answer.headers.update(headers)
    return answer


def render_answer(view: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(view.model_dump_json(by_alias=True), status, headers, media_type="application/json")


def _rendering(handle: Callable[..., Any], status: int) -> Callable[..., Any]:
    if iscoroutinefunction(handle):

        @wraps(handle)
        async def rendered_here(*args: Any, **kwargs: Any) -> Any:
            found = await handle(*args, **kwargs)
            return render_answer(found, status) if isinstance(found, BaseModel) else found

        return rendered_here

    @wraps(handle)
    def rendered(*args: Any, **kwargs: Any) -> Any:
        found = handle(*args, **kwargs)
        return render_answer(found, status) if isinstance(found, BaseModel) else found

    return rendered
