"""Answers: from a view to the bytes of its JSON, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel


class RenderingRoute(APIRoute):
    """Renders the view that a handler returns in the handler's own thread.

    FastAPI would validate the view once more, which is a wire model already, and change threads for that.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], *, status_code: int | None = None, **rest: Any) -> None:
        super().__init__(path, _rendering(endpoint, status_code or 200), status_code=status_code, **rest)


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
