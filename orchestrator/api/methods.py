"""The allowed methods of a path over all of its routes. A router reports only those of the first route."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path


def build_allow(app: FastAPI) -> Callable[[str], str]:
    """Return a function from a request's path to the value of its header Allow (RFC 9110, 10.2.1)."""
    contexts = iter_route_contexts(app.routes)
    routes = [(compile_path(str(each.path))[0], frozenset(each.methods or ())) for each in contexts]

    def allow(path: str) -> str:
        return ", ".join(sorted({method for shape, methods in routes if shape.match(path) for method in methods}))

    return allow
