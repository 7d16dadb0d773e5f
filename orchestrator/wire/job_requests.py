"""What a job's owner asks for."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr

from orchestrator.wire.answers import Request
from trainer.contract.chaos import Fault


class RetryRequest(Request):
    """`restore_from` names a snapshot of the job that bounds the restore; `patch` merges into the spec (RFC 7396)."""

    restore_from: str | None = Field(default=None, max_length=255)
    patch: dict[str, Any] | None = None


class ScaleRequest(Request):
    """`nodes` as in a spec's topology: a number, or a range as "2:8"."""

    nodes: StrictStr | StrictInt


class StacksRequest(Request):
    """Whose stacks; without a rank those of every rank."""

    rank: int | None = Field(default=None, ge=0, le=2**31 - 1, strict=True)


class ChaosRequest(Request):
    """A fault for a running job. `node` is a node of the job by its number, from 0, or by its name; with neither `rank`
    nor `node` the last rank is struck, and all agents are preempted."""

    fault: Fault
    rank: int | None = Field(default=None, ge=0, le=2**31 - 1, strict=True)
    node: Annotated[StrictStr, Field(min_length=1, max_length=255)] | Annotated[StrictInt, Field(ge=0)] | None = None
