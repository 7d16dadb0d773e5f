"""Calls of `/api/v1` with typed answers, between the client's methods and its transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from orchestrator.client.errors import ServiceUnreachable
from orchestrator.client.transport import Call, Patience, Transport
from orchestrator.wire.answers import Page

Answered = TypeVar("Answered", bound=BaseModel)
Params = Mapping[str, str | int]
PAGE = 200  # the service's limit
_API = "/api/v1"


class Calls:
    """Every call raises NotFound, RequestRefused or ServiceUnreachable. Paths are below /api/v1."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def get(
        self, path: str, model: type[Answered], params: Params | None = None, *, patience_s: float | None = None
    ) -> Answered:
        return self._parsed(self.transport.send(_get(path, params), patience_s=patience_s).content, model)

    def text(self, path: str, params: Params | None = None) -> str:
        return self.transport.send(_get(path, params)).text

    def lines(self, path: str, params: Params, *, read_timeout_s: float, patience: Patience) -> Iterator[str]:
        """Yield the lines of a stream, in one try.

        The time limit of `patience` starts when an opened stream ends, however long it was silent.
        """
        with self.transport.stream(_API + path, params, read_timeout_s=read_timeout_s) as response:
            try:
                yield from response.iter_lines()
            finally:
                patience.restart()

    def post(
        self,
        path: str,
        model: type[Answered],
        *,
        repeatable: bool,
        params: Params | None = None,
        body: object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Send a POST. `repeatable` means that the call is idempotent."""
        call = Call(method="POST", path=_API + path, params=params, body=body, headers=headers, repeatable=repeatable)
        return self._parsed(self.transport.send(call).content, model)

    def delete(self, path: str, model: type[Answered], params: Params | None = None) -> Answered:
        call = Call(method="DELETE", path=_API + path, params=params, repeatable=True)
        return self._parsed(self.transport.send(call).content, model)

    def post_empty(self, path: str) -> None:
        """Send an idempotent POST without a body or an answer."""
        self.transport.send(Call(method="POST", path=_API + path, repeatable=True))

    def remove(self, path: str) -> None:
        """Send a DELETE without an answer, once, because a second one would get 404."""
        self.transport.send(Call(method="DELETE", path=_API + path, repeatable=False))

    def pages(self, path: str, model: type[Page[Answered]], params: Params) -> Iterator[Answered]:
        """Yield the items of all pages. Each page is requested when it is needed."""
        cursor: dict[str, str] = {}
        while True:
            page = self.get(path, model, {"limit": PAGE, **params, **cursor})
            yield from page.items
            if page.next_cursor is None:
                return
            cursor = {"cursor": page.next_cursor}

    def _parsed(self, content: bytes, model: type[Answered]) -> Answered:
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            where = "/".join(str(part) for part in error.errors()[0]["loc"])
            cause = f"does not answer like an orchestrator of this version (in {where or 'the answer'})"
            raise ServiceUnreachable(self.transport.locate().url, cause) from error


def path_of(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _get(path: str, params: Params | None) -> Call:
    return Call(method="GET", path=_API + path, params=params, repeatable=True)
