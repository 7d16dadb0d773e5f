"""Every block of a real service's streams matches the schema in its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.blocks import Block, faults_of, parse_blocks, schema_of_blocks
from tests.jobs import ended, python_job, running, until

EVENTS, OF_JOB = "/api/v1/events", "/api/v1/jobs/{job_id}/events/stream"


class Reader:
    """Reads one stream, checks each block against its schema, and keeps it."""

    def __init__(self, answer: httpx.Response, schema: dict[str, Any]) -> None:
        assert answer.headers["content-type"].startswith("text/event-stream")
        self.read: list[Block] = []
        self._blocks = parse_blocks(answer.iter_lines())
        self._schema = schema

    def until(self, holds: Callable[[Block], bool]) -> None:
        assert any(holds(block) for block in self), f"the stream ended after {self.read[-3:]}"

    def __iter__(self) -> Iterator[Block]:
        for block in self._blocks:
            assert faults_of(block, self._schema) == [], block
            self.read.append(block)
            yield block

    def changes(self) -> list[tuple[str, str]]:
        changes = [json.loads(block["data"]) for block in self.read if "data" in block]
        return [(change["job_id"], change["kind"]) for change in changes]


@contextmanager
def reading(
    service: ThrowawayService, path: str = EVENTS, job_id: str = "", last_event_id: str | None = None
) -> Iterator[Reader]:
    """Open a stream and read its first block."""
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    with httpx.Client(base_url=service.url, timeout=300) as http:
        schema = schema_of_blocks(http.get("/openapi.json").json(), path)
        with http.stream("GET", path.format(job_id=job_id), headers=headers) as answer:
            reader = Reader(answer, schema)
            reader.until(lambda block: "retry" in block)
            yield reader


def about(job_id: str, kind: str) -> Callable[[Block], bool]:
    return lambda block: "data" in block and json.loads(block["data"]) == {"job_id": job_id, "kind": kind}


@pytest.mark.long
def test_every_block_of_a_stream_matches_its_schema(service: ThrowawayService, client: Client) -> None:
    with reading(service) as everything:
        broken = until(client, client.submit(python_job("raise ValueError('no such luck')")).id, ended)
        long = until(client, client.submit(python_job("import time; time.sleep(600)")).id, running)
        with reading(service, OF_JOB, long.id) as of_job:
            client.cancel(long.id)
            assert until(client, long.id, ended).state == "CANCELLED"
            of_job.until(about(long.id, "cancel.requested"))
            of_job.until(about(long.id, "job.state"))
        client.delete(broken.id)
        last = client.submit(python_job("pass")).id
        everything.until(about(last, "job.submitted"))
    assert {job_id for job_id, _ in of_job.changes()} == {long.id}
    assert (broken.id, "attempt.state") in everything.changes()
    assert (long.id, "cancel.requested") in everything.changes()


@pytest.mark.long
def test_a_reader_that_reconnects_gets_what_it_missed(service: ThrowawayService, client: Client) -> None:
    first = client.submit(python_job("raise SystemExit(3)")).id
    with reading(service, last_event_id="0") as before:
        before.until(about(first, "job.submitted"))
    reached = before.read[-1]["id"]
    until(client, first, ended)
    gone = until(client, client.submit(python_job("pass")).id, ended).id
    client.delete(gone)
    last = client.submit(python_job("pass")).id
    with reading(service, last_event_id=reached) as after:
        after.until(about(last, "job.submitted"))
    assert after.read[0]["id"] == reached
    ids = [int(block["id"]) for block in [*before.read[1:], *after.read[1:]]]
    assert ids == sorted(set(ids))
    assert (first, "job.submitted") not in after.changes()
    assert gone not in {job_id for job_id, _ in after.changes()}


@pytest.mark.long
def test_a_stream_ends_with_its_service_after_a_whole_block(service: ThrowawayService, client: Client) -> None:
    with reading(service) as everything:
        job_id = client.submit(python_job("pass")).id
        until(client, job_id, ended)
        assert service.stop() == 0
        everything.until(about(job_id, "job.submitted"))
        list(everything)
