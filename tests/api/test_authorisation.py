"""Every route with every role in the own and in a foreign project, from the application's own table of routes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from orchestrator.api.authorization import SESSION_COOKIE
from orchestrator.domain.access.identity import LOCAL, Principal, Role
from orchestrator.domain.access.route_roles import RULES
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.worker_token import LATE, issue_worker_token
from orchestrator.domain.specs.sweep import parse_array
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.store.engine import Database
from orchestrator.wire.webhook_views import WebhookRequest
from tests.api.conftest import FIRST_TOKEN, WORKER_KEY, World, build_world
from tests.api.fakes import BASE_URL

ROLES = tuple(Role)
PUBLIC, WORKER = "public", "worker"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

# The role that each operation needs, written by hand. The rules are tested against this table.
NEEDS: dict[str, str] = {
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /sign-in": PUBLIC,
    "POST /sign-in": PUBLIC,
    "POST /sign-out": PUBLIC,
    "GET /static/{name}": PUBLIC,
    "GET /jobs": PUBLIC,
    "GET /goodput": PUBLIC,
    "GET /favicon.ico": PUBLIC,
    "GET /metrics": "viewer",
    "GET /": "viewer",
    "GET /clusters": "viewer",
    "GET /jobs/{job_id}": "viewer",
    "GET /jobs/{job_id}/charts": "viewer",
    "GET /jobs/{job_id}/launch": "viewer",
    "GET /submit": "submitter",
    "POST /submit": "submitter",
    "POST /nodes/{cluster}/{node}/clear": "operator",
    "POST /submit/draft": "submitter",
    "POST /cancel": "submitter",
    "GET /projects": "viewer",
    "GET /fleet": "viewer",
    "GET /arrays/{array_id}": "viewer",
    "POST /arrays/{array_id}/cancel": "submitter",
    "POST /arrays/{array_id}/retry": "submitter",
    "GET /compare": "viewer",
    "GET /compare/curves": "viewer",
    "GET /webhooks": "viewer",
    "GET /tokens": "admin",
    "POST /tokens": "admin",
    "POST /tokens/{token_id}/revoke": "admin",
    "GET /secrets": "submitter",
    "POST /secrets": "admin",
    "POST /secrets/{project}/{name}/remove": "admin",
    **{
        f"POST /jobs/{{job_id}}/{verb}": "operator"
        for verb in ("cancel", "suspend", "resume", "snapshot", "scale", "retry", "stacks", "chaos")
    },
    "POST /api/v1/arrays": "submitter",
    "GET /api/v1/arrays/{array_id}": "viewer",
    "POST /api/v1/arrays/{array_id}/cancel": "submitter",
    "POST /api/v1/arrays/{array_id}/retry": "submitter",
    "POST /api/v1/jobs": "submitter",
    "POST /api/v1/plan": "submitter",
    "GET /api/v1/jobs": "viewer",
    "GET /api/v1/jobs/{job_id}": "viewer",
    **{
        f"GET /api/v1/jobs/{{job_id}}/{what}": "viewer"
        for what in (
            *("attempts", "events", "snapshots", "workers", "metrics", "logs"),
            *("why", "goodput", "request", "nodes", "stacks", "resources"),
        )
    },
    **{
        f"POST /api/v1/jobs/{{job_id}}/{verb}": "operator"
        for verb in ("cancel", "suspend", "resume", "snapshot", "scale", "retry", "stacks", "chaos")
    },
    "DELETE /api/v1/jobs/{job_id}": "operator",
    "GET /api/v1/events": "viewer",
    "GET /api/v1/jobs/{job_id}/events/stream": "viewer",
    "GET /api/v1/clusters": "viewer",
    "GET /api/v1/nodes": "viewer",
    "POST /api/v1/nodes/{cluster}/{node}/clear": "operator",
    "GET /api/v1/projects": "viewer",
    "GET /api/v1/goodput": "viewer",
    "GET /api/v1/webhooks": "viewer",
    "POST /api/v1/webhooks": "admin",
    "DELETE /api/v1/webhooks/{webhook}": "admin",
    "GET /api/v1/tokens": "admin",
    "POST /api/v1/tokens": "admin",
    "DELETE /api/v1/tokens/{token_id}": "admin",
    "GET /api/v1/secrets": "submitter",
    "POST /api/v1/secrets": "admin",
    "DELETE /api/v1/secrets/{project}/{name}": "admin",
    "POST /api/v1/reports": WORKER,
}
# Operations that need the role in every project. Callers with a role in one project get 403.
EVERYWHERE = (
    *("POST /api/v1/webhooks", "DELETE /api/v1/webhooks/{webhook}"),
    *("POST /api/v1/nodes/{cluster}/{node}/clear", "POST /nodes/{cluster}/{node}/clear"),
)
# The status for a caller with the role only in another project. Default: 404, as for an object that does not exist.
FOREIGN = {
    **dict.fromkeys(("GET /", "GET /clusters", "GET /metrics", "GET /submit"), 200),
    **dict.fromkeys(("GET /fleet", "GET /projects", "GET /webhooks", "GET /tokens", "GET /secrets"), 200),
    **{
        f"GET /api/v1/{what}": 200
        for what in ("jobs", "events", "clusters", "nodes", "projects", "goodput", "webhooks", "tokens", "secrets")
    },
    **{
        f"POST /api/v1/{what}": 403 for what in ("jobs", "arrays", "plan", "tokens", "secrets")
    },  # the caller named the project
    **dict.fromkeys(EVERYWHERE, 403),
    **dict.fromkeys(("POST /submit", "POST /tokens", "POST /secrets"), 422),  # pages that show the error
    "POST /submit/draft": 200,
    "POST /cancel": 303,
}


# Names of objects that do not exist, with the status for a caller with the needed role.
UNKNOWN = {"{job_id}": "unknown-1", "{token_id}": "0" * 16, "{project}/{name}": "research/NONE", "{webhook}": "none"}
UNKNOWN |= {"{array_id}": "unknown-1", "{name}": "none.css", "{cluster}/{node}": "local/none"}


def expected_of_unknown(operation: str, role: Role, where: str) -> int:
    """A missing job is 404 for every caller. Another missing object is 404 for callers who may change it. Other
    callers get 403, or 404 if they may not see its project."""
    if "{job_id}" in operation:
        return 404
    sees = where in ("research", "*") or "{token_id}" in operation
    may = role.covers(Role(NEEDS[operation])) and (where == "*" or operation not in EVERYWHERE)
    if "{project}" in operation and not sees:
        return 404
    return 404 if may else 403


def routes_of(world: World) -> set[str]:
    """All operations of the application, including pages."""
    contexts = [each for each in iter_route_contexts(world.app.routes) if isinstance(each.original_route, APIRoute)]
    return {f"{method} {each.path}" for each in contexts for method in each.methods or ()}


@dataclass
class Place:
    """A closed service with one job in project `research`, and a token for each role in `research` and `vision`."""

    world: World
    headers: dict[tuple[Role, str], dict[str, str]]
    fresh: dict[str, str] = field(default_factory=dict)  # by owner, a job that was not changed yet

    def job(self, owner: str = "somebody else") -> str:
        commands = self.world.services.commands.acting(LOCAL if owner == "local" else _named(owner))
        spec = self.world.spec(project="research")
        return commands.submit(parse_spec(spec), None)[0].id

    def ask(self, operation: str, headers: dict[str, str], owner: str = "somebody else") -> httpx.Response:
        method, _, path = operation.partition(" ")
        if "{job_id}" in path:
            path = path.replace("{job_id}", self._fresh_job(owner))
        if "/compare" in path:
            path += f"?job={self._fresh_job(owner)}"
        if "{array_id}" in path:
            path = path.replace("{array_id}", self._array())
        if "{token_id}" in path:
            tokens = self.world.services.identity.tokens
            made, _ = tokens.create("x", {"research": Role.VIEWER}, by=LOCAL, expires_at=None)
            path = path.replace("{token_id}", made.id)
        if "{project}" in path:
            self.world.store_secret("KEY", "a secret value", "research")
            path = path.replace("{project}", "research").replace("{name}", "KEY")
        path = path.replace("{name}", "app.css")
        if "{node}" in path:
            self.world.blame("node9", self._fresh_job(owner))
            path = path.replace("{cluster}", "local").replace("{node}", "node9")
        if "webhook" in operation and operation in EVERYWHERE:
            path = path.replace("{webhook}", self._webhook(operation))
        answer = self.world.client.request(
            method, path, headers={**headers, **_headers(operation)}, **self._body(operation)
        )
        if method != "GET" and answer.status_code < 400:
            self.fresh.pop(owner, None)
        return answer

    def _array(self) -> str:
        spec = self.world.spec(project="research", sweep={"product": {"--lr": [1]}})
        jobs, _ = self.world.services.commands.acting(LOCAL).submit_array(parse_array(spec), "one")
        return jobs[0].spec.labels["array"]

    def _fresh_job(self, owner: str) -> str:
        """Reuse a job after a refused request, because each job makes the lists longer."""
        if owner not in self.fresh:
            self.fresh[owner] = self.job(owner)
        return self.fresh[owner]

    def ask_unknown(self, operation: str, headers: dict[str, str]) -> httpx.Response:
        """Request an object that does not exist."""
        method, _, path = operation.partition(" ")
        for name, value in UNKNOWN.items():
            path = path.replace(name, value)
        return self.world.client.request(
            method, path, headers={**headers, **_headers(operation)}, **self._body(operation)
        )

    def signed_in(self, role: Role, where: str) -> dict[str, str]:
        """The headers that a page sends in a browser that signed in with the token of that role."""
        token = self.headers[role, where]["Authorization"].removeprefix("Bearer ")
        opened = self.world.services.identity.tokens.sign_in(token)
        assert opened is not None
        return {"Cookie": f"{SESSION_COOKIE}={opened[0]}", "Origin": BASE_URL}

    def worker(self, *, ended: bool = False) -> dict[str, str]:
        """The token of an attempt of a new job."""
        job_id, now = self.job(), self.world.clock.now()
        state = {"state": AttemptState.FAILED, "ended_at": now - 2 * LATE} if ended else {}
        nonce = self.world.start(job_id, **state).nonce
        return {"Authorization": f"Bearer {issue_worker_token(WORKER_KEY, AttemptKey(job_id, 1), nonce)}"}

    def person(self, *, revoked: bool = False, expired: bool = False) -> dict[str, str]:
        """A token of an admin that has expired or was revoked."""
        tokens, until = self.world.services.identity.tokens, self.world.clock.now() - timedelta(seconds=1)
        token, text = tokens.create("gone", {"*": Role.ADMIN}, by=LOCAL, expires_at=until if expired else None)
        if revoked:
            tokens.revoke(token.id, by=LOCAL)
        return {"Authorization": f"Bearer {text}"}

    def _webhook(self, operation: str) -> str:
        name, hooks = "matrix", self.world.services.hooks
        known = name in hooks
        if operation.startswith("POST") and known:
            hooks.remove(name, by=LOCAL)
        elif operation.startswith("DELETE") and not known:
            hooks.create(WebhookRequest(name=name, url="https://example.com/in"), by=LOCAL)
        return name

    def _body(self, operation: str) -> dict[str, Any]:
        bodies: dict[str, Callable[[], dict[str, Any]]] = {
            "POST /api/v1/jobs": lambda: {"json": self.world.spec(project="research")},
            "POST /api/v1/arrays": lambda: {
                "json": self.world.spec(project="research", sweep={"product": {"--lr": [1]}})
            },
            "POST /api/v1/plan": lambda: {"json": self.world.spec(project="research")},
            "POST /api/v1/jobs/{job_id}/scale": lambda: {"json": {"nodes": 1}},
            "POST /api/v1/jobs/{job_id}/chaos": lambda: {"json": {"fault": "kill"}},
            "POST /jobs/{job_id}/scale": lambda: {"content": "nodes=1"},
            "POST /jobs/{job_id}/chaos": lambda: {"content": "fault=kill"},
            "POST /cancel": lambda: {"content": f"job={self.job()}"},
            "POST /tokens": lambda: {"data": {"name": "x", "grants": "research=viewer", "days": "30"}},
            "POST /secrets": lambda: {"data": {"project": "research", "name": "KEY", "value": "a secret value"}},
            "POST /submit": lambda: {"data": {"yaml": json.dumps(self.world.spec(project="research"))}},
            "POST /submit/draft": lambda: {"data": {"yaml": json.dumps(self.world.spec(project="research"))}},
            "POST /api/v1/tokens": lambda: {"json": {"name": "x", "grants": {"research": "viewer"}}},
            "POST /api/v1/secrets": lambda: {"json": {"project": "research", "name": "KEY", "value": "a secret value"}},
            "POST /api/v1/webhooks": lambda: {"json": {"name": "matrix", "url": "https://example.com/in"}},
            "POST /api/v1/reports": lambda: {"json": {"job_id": "x", "attempt": 1, "replica": 0, "incarnation": 1}},
        }
        return bodies[operation]() if operation in bodies else {}


def _headers(operation: str) -> dict[str, str]:
    return FORM if operation in ("POST /sign-in", "POST /cancel") else {}


def _named(name: str) -> Principal:
    return Principal(name=name, grants={"research": Role.SUBMITTER})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("matrix")
    shutil.copy(empty_database, folder / "orchestrator.db")
    database = Database(f"sqlite:///{folder / 'orchestrator.db'}")
    world = build_world(folder, database, first=FIRST_TOKEN, closing=lambda: True)
    world.backend.slot_count = 10_000
    headers = {
        (role, where): world.give(f"{where}={role}", name=f"{role} of {where}")
        for role in ROLES
        for where in ("research", "vision", "*")
    }
    yield Place(world, headers)
    world.client.close()
    database.dispose()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Place]:
    """The same service, open: without tokens, on loopback."""
    folder = tmp_path_factory.mktemp("open-matrix")
    shutil.copy(empty_database, folder / "orchestrator.db")
    database = Database(f"sqlite:///{folder / 'orchestrator.db'}")
    world = build_world(folder, database, closing=lambda: True)
    world.backend.slot_count = 10_000
    yield Place(world, {})
    world.client.close()
    database.dispose()


def test_every_route_has_a_rule_and_every_rule_a_route(place: Place) -> None:
    existing = routes_of(place.world)
    assert {f"{rule.method} {rule.path}" for rule in RULES} == existing
    assert set(NEEDS) == existing, "add the new route with its role"


def test_the_openapi_document_is_the_only_route_of_fastapi(place: Place) -> None:
    contexts = iter_route_contexts(place.world.app.routes)
    assert {each.path for each in contexts if not isinstance(each.original_route, APIRoute)} == {"/openapi.json"}


@pytest.mark.parametrize("operation", sorted(one for one, needed in NEEDS.items() if needed not in (PUBLIC, WORKER)))
def test_each_role_may_do_exactly_what_the_table_says(place: Place, operation: str) -> None:
    needed = NEEDS[operation]
    for role in ROLES:
        enough = role.covers(Role(needed))
        for where in ("research", "*"):
            status = place.ask(operation, place.headers[role, where]).status_code
            if enough and (where == "*" or operation not in EVERYWHERE):
                assert status in (200, 201, 202, 204, 303, 409), (operation, role, where, status)
            else:
                assert status == 403, (operation, role, where, status)
        foreign = place.ask(operation, place.headers[role, "vision"]).status_code
        expected = FOREIGN.get(operation, 404)
        if not enough and (operation in FOREIGN or "{token_id}" in operation or "{array_id}" in operation):
            expected = 403  # the caller has the role in no project
        assert foreign == expected, (operation, role, foreign)


@pytest.mark.parametrize("operation", sorted(operation for operation, needed in NEEDS.items() if needed != PUBLIC))
def test_requests_without_a_valid_token_are_refused(place: Place, operation: str) -> None:
    false = {"Authorization": "Bearer orc_0123456789abcdef_" + "x" * 43}
    for headers in ({}, false, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"}):
        answer = place.ask(operation, headers)
        assert answer.status_code == 401, (operation, headers)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["type"] == "/problems/unauthenticated"


GUARDED = sorted(one for one, needed in NEEDS.items() if needed not in (PUBLIC, WORKER))
NAMING = [one for one in GUARDED if any(name in one for name in UNKNOWN)]


@pytest.mark.parametrize("operation", NAMING)
def test_a_missing_object_gets_the_documented_status(place: Place, operation: str) -> None:
    for (role, where), headers in place.headers.items():
        status = place.ask_unknown(operation, headers).status_code
        if "/remove" in operation or "/revoke" in operation:
            status = 404 if status == 303 else status  # a page redirects to its list
        assert status == expected_of_unknown(operation, role, where), (operation, role, where)
    assert place.ask_unknown(operation, {}).status_code == 401


@pytest.mark.parametrize("operation", GUARDED)
def test_a_session_has_the_rights_of_its_token(place: Place, operation: str) -> None:
    for role, where in ((Role.ADMIN, "*"), (Role.VIEWER, "research"), (Role.ADMIN, "vision")):
        by_token = place.ask(operation, place.headers[role, where]).status_code
        cookie = place.signed_in(role, where)
        assert place.ask(operation, cookie).status_code == by_token, (operation, role, where)
        if not operation.startswith("GET"):
            without_origin = place.ask(operation, {"Cookie": cookie["Cookie"]})
            assert without_origin.status_code == 403, "a page of another site can send the cookie, but not our Origin"


@pytest.mark.parametrize("operation", sorted(one for one, needed in NEEDS.items() if needed != PUBLIC))
def test_tokens_that_are_expired_revoked_or_of_agents_grant_nothing(place: Place, operation: str) -> None:
    """Agents' tokens have no rights except to send their own reports."""
    callers = [place.person(revoked=True), place.person(expired=True), place.worker(), place.worker(ended=True)]
    for headers in callers:
        assert place.ask(operation, headers).status_code == 401, (operation, headers)


