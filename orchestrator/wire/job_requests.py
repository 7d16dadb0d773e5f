"""The bodies of requests to a job."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr

from orchestrator.wire.answers import Request
from trainer.contract.chaos import Fault


class RetryRequest(Request):
    """`restore_from` is the newest snapshot that the attempt may restore. `patch` merges into the spec (RFC 7396)."""

    restore_from: str | None = Field(default=None, max_length=255)
    patch: dict[str, Any] | None = None


class ScaleRequest(Request):
    """`nodes` is a number, or a range such as "2:8", as in the topology of a spec."""

    nodes: StrictStr | StrictInt


class StacksRequest(Request):
    """The rank whose stack is requested. Default: every rank."""

    rank: int | None = Field(default=None, ge=0, le=2**31 - 1, strict=True)


class ChaosRequest(Request):
    """A fault for a running job. `node` is a node's number in the job, from 0, or its name. With neither `rank` nor
    `node` the fault hits the last rank; a preemption hits all agents."""

    fault: Fault
    rank: int | None = Field(default=None, ge=0, le=2**31 - 1, strict=True)
    node: Annotated[StrictStr, Field(min_length=1, max_length=255)] | Annotated[StrictInt, Field(ge=0)] | None = None
