"""Reports of agents, and their answers. Reports ignore unknown fields, because agents may have other versions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.wire.answers import Answer
from orchestrator.wire.problems import Problem
from trainer.contract.progress import MAX_REPORTED_LINES


class ReportBody(BaseModel):
    """New journal lines of one replica. Offsets are bytes in the journal files. Sending lines again has no effect."""

    model_config = ConfigDict(extra="ignore")

    version: int = 1
    job_id: str = Field(max_length=128)
    attempt: int = Field(ge=1, le=2**31 - 1)
    replica: int = Field(ge=0, le=2**31 - 1)
    incarnation: int = Field(ge=1, le=2**31 - 1)
    progress_from: int = Field(default=0, ge=0, le=2**62)
    progress: list[str] = Field(default_factory=list, max_length=MAX_REPORTED_LINES)
    progress_to: int = Field(default=0, ge=0, le=2**62)
    events_from: int = Field(default=0, ge=0, le=2**62)
    events: list[str] = Field(default_factory=list, max_length=MAX_REPORTED_LINES)
    events_to: int = Field(default=0, ge=0, le=2**62)
    exit_record: dict[str, Any] | None = None


class DesiredView(Answer):
    state: Literal["run", "stop"] = "run"
    snapshot: int = 0
    number: int = 0
    stacks: int = 0
    stacks_rank: int | None = None
    chaos: dict[str, Any] | None = None


class ReportAnswer(Answer):
    desired: DesiredView


class ReportRefusal(Problem):
    """The answer to a report of an attempt that has ended."""

    desired: DesiredView
