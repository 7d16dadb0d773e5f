"""Helpers to read pages, and jobs with reports."""

from __future__ import annotations

from html.parser import HTMLParser

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import at, make_batch, make_journal_event, make_progress
from trainer.contract.failure import Failure, FailureKind

HTML = {"Accept": "text/html"}


class Markup(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.tags if found == tag]


def page(world: World, path: str, **headers: str) -> str:
    answer = world.client.get(path, headers={**HTML, **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def make_trained_job(world: World, words: str = "as usual") -> str:
    """A job with seven steps in two generations and a failed attempt, and `words` in every text from outside."""
    job_id = world.submit(labels={"note": words[:200]})
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason=words)
    failure = Failure(kind=FailureKind.APPLICATION, message=words, rank=1, step=3, traceback=words)
    world.start(job_id, state=AttemptState.FAILED, reason=words, failure=failure, ended_at=at(9))
    lines = [
        (
            step * 10,
            make_progress(step, generation=1 + step // 4, total_steps=8, seconds=step, metrics={"loss": 5.0 - step}),
        )
        for step in range(1, 8)
    ]
    events = [(10, make_journal_event("odd." + words[:50], sentence=words, evidence={words[:40]: words}))]
    world.journals.ingest([make_batch(job_id, progress=lines, events=events)], arrived_at=world.clock.now())
    world.write_log(job_id, f"{words}\n")
    return job_id


def make_running_job(world: World, workers: int = 2, **headers: str) -> str:
    """A running job with one replica that has reported its node and its workers."""
    spec = world.spec(topology={"workers_per_node": workers})
    job_id = str(world.client.post("/api/v1/jobs", json=spec, headers=headers).json()["id"])
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    started = make_journal_event("agent.started", generation=0, evidence={"replica": 0, "host": "n0", "pid": 7})
    formed = make_journal_event("generation.started", evidence={"world_size": workers})
    lines = [(100 + rank, make_progress(3, rank=rank, local_rank=rank, world_size=workers)) for rank in range(workers)]
    batch = make_batch(job_id, progress=lines, events=[(10, started), (20, formed)])
    world.journals.ingest([batch], arrived_at=world.clock.now())
    return job_id