@pytest.mark.parametrize("operation", sorted(one for one, needed in NEEDS.items() if needed != PUBLIC))
def test_on_an_open_service_the_user_of_this_machine_may_do_everything(opened: Place, operation: str) -> None:
    status = opened.ask(operation, {}).status_code
    assert status in (200, 201, 202, 204, 303, 409), (operation, status)
    assert opened.ask(operation, {"X-Forwarded-For": "192.0.2.1"}).status_code == 401, (
        "requests through a proxy need a token"
    )
    assert opened.ask(operation, {"Authorization": "Bearer nonsense"}).status_code == 401


@pytest.mark.parametrize("operation", sorted(operation for operation, needed in NEEDS.items() if needed == PUBLIC))
def test_public_operations_need_no_token(place: Place, operation: str) -> None:
    answer = place.ask(operation, {})
    assert answer.status_code in (200, 303) or (operation, answer.status_code) == ("POST /sign-in", 401)


@pytest.mark.parametrize(
    "operation", sorted(one for one, needed in NEEDS.items() if needed == "operator" and one not in EVERYWHERE)
)
def test_a_submitter_may_change_own_jobs(place: Place, operation: str) -> None:
    headers = place.headers[Role.SUBMITTER, "research"]
    own = place.ask(operation, headers, owner="submitter of research").status_code
    if operation.endswith("/jobs/{job_id}/chaos"):
        assert own == 403, "faults need the role operator, even for own jobs"
        return
    assert own in (202, 303, 409)
    viewer = place.ask(operation, place.headers[Role.VIEWER, "research"], owner="viewer of research").status_code
    assert viewer == 403, "an owner who lost the role submitter loses access to own jobs"


