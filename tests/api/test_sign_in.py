"""Signing in with a token in a browser: the cookie, the redirect, and protection from other sites."""

from __future__ import annotations

from urllib.parse import urlencode

import httpx
import pytest

from tests.api.conftest import FIRST_TOKEN, World

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost:8700"}
HTML = {"Accept": "text/html"}


def sign_in(world: World, token: str = FIRST_TOKEN, wanted: str = "/", **headers: str) -> httpx.Response:
    content = urlencode({"token": token, "next": wanted})
    world_answer = world.client.post("/sign-in", content=content, headers={**FORM, **headers})
    world.client.forget_cookies()
    return world_answer


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_an_unauthenticated_page_redirects_to_sign_in_and_back(closed: World) -> None:
    answer = closed.client.get("/?state=FAILED", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2F%3Fstate%3DFAILED")
    form = closed.client.get(answer.headers["location"], headers=HTML)
    assert form.status_code == 200
    assert 'value="/?state=FAILED"' in form.text
    assert sign_in(closed, wanted="/?state=FAILED").headers["location"] == "/?state=FAILED"


def test_fragments_and_the_api_get_401_without_a_redirect(closed: World) -> None:
    assert closed.client.get("/api/v1/jobs", headers=HTML).status_code == 401
    assert closed.client.get("/").status_code == 401


def test_the_cookie_is_http_only_and_same_site(closed: World) -> None:
    cookie = sign_in(closed).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert FIRST_TOKEN not in cookie
    assert "Secure" in sign_in(closed, **{"X-Forwarded-Proto": "https"}).headers["set-cookie"]


def test_a_session_shows_pages_until_it_is_signed_out(closed: World) -> None:
    cookie = cookie_of(sign_in(closed))
    page = closed.client.get("/", headers={**HTML, **cookie})
    assert page.status_code == 200
    assert "first admin" in page.text
    assert "Sign out" in page.text
    out = closed.client.post("/sign-out", headers={**cookie, "Origin": "http://localhost:8700"})
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert closed.client.get("/", headers={**HTML, **cookie}).status_code == 303


def test_an_invalid_token_does_not_sign_in(closed: World) -> None:
    for token in ("", "wrong", "orc_0123456789abcdef_" + "x" * 43):
        answer = sign_in(closed, token)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "This token is not valid here" in answer.text


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/a\r\nX: y", "", "/\t/e"],
)
def test_signing_in_leads_to_no_other_site(closed: World, wanted: str) -> None:
    assert sign_in(closed, wanted=wanted).headers["location"] == "/"
    assert 'name="next" value="/"' in closed.client.get("/sign-in", params={"next": wanted}).text


def test_the_form_escapes_what_it_repeats(closed: World) -> None:
    shown = closed.client.get("/sign-in", params={"next": '/"><script>alert(1)</script>'}).text
    assert "<script>alert" not in shown


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_form_of_another_site_changes_nothing_with_the_cookie(closed: World, headers: dict[str, str]) -> None:
    cookie = cookie_of(sign_in(closed))
    answer = closed.client.post(
        "/api/v1/tokens", json={"name": "x", "grants": {"*": "admin"}}, headers={**cookie, **headers}
    )
    assert answer.status_code == 403
    assert answer.json()["type"] == "/problems/origin-not-allowed"
    ours = {**cookie, "Origin": "http://localhost:8700"}
    assert (
        closed.client.post("/api/v1/tokens", json={"name": "x", "grants": {"*": "admin"}}, headers=ours).status_code
        == 201
    )


def test_a_form_of_another_site_cannot_sign_in(closed: World) -> None:
    answer = sign_in(closed, Origin="http://evil.example")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"token": "x"}', "application/json", 415),
        (b"token=" + b"x" * 9000, "application/x-www-form-urlencoded", 413),
        ("token=ä".encode(), "application/x-www-form-urlencoded", 400),
        (b"&".join([b"a=1"] * 50), "application/x-www-form-urlencoded", 400),
        (b"", "application/x-www-form-urlencoded", 401),
    ],
)
def test_an_invalid_sign_in_form_is_refused(closed: World, content: bytes, kind: str, status: int) -> None:
    answer = closed.client.post("/sign-in", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status


def test_nothing_asks_to_sign_in_on_an_open_service(world: World) -> None:
    page = world.client.get("/", headers=HTML)
    assert page.status_code == 200
    assert "Sign out" not in page.text
    stale = world.client.get("/", headers={**HTML, "Cookie": "orchestrator_session=stale"})
    assert stale.status_code == 200
