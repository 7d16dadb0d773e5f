"""Which service a client asks: never another one than the caller named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.client import RequestRefused, ServiceUnreachable, connect, find_url
from orchestrator.client.errors import NoService
from orchestrator.client.locator import Address, Locator
from orchestrator.domain.errors import ConfigurationError
from orchestrator.settings import Settings
from orchestrator.wire.problems import Problem
from orchestrator.wire.service import name_instance
from tests.cli.fake_service import Answer, FakeService


@pytest.fixture
def root(tmp_path: Path) -> Path:
    announce(tmp_path, port=8700)
    return tmp_path


def announce(root: Path, port: int) -> None:
    document = {"url": f"http://127.0.0.1:{port}", "pid": 1, "version": "0", "instance": name_instance(root)}
    (root / "service.json").write_text(json.dumps(document))


def locate(**given: object) -> Address:
    return Locator(Settings.model_validate(given))()


def test_the_url_comes_first(root: Path) -> None:
    assert locate(url="http://gpu:1/", root=root, port=2) == Address("http://gpu:1")


def test_the_file_of_the_root_comes_before_the_default_port(root: Path) -> None:
    announce(root, port=9000)
    assert locate(root=root) == Address("http://127.0.0.1:9000", name_instance(root))


def test_a_given_port_comes_before_the_file(root: Path) -> None:
    """If the root is given too, the service at the port must be its service."""
    assert locate(root=root, port=9000) == Address("http://127.0.0.1:9000", name_instance(root))
    assert locate(root=root, port=8700) == Address("http://127.0.0.1:8700", name_instance(root))
    (root / "service.json").unlink()
    assert locate(root=root, port=9000) == Address("http://127.0.0.1:9000", name_instance(root))
    assert locate(port=9000, host="0.0.0.0") == Address("http://127.0.0.1:9000")


def test_any_free_port_is_the_one_in_the_file(root: Path) -> None:
    assert locate(root=root, port=0).url == "http://127.0.0.1:8700"


@pytest.mark.parametrize("content", [None, "", "[]", '{"pid": 1}', "{", "[" * 100_000])
def test_without_an_address_in_the_root_there_is_no_service(root: Path, content: str | None) -> None:
    """The default port may belong to somebody else."""
    (root / "service.json").unlink()
    if content is not None:
        (root / "service.json").write_text(content)
    with pytest.raises(NoService, match=f"no service uses the run directory {root}"):
        find_url(Settings(root=root))


def test_a_restarting_service_keeps_its_last_address(root: Path) -> None:
    locator = Locator(Settings(root=root))
    before = locator()
    (root / "service.json").unlink()
    assert locator() == before
    announce(root, port=8701)
    assert locator().url == "http://127.0.0.1:8701"


@pytest.mark.parametrize("url", ["gpu:8700", "ftp://gpu", "http://", "http://gpu:port"])
def test_an_invalid_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"ORCHESTRATOR_URL is .* must be like"):
        find_url(Settings(url=url))


def test_another_service_at_the_port_in_the_file_gets_no_job(service: FakeService, tmp_path: Path) -> None:
    """A service was killed, and a stranger's service has its port."""
    announce(tmp_path, service.port)
    service.refusals = [Answer(421, Problem(type="x", title="x", status=421, detail="x"))]
    with connect(Settings(root=tmp_path)) as client, pytest.raises(ServiceUnreachable, match="another run directory"):
        client.submit({"name": "gpt", "run": {"script": "train.py"}})
    assert service.instances == [name_instance(tmp_path)]


def test_a_service_that_starts_late_is_awaited(service: FakeService, tmp_path: Path) -> None:
    root = tmp_path / "late"
    root.mkdir()
    refused: list[ServiceUnreachable] = []

    def start_it(failure: ServiceUnreachable) -> None:
        refused.append(failure)
        announce(root, service.port)

    with connect(Settings(root=root), on_retry=start_it) as client, pytest.raises(RequestRefused):
        client.submit({"name": "gpt"})
    assert len(refused) == 1