def test_lists_contain_only_what_the_caller_may_see(place: Place) -> None:
    job_id = place.job()
    place.world.store_secret("KEY", "a secret value", "research")
    here, there = place.headers[Role.ADMIN, "research"], place.headers[Role.ADMIN, "vision"]
    for path in (
        *("/api/v1/jobs?limit=200", "/api/v1/jobs?project=research", "/api/v1/secrets"),
        *("/", "/clusters", "/fleet", "/projects", "/tokens", "/secrets"),
    ):
        answer = place.world.client.get(path, headers=there)
        assert answer.status_code == 200
        assert "research" not in answer.text, path
    assert job_id in place.world.client.get(f"/api/v1/jobs?q={job_id}", headers=here).text
    assert place.world.client.get("/api/v1/secrets", headers=here).json()["items"][0]["name"] == "KEY"
    names = {token["name"] for token in place.world.client.get("/api/v1/tokens", headers=there).json()["items"]}
    assert names == {f"{role} of vision" for role in ROLES}


def test_the_submit_page_refuses_specs_and_clones_of_other_projects(place: Place) -> None:
    job_id, headers, client = place.job(), place.headers[Role.ADMIN, "vision"], place.world.client
    text = {"yaml": json.dumps(place.world.spec(project="research"))}
    for path in ("/submit", "/submit/draft"):
        answer = client.post(path, headers=headers, data=text)
        assert "this needs the role submitter in project research" in answer.text
    assert client.get(f"/submit?from={job_id}", headers=headers).status_code == 404
    assert client.get(f"/submit?from={job_id}", headers=place.headers[Role.SUBMITTER, "research"]).status_code == 200


