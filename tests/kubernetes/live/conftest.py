"""One namespace for the session. Each test has its own service, outside the cluster, and leaves no Job behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService, outer_environment
from orchestrator.client import Client
from tests.kubernetes.live.cluster import Cluster
from tests.kubernetes.live.lab import Lab, configuration, kubeconfig_through, start, tell
from tests.kubernetes.live.options import Options, add_options, read_options
from tests.kubernetes.live.relay import Relay, ReportsDoor, address_towards

_LOOK_AROUND_S = 1200.0  # includes pulling the image on two nodes


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.fixture(scope="session")
def options(pytestconfig: pytest.Config) -> Options:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster")
    given = read_options(pytestconfig)
    if not given["image"] or not (given["storage-class"] or given["claim"] or given["host-path"]):
        pytest.skip("needs --image, and --storage-class, --claim or --host-path")
    return given


@pytest.fixture(scope="session")
def door(options: Options) -> Iterator[ReportsDoor]:
    door = ReportsDoor(int(options["advertise-port"]))
    yield door
    door.close()


@pytest.fixture(scope="session")
def cluster(options: Options) -> Iterator[Cluster]:
    cluster = Cluster(options)
    with cluster.own_namespace(options):
        yield cluster


@pytest.fixture(scope="session")
def settings(
    options: Options, cluster: Cluster, door: ReportsDoor, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the settings of every service."""
    address = options["advertise-host"] or address_towards(cluster.host, cluster.port)
    if address is None and not options["service-root"]:
        pytest.exit("this machine has no address that pods can reach: set --advertise-host", returncode=1)
    config = tmp_path_factory.mktemp("settings") / "orchestrator.toml"
    config.write_text(configuration(options, cluster.namespace))
    return {
        "ORCHESTRATOR_CONFIG": str(config),
        "ORCHESTRATOR_ADVERTISE_URL": f"http://{address or '127.0.0.1'}:{door.port}",
    }


@pytest.fixture(scope="session")
def findings(
    options: Options, settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, str]]:
    """Run `doctor` before any job. If no pod can run, end the session."""
    if options["look-around"] == "no":
        return []
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "doctor", "--cluster", "live", "--json"],
        env={**outer_environment(), **settings, "ORCHESTRATOR_ROOT": str(tmp_path_factory.mktemp("doctor"))},
        capture_output=True,
        text=True,
        timeout=_LOOK_AROUND_S,
        check=False,
    )
    try:
        found: list[dict[str, str]] = json.loads(done.stdout)["items"]
    except (ValueError, KeyError):
        pytest.exit(f"doctor printed no findings: {done.stdout}{done.stderr}", returncode=1)
    if not any((each["check"], each["verdict"]) == ("pods", "ok") for each in found):
        pytest.exit("no job can run on this cluster:\n" + tell(found), returncode=1)
    return found


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[Relay]:
    relay = Relay(cluster.host, cluster.port, to_proxy=cluster.proxy is not None)
    yield relay
    relay.close()


@pytest.fixture
def lab(
    options: Options,
    settings: dict[str, str],
    findings: list[dict[str, str]],
    cluster: Cluster,
    relay: Relay,
    door: ReportsDoor,
    tmp_path: Path,
) -> Iterator[Lab]:
    """Start a service. `findings` comes first, because its pods pull the image."""
    given = {**settings, "KUBECONFIG": kubeconfig_through(relay.port, options, tmp_path)}
    service = ThrowawayService(tmp_path / "runs", given, log_folder=tmp_path)
    try:
        start(service, door)
        with Client(service.url) as client:
            yield Lab(cluster, service, client, door, options["python"], float(options["memory-gb"]))
    finally:
        service.end()
        relay.open()
        cluster.delete_all_jobs()
