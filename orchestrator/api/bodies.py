"""The model and the size limit of each request body. The OpenAPI document is built from the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from orchestrator.api.body_memory import SHORT_BYTES
from orchestrator.api.body_stream import read_body, turn_to_parse
from orchestrator.api.documents import parse_document
from orchestrator.api.errors import HttpProblem
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.specs.spec import MAX_SPEC_BYTES, JobSpec
from orchestrator.domain.specs.sweep import ArraySpec
from orchestrator.domain.specs.validation import MAX_NODES, parse_model
from orchestrator.wire.credential_views import SecretRequest, TokenRequest
from orchestrator.wire.job_requests import ChaosRequest, RetryRequest, ScaleRequest, StacksRequest
from orchestrator.wire.reports import ReportBody
from orchestrator.wire.webhook_views import WebhookRequest

Model = TypeVar("Model", bound=BaseModel)

MAX_REPORT_BYTES = 8 * 1024 * 1024
_REPORT_VALUES = 40_000  # twice the most lines of a report
_SECRET_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Body(Generic[Model]):
    """`read` is the dependency of a route. `parse` replaces the model's own parser and raises InvalidSpec."""

    model: type[Model]
    most_bytes: int = SHORT_BYTES
    most_values: int = MAX_NODES
    required: bool = True  # if not, an empty body means the model's defaults
    parse: Callable[[object], Model] | None = None

    async def read(self, request: Request) -> Model:
        """Raises HttpProblem, InvalidSpec."""
        raw = await read_body(request, self.most_bytes)
        if not self.required and not raw.strip():
            return self.model()
        content_type = request.headers.get("content-type")
        _refuse_encoding(request.headers.get("content-encoding"))
        if len(raw) <= SHORT_BYTES:  # a switch to another thread would take longer than parsing
            return self._parsed(raw, content_type)
        async with turn_to_parse(request):
            return await run_in_threadpool(self._parsed, raw, content_type)

    def _parsed(self, raw: bytes, content_type: str | None) -> Model:
        document = parse_document(raw, content_type, self.most_values)
        return parse_model(self.model, document) if self.parse is None else self.parse(document)


def _refuse_encoding(encoding: str | None) -> None:
    if encoding is not None and encoding.strip().lower() != "identity":
        raise HttpProblem("unsupported-type", f"Content-Encoding is {encoding!r}; send the body as it is")


def parse_secret(document: object) -> SecretRequest:
    """Raises InvalidSpec."""
    return _parse_hiding("/value", "must be a text of at most 32768 characters", SecretRequest, document)


def _parse_webhook(document: object) -> WebhookRequest:
    return _parse_hiding("/secret", "must be a text of at most 1000 characters", WebhookRequest, document)


def _parse_hiding(pointer: str, rule: str, model: type[Model], document: object) -> Model:
    """Parse a document with a secret at `pointer`. `rule` replaces an error there, which may quote the secret."""
    try:
        return parse_model(model, document)
    except InvalidSpec as error:
        located = [FieldProblem(pointer, rule) if each.pointer == pointer else each for each in error.problems]
        raise InvalidSpec(located) from None


SpecBody = Annotated[JobSpec, Depends(Body(model=JobSpec, most_bytes=MAX_SPEC_BYTES).read)]
ArrayBody = Annotated[ArraySpec, Depends(Body(model=ArraySpec, most_bytes=MAX_SPEC_BYTES).read)]
RetryBody = Annotated[RetryRequest, Depends(Body(model=RetryRequest, most_bytes=MAX_SPEC_BYTES, required=False).read)]
ScaleBody = Annotated[ScaleRequest, Depends(Body(model=ScaleRequest).read)]
StacksBody = Annotated[StacksRequest, Depends(Body(model=StacksRequest, required=False).read)]
ChaosBody = Annotated[ChaosRequest, Depends(Body(model=ChaosRequest).read)]
TokenBody = Annotated[TokenRequest, Depends(Body(model=TokenRequest).read)]
SecretBody = Annotated[
    SecretRequest, Depends(Body(model=SecretRequest, most_bytes=_SECRET_BYTES, parse=parse_secret).read)
]
WebhookBody = Annotated[WebhookRequest, Depends(Body(model=WebhookRequest, parse=_parse_webhook).read)]
REPORT = Body(model=ReportBody, most_bytes=MAX_REPORT_BYTES, most_values=_REPORT_VALUES)
Report = Annotated[ReportBody, Depends(REPORT.read)]