def test_of_selected_jobs_only_those_of_the_caller_are_cancelled(place: Place) -> None:
    mine, another = place.job("submitter of research"), place.job()
    headers = {**place.headers[Role.SUBMITTER, "research"], **FORM, "HX-Request": "true"}
    said = place.world.client.post("/cancel", headers=headers, content=f"job={mine}&job={another}").text
    assert f"you may not cancel job {another}" in said
    stranger = {**place.headers[Role.ADMIN, "vision"], **FORM, "HX-Request": "true"}
    said = place.world.client.post("/cancel", headers=stranger, content=f"job={another}").text
    assert f"there is no job {another}" in said
    assert [place.world.job(job_id).desired.cancelled for job_id in (mine, another)] == [True, False]


def test_cached_pages_are_not_shared_between_callers(place: Place) -> None:
    job_id, poll = place.job(), {"X-Fragment": "main", "If-None-Match": "*"}
    for where, sees in (("research", True), ("vision", False)):
        headers = {**place.headers[Role.VIEWER, where], **poll}
        assert (f"/jobs/{job_id}" in place.world.client.get(f"/?q={job_id}", headers=headers).text) == sees


def test_a_node_does_not_reveal_the_failed_job_to_other_projects(place: Place) -> None:
    job_id = place.job()
    place.world.blame("node7", job_id, sentence="rank 3 of research fell silent")
    stranger = place.world.client.get("/api/v1/nodes", headers=place.headers[Role.ADMIN, "vision"])
    assert "node7" in [node["name"] for node in stranger.json()["items"]]
    assert job_id not in stranger.text
    assert "silent" not in stranger.text
    assert job_id in place.world.client.get("/api/v1/nodes", headers=place.headers[Role.VIEWER, "*"]).text


