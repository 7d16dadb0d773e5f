"""Attacks on the API: nothing is executed, nothing leaks, nothing hangs."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.api import body_stream
from orchestrator.backends.local.render import render_processes
from orchestrator.domain.access import identity
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.settings import load_settings
from tests.api.conftest import World
from tests.unit.situations import a_job, an_attempt
from tests.unit.test_launch import SITE
from trainer.contract import env

CLIMBS = [
    "..",
    "../..",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "....//....//etc/passwd",
    "/etc/passwd",
    "%00",
    "job%00.txt",
    "..\\..\\etc",
    "%252e%252e%252fetc",
]
PAYLOADS = ["$(touch {canary})", "`touch {canary}`", "; touch {canary} #", "\ntouch {canary}\n", "' ; touch {canary} '"]
PAYLOADS += [
    '" ; touch {canary} "',
    "&& touch {canary}",
    "| touch {canary}",
    "$'\\n'touch {canary}",
    "${{IFS}}touch {canary}",
]


# Paths


@pytest.mark.parametrize("name", CLIMBS)
@pytest.mark.parametrize("path", ["/api/v1/jobs/{}/logs", "/api/v1/jobs/{}/snapshots", "/jobs/{}", "/static/{}"])
def test_no_path_leads_out_of_the_run_directory(world: World, path: str, name: str) -> None:
    (world.root.parent / "passwd").write_text("root:x:0:0")
    answer = world.client.get(path.format(name))
    assert answer.status_code in ((400,) if "%00" in name else (200, 404)), answer.status_code
    assert "root:x" not in answer.text
    if answer.status_code == 200:  # the client normalized the path and requested another page
        assert answer.headers["content-type"].startswith(("text/html", "application/json"))


@pytest.mark.parametrize("name", ["../../../etc", "step-00000001-a1-g1/../..", "/etc", "step-1-a1-g1\n", ""])
def test_restore_from_cannot_be_a_path(world: World, name: str) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.CANCELLED)
    answer = world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"restore_from": name})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/restore_from"


# Injection


def hostile_specs(canary: Path) -> Iterator[dict[str, Any]]:
    """Specs with each payload in each free text."""
    for payload in PAYLOADS:
        bad = payload.format(canary=canary)
        yield {"run": {"script": f"./{bad}", "args": [bad]}}
        yield {"run": {"command": ["true", bad]}}
        yield {"run": {"command": [bad]}}
        yield {"run": {"module": "os", "args": [bad], "env": {"A": bad}}}
        yield {"run": {"command": ["true"], "workdir": f"/{bad}"}}
        yield {"snapshot": {"dir": f"/{bad}"}}
        yield {"snapshot": {"from": f"/{bad}"}}
        yield {"launcher": "torchrun", "run": {"command": ["true", bad]}}
        yield {"labels": {"a": bad}}


def test_the_shell_text_of_a_hostile_job_executes_no_injected_command(tmp_path: Path) -> None:
    """Run the rendered text in a shell in which `env` is a stub."""
    canary = tmp_path / "canary"
    tried = 0
    for fields in hostile_specs(canary):
        spec = parse_spec({"name": "demo", "run": {"command": ["true"]}, **fields})
        text = render_processes(build_plan(a_job(spec=spec), an_attempt(AttemptState.INTENDED), SITE)).text
        done = subprocess.run(
            ["bash", "-c", f"cd() {{ :; }}; env() {{ :; }}\n{text}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert not canary.exists(), fields
        tried += 1
    assert tried == 9 * len(PAYLOADS)


@pytest.mark.parametrize(
    "fields",
    [
        {"project": "a b"},
        {"project": "*"},
        {"cluster": "lo\ncal"},
        {"run": {"module": "os;id"}},
        {"run": {"module": "-c"}},
        {"run": {"command": ["a\0b"]}},
        {"run": {"command": ["true"], "env": {"A=B": "x"}}},
        {"run": {"command": ["true"], "env": {"A\nB": "x"}}},
        {"run": {"command": ["true"], "secrets": ["A;B"]}},
        {"run": {"script": "--help"}},
        {"labels": {"a\nb": "x"}},
    ],
)
def test_a_name_with_unsafe_characters_is_refused(world: World, fields: dict[str, Any]) -> None:
    assert world.client.post("/api/v1/jobs", json=world.spec(**fields)).status_code == 422


def test_a_log_is_text_to_every_browser(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.STARTING)
    world.start(job_id)
    world.write_log(job_id, "<script>alert(1)</script>\x1b[31mred\n")
    answer = world.client.get(f"/api/v1/jobs/{job_id}/logs")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "\x1b" not in answer.text


# Addresses


@pytest.mark.parametrize("field", ["dir", "from"])
def test_a_jobs_storage_cannot_have_a_private_address(world: World, field: str) -> None:
    for path in ("/api/v1/jobs", "/api/v1/plan"):
        answer = world.client.post(path, json=world.spec(snapshot={field: "http://169.254.169.254/latest"}))
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [f"/snapshot/{field}"]


@pytest.mark.parametrize(
    "address",
    [
        "/api/v1/jobs?q=orc_0123456789abcdef_secret",
        "/api/v1/jobs?token=x",
        "/api/v1/jobs?limit=5&access_token=x",
        "/?api_key=x",
        "/api/v1/jobs/orc_0123456789abcdef_secret",
        "/sign-in?next=%2F&token=x",
        "/api/v1/jobs?q=orw_" + "0" * 64,
        "/nowhere?Token=x",
    ],
)
def test_a_token_in_a_url_is_refused_and_not_returned(closed: World, address: str) -> None:
    with capture_logs() as logged:
        answer = closed.client.get(address)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/token-in-url")
    assert "secret" not in answer.text + str(logged)


# Bodies


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/tokens", "/api/v1/secrets", "/api/v1/reports", "/sign-in"])
def test_a_body_that_does_not_arrive_in_time_is_refused(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_stream, "BODY_S", 0.01)
    kind = "application/x-www-form-urlencoded" if path == "/sign-in" else "application/json"
    sent = asyncio.run(ask_slowly(world, path, kind))
    assert sent[0]["status"] == 408


async def ask_slowly(world: World, path: str, kind: str, length: bytes = b"1000") -> list[dict[str, Any]]:
    """Send one byte and then nothing."""
    sent: list[dict[str, Any]] = []
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        for part in parts:
            return part
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: Any) -> None:
        sent.append(dict(message))

    headers = [(b"host", b"localhost"), (b"content-type", kind.encode()), (b"content-length", length)]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    place = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1)}
    await asyncio.wait_for(world.app({**scope, **place, "headers": headers, "server": ("x", 1)}, receive, send), 20)
    return sent


@pytest.mark.parametrize(("path", "most"), [("/api/v1/tokens", 8 * 1024), ("/api/v1/secrets", 128 * 1024)])
def test_a_body_that_is_too_long_is_refused(world: World, path: str, most: int) -> None:
    answer = world.client.post(path, content=b" " * (most + 1), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("length", [b"", b"-1", b"1e999", b"0x10", b"\xb2", b"ten"])
def test_a_content_length_that_is_not_a_number_is_refused(world: World, length: bytes) -> None:
    sent = asyncio.run(ask_slowly(world, "/api/v1/jobs", "application/json", length))
    assert sent[0]["status"] == 400


def test_a_content_length_of_many_digits_is_too_large(world: World) -> None:
    sent = asyncio.run(ask_slowly(world, "/api/v1/jobs", "application/json", b"9" * 5000))
    assert sent[0]["status"] == 413


def test_the_body_of_an_unauthenticated_request_is_not_read(closed: World) -> None:
    for path in ("/api/v1/jobs", "/api/v1/reports", "/api/v1/secrets"):
        sent = asyncio.run(ask_slowly(closed, path, "application/json"))
        assert sent[0]["status"] == 401


# Tokens


@pytest.mark.parametrize("known", [True, False])
def test_a_guess_takes_the_same_comparisons_whether_or_not_its_id_exists(
    closed: World, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_id = closed.give("*=viewer")["Authorization"].split("_")[1] if known else "0123456789abcdef"
    compared: list[str] = []
    honest = identity.hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        compared.append(str(other))
        return honest(one, other)

    monkeypatch.setattr(identity.hmac, "compare_digest", compare)
    headers = {"Authorization": f"Bearer orc_{token_id}_{'x' * 43}"}
    assert closed.client.get("/api/v1/jobs", headers=headers).status_code == 401
    assert len(compared) == 3, "twice with the first admin's, and with the one of this id or a stand-in"


def test_an_invalid_token_is_neither_logged_nor_returned(closed: World) -> None:
    guess = "orc_0123456789abcdef_" + "s" * 43
    with capture_logs() as logged:
        answer = closed.client.get("/api/v1/jobs", headers={"Authorization": f"Bearer {guess}"})
    assert guess not in answer.text + str(answer.headers) + str(logged)


@pytest.mark.parametrize("value", ["short-secret", "x" * 501])
def test_the_error_for_a_secret_setting_does_not_show_its_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TOKEN", value)
    with pytest.raises(ConfigurationError, match="ORCHESTRATOR_TOKEN") as caught:
        load_settings()
    assert value not in str(caught.value)


def test_settings_do_not_show_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "SECRET_KEYS"):
        monkeypatch.setenv(f"ORCHESTRATOR_{name}", "hunter2-hunter2-hunter2")
    assert "hunter2" not in repr(load_settings())


def test_a_workers_token_is_in_no_plan_that_is_shown(world: World) -> None:
    shown = world.post_spec("/api/v1/plan").json()["replicas"][0]["env"]
    assert "orw_" not in str(shown)
    assert env.REPORT_TOKEN not in shown or shown[env.REPORT_TOKEN] == "********"
