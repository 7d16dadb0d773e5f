"""The pages show hostile text in specs, in reports of agents and in URLs as text."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.job_store import SqlJobStore
from tests.api.conftest import World
from tests.builders import make_batch, make_journal_event
from tests.spec_places import Place, accepted, find_places
from trainer.contract.failure import Failure, FailureKind

TEXTS = (
    "<canary>",
    '"><canary onload=1>',
    "'><canary onload=1>",
    "</script><canary>",
    "</textarea></title><canary>",
    "x\" autofocus onfocus='1",
    "javascript:alert(1)",
    "canary{{ 7 * 7 }}{% raw %}",
    "&lt;canary&gt;<!--<canary>-->",
    "\u202e<canary>",
)
ALL = " ".join((TEXTS[6], *TEXTS))  # begins like a URL
PLACES = find_places()


class Reader(HTMLParser):
    """Collects markup that a browser would execute or render."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "canary" or (tag == "script" and dict(attrs).get("src") is None):
            self.found.append(tag)
        for name, value in attrs:
            leads = name in ("href", "src", "action", "formaction", "data") or name.startswith("hx-")
            if (
                name in ("style",)
                or name.startswith("on")
                or (leads and (value or "").strip().lower().startswith("javascript:"))
            ):
                self.found.append(f"{tag} {name}={value}")

    def handle_comment(self, data: str) -> None:
        if "canary" in data:
            self.found.append(f"comment {data}")


def found_in(page: str) -> list[str]:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return [*reader.found, *(["a template was rendered"] if "canary49" in page else [])]


def store(world: World, spec: JobSpec, name: str) -> str:
    """Store a job without the checks of a submission, which differ by cluster."""
    now = world.clock.now()
    fields = {"state": JobState.QUEUED, "reason": "waits", "created_at": now, "updated_at": now, "owner": "alice"}
    job = Job(id=name, spec=spec, desired=Desired(), **fields)  # type: ignore[arg-type]
    event = Event(at=now, kind="job.submitted", sentence="submitted")  # type: ignore[arg-type]
    SqlJobStore(world.database).add(job, idempotency_key=None, digest=name, event=event)
    return name


def pages_of(world: World, job_id: str | None = None) -> Iterator[str]:
    """The paths of all pages, from the application's routes; without `job_id` only those without one."""
    for context in iter_route_contexts(world.app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and "GET" in route.methods and not context.path.startswith("/api/"):
            path = context.path if job_id is None else context.path.replace("{job_id}", job_id)
            if path.startswith("/compare"):  # which names its jobs in the query
                path = f"{path}?job={job_id or '{job_id}'}"
            if "{" not in path and path not in ("/healthz", "/readyz", "/metrics"):
                yield path


def shown(world: World, path: str) -> str:
    answer = world.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code in (200, 303), (path, answer.text)
    return answer.text


def test_a_page_shows_each_field_of_a_spec_as_text(world: World) -> None:
    attacked: dict[str, Place] = {}
    for number, place in enumerate(PLACES):
        for spec in accepted(place, ALL)[:1]:
            attacked[store(world, spec, f"demo-{number}")] = place
    assert len(attacked) > 20
    for job_id, place in attacked.items():
        for path in pages_of(world, job_id):
            if job_id in path:
                assert found_in(shown(world, path)) == [], (path, str(place))
    for path in pages_of(world):
        assert found_in(shown(world, path)) == [], path


@pytest.mark.parametrize("text", TEXTS)
def test_a_page_shows_reports_of_agents_as_text(world: World, text: str) -> None:
    job_id = world.submit()
    failure = Failure(kind=FailureKind.APPLICATION, message=text, traceback=f"Traceback\n  {text}", rank=0, step=3)
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason=text)
    world.start(job_id, reason=text, failure=failure, excluded_nodes=(text,), handle=text)
    told = make_journal_event(text, sentence=text, evidence={text: text, "name": text, "node": text, "reason": text})
    world.journals.ingest([make_batch(job_id, events=[(50, told)])], arrived_at=world.clock.now())
    world.blame(text, job_id, sentence=text)
    world.write_log(job_id, f"{text}\n")
    paths = list(pages_of(world, job_id))
    assert {"/", "/clusters", f"/jobs/{job_id}", f"/jobs/{job_id}/launch"} <= set(paths)
    for path in paths:
        assert found_in(shown(world, path)) == [], path


@pytest.mark.parametrize("text", [ALL, TEXTS[1]])
def test_a_page_shows_parameters_of_its_url_as_text(world: World, text: str) -> None:
    job_id = world.submit()
    names = ("q", "label", "state", "project", "cluster", "from", "next", "rank", "attempt", "cursor", "grep", "spec")
    for path in pages_of(world, job_id):
        for name in names:
            answer = world.client.get(path, params={name: text}, headers={"Accept": "text/html"})
            assert answer.status_code < 500
            assert found_in(answer.text) == [], (path, name)


def test_the_detector_finds_injected_markup() -> None:
    for text in TEXTS[:5]:
        assert found_in(f"<p title=\"{text}\" alt='{text}'>{text}</p>")
    assert found_in(f'<a href="{TEXTS[6]}">x</a>')
    assert found_in("canary49")