def test_a_foreign_job_and_an_unknown_one_are_answered_alike(place: Place) -> None:
    job_id, headers = place.job(), place.headers[Role.ADMIN, "vision"]
    foreign = place.world.client.get(f"/api/v1/jobs/{job_id}", headers=headers)
    unknown = place.world.client.get("/api/v1/jobs/unknown-1", headers=headers)
    assert foreign.json()["detail"].replace(job_id, "unknown-1") == unknown.json()["detail"]
    answer = place.world.client.post(
        "/api/v1/jobs", headers=headers, json=place.world.spec(project="vision", after=[job_id])
    )
    assert answer.json()["errors"] == [{"pointer": "/after/0", "detail": f"there is no job {job_id}"}]


def test_events_have_the_actor(place: Place) -> None:
    headers = place.headers[Role.OPERATOR, "research"]
    spec = place.world.spec(project="research")
    submitted = place.world.client.post("/api/v1/jobs", headers=headers, json=spec).json()
    place.world.client.post(f"/api/v1/jobs/{submitted['id']}/cancel", headers=place.headers[Role.ADMIN, "*"])
    told = place.world.client.get(f"/api/v1/jobs/{submitted['id']}/events", headers=headers).json()
    events = told["items"]
    assert [(event["kind"], event["actor"]) for event in events] == [
        ("job.submitted", "operator of research"),
        ("cancel.requested", "admin of *"),
    ]
    assert submitted["owner"] == "operator of research"


def test_the_openapi_document_marks_operations_that_need_a_token(place: Place) -> None:
    paths = place.world.client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            is_public = NEEDS[f"{method.upper()} {path}"] == PUBLIC
            assert ("security" in operation) != is_public, (method, path)
