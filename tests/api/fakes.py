"""A cluster that starts nothing, a clock that does not advance, and a client that calls the application directly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
from fastapi import FastAPI

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Sighting
from orchestrator.wire.reports import DesiredView, ReportBody

BASE_URL = "http://localhost:8700"


@dataclass
class StandingClock:
    moment: datetime

    def now(self) -> datetime:
        return self.moment


@dataclass
class QuietBackend:
    slot_count: int = 4

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return NativeRequest(kind="processes", text=" ".join(plan.command))

    def submit(self, plan: LaunchPlan) -> str:
        raise AssertionError("the API starts nothing")

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        raise AssertionError("the API observes nothing")

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        raise AssertionError("the API cancels nothing")

    def slots(self) -> int:
        return self.slot_count


class RecordingIntake:
    def __init__(self) -> None:
        self.bodies: list[ReportBody] = []
        self.error: Exception | None = None

    def receive(self, body: ReportBody) -> Future[DesiredView]:
        answer: Future[DesiredView] = Future()
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            self.bodies.append(body)
            answer.set_result(DesiredView(state="stop", snapshot=2, number=7))
        return answer


class Client:
    """A client without a network. An error in the service becomes the 500 that a real client would receive."""

    def __init__(self, app: FastAPI) -> None:
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=BASE_URL)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)

    def forget_cookies(self) -> None:
        self._client.cookies.clear()

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()
