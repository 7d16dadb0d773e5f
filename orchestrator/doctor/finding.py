"""The result of a check: a verdict, and a sentence with the next step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    cluster: str  # or "service"
    check: str
    verdict: Verdict
    sentence: str


CheckResult = tuple[str, Verdict, str]  # check, verdict, sentence
