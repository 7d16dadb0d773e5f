"""Webhooks: which ones receive an event, signatures, retries, and their settings."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.access.webhook import Webhook, parse_key, retry_in_s, sign, webhooks_for
from orchestrator.domain.errors import ConfigurationError
from orchestrator.settings import load_settings

HOOKS = [
    Webhook(name="all", events=("*",), all_jobs=True),
    Webhook(name="ends", events=("job.state",)),
    Webhook(name="rungs", events=("recovery.*", "group.shrunk")),
]


@pytest.mark.parametrize(
    ("kind", "notify", "told"),
    [
        ("job.state", [], ["all"]),
        ("job.state", ["ends", "rungs"], ["all", "ends"]),
        ("recovery.attempt", ["ends", "rungs"], ["all", "rungs"]),
        ("recovery.", ["rungs"], ["all", "rungs"]),
        ("recovery", ["rungs"], ["all"]),
        ("group.shrunk", ["rungs"], ["all", "rungs"]),
        ("JOB.STATE", ["ends"], ["all"]),
        ("job.state", ["gone"], ["all"]),
    ],
)
def test_a_webhook_receives_its_kinds_of_events_from_jobs_that_name_it(
    kind: str, notify: list[str], told: list[str]
) -> None:
    assert webhooks_for(kind, notify, HOOKS) == told


def test_by_default_a_webhook_receives_the_states_of_jobs_that_name_it() -> None:
    assert webhooks_for("job.state", [], [Webhook(name="a")]) == []
    assert webhooks_for("job.state", ["a"], [Webhook(name="a")]) == ["a"]
    assert webhooks_for("attempt.state", ["a"], [Webhook(name="a")]) == []


def test_the_signature_matches_the_example_of_the_standard() -> None:
    """The example of the specification and its libraries, github.com/standard-webhooks/standard-webhooks."""
    key = parse_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_signature_covers_key_id_time_and_body() -> None:
    key = b"a key of 24 bytes or so."
    one = sign(key, "msg_1", 1614265330, b'{"a":1}')
    others = [
        sign(key, "msg_2", 1614265330, b'{"a":1}'),
        sign(key, "msg_1", 1614265331, b'{"a":1}'),
        sign(key, "msg_1", 1614265330, b'{"a":2}'),
        sign(b"x" * 24, "msg_1", 1614265330, b'{"a":1}'),
    ]
    assert len({one, *others}) == 5


@pytest.mark.parametrize("secret", ["", "short", "whsec_", "whsec_?", "whsec_" + base64.b64encode(b"short").decode()])
def test_a_weak_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match=r"bytes|base64") as caught:
        parse_key(secret)
    assert "short" not in str(caught.value)


def test_pauses_grow_from_five_seconds_to_six_hours_and_end_after_three_days() -> None:
    for draw in (0.0, 0.999):
        age, pauses = 0.0, []
        while (pause := retry_in_s(len(pauses) + 1, age, draw)) is not None:
            pauses.append(pause)
            age += pause
        assert 5 <= pauses[0] <= 6.25
        assert pauses == sorted(pauses)
        assert max(pauses) <= 6 * 3600
        assert max(pauses) >= 4 * 3600
        assert 2.7 * 86400 < age <= 3 * 86400
    assert retry_in_s(10_000, 0, 0.5) is not None


def test_retries_have_jitter() -> None:
    assert retry_in_s(3, 0, 0.1) != retry_in_s(3, 0, 0.9)
    assert retry_in_s(30, 0, 0.1) != retry_in_s(30, 0, 0.9)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", "")  # restores the variable after the test
    return tmp_path / "orchestrator.toml"


def test_webhooks_are_configured_with_secrets_from_a_file_or_a_variable(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("a secret of enough bytes\n")
    monkeypatch.setenv(
        "ORCHESTRATOR_HOOK_SECRET", "whsec_" + base64.b64encode(b"another secret of enough bytes").decode()
    )
    config.write_text(
        f"""
        [webhooks.pager]
        url = "https://pager.example:8443/in?token=t"
        secret_file = "{tmp_path / "secret"}"
        [webhooks.ops]
        url = "http://ops.example/hook"
        secret_env = "ORCHESTRATOR_HOOK_SECRET"
        events = ["recovery.*", "job.state"]
        all_jobs = true
        """
    )
    found = load_settings(config).webhooks
    assert (found["pager"].read_key(), found["pager"].host) == (b"a secret of enough bytes", "pager.example:8443")
    assert (found["pager"].events, found["pager"].all_jobs) == (("job.state",), False)
    assert found["ops"].read_key() == b"another secret of enough bytes"
    assert (found["ops"].events, found["ops"].all_jobs) == (("recovery.*", "job.state"), True)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('url = "ftp://x.example"\nsecret_env = "ORCHESTRATOR_E"', "http or https"),
        ('url = "https://"\nsecret_env = "ORCHESTRATOR_E"', "http or https"),
        ('url = "https://x.example/a b"\nsecret_env = "ORCHESTRATOR_E"', "http or https"),
        ('url = "https://me:hunter2@x.example"\nsecret_env = "ORCHESTRATOR_E"', "a user and password"),
        ('url = "https://x.example:port"\nsecret_env = "ORCHESTRATOR_E"', r"webhooks\.hook"),
        ('url = "https://x.example"\nsecret_env = "HOOK_SECRET"', "jobs inherit every other variable"),
        ('url = "https://x.example"', "exactly one of secret_file and secret_env"),
        ('url = "https://x.example"\nsecret_env = "ORCHESTRATOR_E"\nsecret_file = "f"', "exactly one"),
        ('url = "https://x.example"\nsecret = "hunter2"', r"webhooks\.hook\.secret"),
        ('url = "https://x.example"\nsecret_env = "ORCHESTRATOR_E"\nevents = []', r"webhooks\.hook\.events"),
    ],
)
def test_a_webhook_that_cannot_work_is_refused_and_no_secret_is_repeated(config: Path, lines: str, words: str) -> None:
    config.write_text(f"[webhooks.hook]\n{lines}\n")
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_settings(config)
    assert "hunter2" not in str(caught.value)


def test_an_invalid_name_is_refused(config: Path) -> None:
    config.write_text('[webhooks."a b"]\nurl = "https://x.example"\nsecret_env = "ORCHESTRATOR_E"\n')
    with pytest.raises(ConfigurationError, match="webhooks"):
        load_settings(config)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('secret_env = "ORCHESTRATOR_NOT_SET"', "variable ORCHESTRATOR_NOT_SET.*is not set"),
        ('secret_env = "ORCHESTRATOR_WEAK"', "variable ORCHESTRATOR_WEAK does not contain a valid webhook secret"),
        ('secret_file = "/nowhere/at/all"', "file /nowhere/at/all.*No such file"),
    ],
)
def test_a_missing_or_weak_secret_is_refused_with_its_source(
    config: Path, source: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WEAK", "hunter2")
    config.write_text(f'[webhooks.hook]\nurl = "https://x.example"\n{source}\n')
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_settings(config).webhooks["hook"].read_key()
    assert "hunter2" not in str(caught.value)


def test_the_receiver_in_the_documentation_verifies_our_signatures() -> None:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    verify, body = found["verify"], b'{"a":1}'
    for secret in ("a secret of enough bytes", "whsec_" + base64.b64encode(b"a secret of enough bytes").decode()):
        now = int(time.time())
        headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now)}
        headers["webhook-signature"] = sign(parse_key(secret), "msg_1", now, body)
        assert verify(secret, headers, body)
        assert not verify(secret, headers, body + b" ")
        assert not verify(secret, {**headers, "webhook-timestamp": str(now + 1)}, body)
        old = sign(parse_key(secret), "msg_1", now - 1000, body)
        assert not verify(secret, {**headers, "webhook-timestamp": str(now - 1000), "webhook-signature": old}, body)
