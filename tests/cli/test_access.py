"""Profiles: login, logout, and which service a command uses."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from orchestrator.cli.common import complete_job
from orchestrator.client.profiles import Profile, Profiles, choose_profile, read_profiles, write_profiles
from orchestrator.domain.errors import ConfigurationError
from orchestrator.settings import Settings, load_settings
from orchestrator.wire.problems import Problem
from tests.cli.conftest import Run
from tests.cli.fake_service import Answer, FakeService, make_job

FILE = Path(".config/orchestrator/profiles.toml")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "XDG_CONFIG_HOME",
        "ORCHESTRATOR_ROOT",
        "ORCHESTRATOR_URL",
        "ORCHESTRATOR_PROFILE",
        "ORCHESTRATOR_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def alone(environment: dict[str, str]) -> dict[str, str]:
    """An environment that names no service; an empty value counts as none."""
    for name in ("ORCHESTRATOR_ROOT", "ORCHESTRATOR_PORT", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    return environment


def test_login_stores_a_private_profile_that_later_commands_use(
    alone: dict[str, str], run: Run, service: FakeService, tmp_path: Path
) -> None:
    service.add(make_job())
    url = f"http://127.0.0.1:{service.port}"
    done = run("login", url, "--name", "lab", stdin="secret-number-one\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "secret-number-one" not in done.stdout
    file = tmp_path / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert service.tokens == ["Bearer secret-number-one"], "login checks the token"
    assert "gpt-0001" in run("ls").stdout
    assert service.tokens[-1] == "Bearer secret-number-one"
    assert run("ls", ORCHESTRATOR_TOKEN="secret-number-two").returncode == 0
    assert service.tokens[-1] == "Bearer secret-number-two", "the environment variable takes precedence"


def test_a_refused_token_is_not_stored(alone: dict[str, str], run: Run, service: FakeService, tmp_path: Path) -> None:
    service.refusals = [Answer(401, Problem(type="x", title="no", status=401, detail="the token is not known"))]
    done = run("login", f"http://127.0.0.1:{service.port}", stdin="wrong\n")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "orchestrator: the token is not known"
    assert "orchestrator login URL" in done.stderr.splitlines()[1]
    assert not (tmp_path / FILE).exists()


def test_login_without_a_token_needs_none(alone: dict[str, str], run: Run, service: FakeService) -> None:
    assert run("login", f"http://127.0.0.1:{service.port}", "--no-token").returncode == 0
    (profile,) = json.loads(run("profiles", "--json").stdout)["items"]
    assert (profile["name"], profile["token"], profile["current"]) == ("127.0.0.1", False, True)


def test_login_to_an_unreachable_service_exits_with_3_and_to_an_invalid_url_with_2(
    alone: dict[str, str], run: Run
) -> None:
    assert run("login", "http://127.0.0.1:1", "--no-token").returncode == 3
    done = run("login", "gpu-host", "--no-token")
    assert done.returncode == 2
    assert "must be like http://host:8700" in done.stderr


def test_profiles_are_listed_chosen_and_deleted(
    alone: dict[str, str], run: Run, service: FakeService, tmp_path: Path
) -> None:
    for name in ("lab", "cloud"):
        run("login", f"http://127.0.0.1:{service.port}", "--name", name, stdin="t\n")
    listed = [line.split() for line in run("profiles").stdout.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in listed] == [("lab", "yes"), ("cloud", "current")]
    assert run("profiles", "--use", "lab").returncode == 0
    assert run("--profile", "cloud", "ls").returncode == 0
    assert run("logout").stdout.startswith("profile lab is deleted")
    assert "lab" not in (tmp_path / FILE).read_text()
    none = run("logout")
    assert none.returncode == 2
    assert "there is no current profile" in none.stderr
    unknown = run("ls", ORCHESTRATOR_PROFILE="lab")
    assert unknown.returncode == 2
    assert "there is no profile 'lab' (known: cloud); make one: orchestrator login URL --name lab" in unknown.stderr


def test_a_named_profile_precedes_settings_and_settings_precede_the_current_profile(home: Path) -> None:
    write_profiles(Profiles().with_profile(Profile(name="lab", url="http://lab:1", token="t")))
    assert choose_profile(Settings()) == Profile(name="lab", url="http://lab:1", token="t")
    for settings in (Settings(url="http://here:1"), Settings(root=home), Settings(port=81)):
        assert choose_profile(settings) is None
    named = choose_profile(Settings(url="http://here:1", profile="lab"))
    assert named is not None
    assert named.url == "http://lab:1"
    write_profiles(read_profiles().using(None))
    assert choose_profile(Settings()) is None


def test_profiles_keep_special_characters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    odd = Profile(name="a.b-c", url='http://x/"\\', token="t\U0001f600\u00e9'")
    file = write_profiles(Profiles().with_profile(odd))
    assert file == home / "xdg/orchestrator/profiles.toml"
    assert read_profiles() == Profiles(current="a.b-c", by_name={"a.b-c": odd})


@pytest.mark.parametrize("content", ["no toml", "[profiles.lab]\n", "profiles = 3\n"])
def test_an_invalid_profiles_file_is_named(home: Path, content: str) -> None:
    (home / FILE).parent.mkdir(parents=True)
    (home / FILE).write_text(content)
    with pytest.raises(ConfigurationError, match=r"profiles\.toml"):
        choose_profile(Settings())


def test_shell_completion_offers_ids_with_the_prefix(
    service: FakeService, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_ROOT", environment["ORCHESTRATOR_ROOT"])
    for number in range(5):
        service.add(make_job(f"gpt-{number}"))
    service.add(make_job("other-1"))
    assert complete_job("gpt-") == [(f"gpt-{number}", "QUEUED") for number in range(5)]
    service.stop()
    assert complete_job("gpt-") == []


def test_the_shell_completes_commands_options_and_ids(run: Run, service: FakeService) -> None:
    service.add(make_job())

    def offered(words: str) -> str:
        current = len(words.split()) - (not words.endswith(" "))
        asked = {"_ORCHESTRATOR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(current)}
        done = run(**asked)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "snapshots" in offered("orchestrator snap").split()
    assert "--restore-from" in offered("orchestrator retry --re")
    assert "gpt-0001" in offered("orchestrator show gpt")


def test_the_error_for_an_invalid_token_setting_does_not_show_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text("token = 87654321\n")
    done = run("ls", ORCHESTRATOR_CONFIG="o.toml")
    assert done.returncode == 2
    assert "setting ORCHESTRATOR_TOKEN" in done.stderr
    assert "87654321" not in done.stderr


def test_a_list_variable_that_is_not_json_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_ALLOWED_HOSTS", "example.org")
    with pytest.raises(ConfigurationError, match=r"ORCHESTRATOR_ALLOWED_HOSTS: a list .* is written as JSON"):
        load_settings()


def test_a_token_from_a_file_with_crlf_is_read_without_its_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TOKEN", "0123456789abcdef\r")
    token = load_settings().token
    assert token is not None
    assert token.get_secret_value() == "0123456789abcdef"
