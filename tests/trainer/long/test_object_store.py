"""Snapshots on S3, with moto's server in a separate process.

Needs `pip install -c constraints.txt s3fs 'moto[server]'`.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from tests.trainer.harness import ROOT, free_port, make_manifest, start_group, wait_for
from trainer import snapshot
from trainer.contract import env
from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import Remote

pytestmark = [
    pytest.mark.skipif(not (find_spec("s3fs") and find_spec("moto")), reason="needs s3fs and moto[server]"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of botocore
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NAME = SnapshotName(2, Term(1, 1))


@pytest.fixture(scope="module")
def port():
    return free_port()  # one port for all tests: s3fs remembers it


@pytest.fixture
def server(port, monkeypatch):
    variables = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_MAX_ATTEMPTS": "2",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _make_bucket(f"http://127.0.0.1:{port}/bucket")
            yield process
        finally:
            process.kill()


def _make_bucket(url):
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=300):
                return
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def make(directory, size=20_000_000):
    snapshot.claim(directory)
    for file, content in ((".metadata", b"metadata"), ("__0_0.distcp", os.urandom(size))):
        with (directory / file).open("wb") as stream:
            stream.write(content)
    return make_manifest(NAME, snapshot.checksum_files(directory, [".metadata", "__0_0.distcp"]))


def test_one_of_many_concurrent_commits_wins(server):
    directory = Remote("s3://bucket/race") / str(NAME)
    manifest = make(directory)

    def commit(_):
        try:
            snapshot.commit(directory, manifest)
        except FileExistsError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(commit, range(8))) == 1
    assert snapshot.verify(directory) == manifest, "20 MB, in parts"


def test_an_unreachable_store_is_neither_damaged_nor_empty(server):
    directory = Remote("s3://bucket/job") / str(NAME)
    snapshot.commit(directory, make(directory, 100))
    with pytest.raises(OSError, match="bucket does not exist"):
        snapshot.list_committed(Remote("s3://no-such-bucket/job"))
    server.kill()
    server.wait()
    with pytest.raises(SnapshotError, match="cannot be read: EndpointConnectionError") as raised:
        snapshot.verify(directory)
    assert not isinstance(raised.value, DamagedSnapshot)


def variables_of(store):
    """Variables of workers, which import s3fs from the same path as this process."""
    return {env.SNAPSHOT_DIR: store, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def test_a_run_continues_from_s3_after_a_kill_and_after_damage(server, tmp_path):
    store = Remote("s3://bucket/runs/job")
    options = {"snapshot_interval": 3, "variables": variables_of(str(store))}
    with start_group(tmp_path, 2, strategy="fsdp", steps=100_000, **options) as first:
        first.wait_for_commit(6)
        for process in first.processes:
            process.send_signal(signal.SIGKILL)
    committed = sorted(name.step for name in snapshot.list_committed(store))
    newest, before = committed[-1], committed[-2]
    (store / f"step-{newest:08d}-a1-g1/__1_0.distcp").unlink()
    with start_group(tmp_path, 1, generation=2, strategy="ddp", steps=before + 5, **options) as second:
        assert second.wait() == [0], second.outputs()
    assert second.events("restored")[0]["evidence"]["step"] == before
    assert len(second.events("snapshot.quarantined")) == 1
    same = second.losses().keys() & first.losses().keys()
    assert {step: second.losses()[step] for step in same} == pytest.approx(
        {step: first.losses()[step] for step in same}, rel=1e-5
    )
    assert {name.step for name in snapshot.list_named(store) if name.term.generation == 1} <= set(committed), "swept"


def test_an_unreachable_store_costs_snapshots_and_not_the_run(server, tmp_path):
    options = {"snapshot_interval": 20, "variables": variables_of("s3://bucket/runs/job")}
    with start_group(tmp_path, 1, steps=60, **options) as group:
        group.wait_for_commit(20)
        server.kill()
        server.wait()
        wait_for(lambda: "snapshot of step 60 failed" in group.outputs(), "the last snapshot to fail")
        group.processes[0].send_signal(signal.SIGTERM)  # it would try for an hour
        assert group.wait() == [1]
        output = group.outputs()
    assert max(group.losses()) == 60, output
    assert {event["evidence"]["step"] for event in group.events("snapshot.failed")} >= {60}
    assert "SnapshotError: training ended at step 60, and its last snapshot could not be written" in output
