"""The checks of a preflight, and their failures."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.trainer.harness import ROOT, start_group
from trainer.checks import drill, preflight, preflight_checks
from trainer.contract import env
from trainer.contract.blame import parse_node_verdict
from trainer.contract.verdict import Outcome, parse_verdict

TWO_HOSTS = (str(Path(__file__).parents[1] / "two_hosts_entry.py"),)


def outcomes(output):
    verdicts = [verdict for line in output.splitlines() if (verdict := parse_verdict(line)) is not None]
    return {verdict.check: verdict.outcome for verdict in verdicts}, {v.check: v.sentence for v in verdicts}


def test_nodes_that_cannot_resolve_each_other_fail_and_other_checks_still_run(tmp_path):
    with start_group(tmp_path, 2, entry=TWO_HOSTS) as group:
        assert group.wait() == [1, 1]
        output = group.outputs()
    found, sentences = outcomes(output)
    nodes = {
        reported.node: reported.checks
        for line in output.splitlines()
        if (reported := parse_node_verdict(line)) is not None
    }
    assert found == {
        "ports": Outcome.OK,
        "names": Outcome.FAIL,
        "versions": Outcome.OK,
        "clocks": Outcome.OK,
        "storage": Outcome.OK,
        "bandwidth": Outcome.OK,
        "pairs": Outcome.OK,
        "steps": Outcome.OK,
    }
    assert nodes == {"node-0.invalid": ("names",), "node-1.invalid": ("names",)}, "neither can resolve its own name"
    assert "node-0.invalid cannot resolve node-1.invalid" in sentences["names"]
    assert "ms, on node-1.invalid" in sentences["clocks"]
    assert "from each of 2 nodes" in sentences["storage"]
    assert list((tmp_path / "snapshots").iterdir()) == [], "it leaves nothing behind"


def test_a_configuration_that_cannot_train_fails_the_check_of_steps(tmp_path):
    with start_group(tmp_path, 1, entry=("-m", "trainer.checks.preflight"), data="/nowhere/corpus.txt") as group:
        assert group.wait() == [1]
        found, sentences = outcomes(group.outputs())
    assert found["steps"] is Outcome.FAIL
    assert sentences["steps"].startswith("DataError: data '/nowhere/corpus.txt' cannot be read")
    assert found["storage"] is Outcome.OK


def test_snapshots_in_a_store_are_tried_in_that_store(tmp_path):
    variables = {env.SNAPSHOT_DIR: f"local://{tmp_path}/store"}
    with start_group(tmp_path, 1, entry=("-m", "trainer.checks.preflight"), variables=variables) as group:
        assert group.wait() == [0], group.outputs()
        found, _ = outcomes(group.outputs())
    assert found["steps"] is Outcome.OK
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "attempts" not in path.parts]
    assert left == [], "it leaves nothing behind in the store or in the job's folder"


def test_storage_with_other_bytes_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight_checks, "_VISIBLE_WITHIN_S", 0.05)
    written = preflight_checks._try_to_write(tmp_path / "scratch", 3)
    assert preflight_checks._wait_for(tmp_path / "scratch", {3: written.digest}).missing == ()
    (tmp_path / "scratch/rank-3").write_bytes(b"other bytes")
    assert preflight_checks._wait_for(tmp_path / "scratch", {3: written.digest, 4: "0"}).missing == (3, 4)
    (tmp_path / "file").write_text("no folder")
    assert "Not a directory" in (preflight_checks._try_to_write(tmp_path / "file/scratch", 3).problem or "")


def test_every_nodes_file_is_read_by_others_in_any_group():
    leaders = [rank * 8 for rank in range(40)]
    digests = {rank: str(rank) for rank in leaders}
    read = {rank: set(preflight_checks._to_read(rank, leaders, digests)) for rank in [*leaders, 1]}
    assert read[0] == set(leaders)
    assert read[8] == {0, 16}
    assert read[39 * 8] == {0, 38 * 8}
    assert read[1] == {0}, "a rank that is no leader"
    few = leaders[:16]
    assert all(set(preflight_checks._to_read(rank, few, digests)) == set(few) for rank in few)


def test_a_node_that_resolves_its_own_name_to_loopback_is_reported(monkeypatch):
    """Debian resolves the host's own name to 127.0.1.1. gloo would listen there, where no other node reaches it."""
    own = socket.gethostname()
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [(2, 1, 6, "", ("127.0.1.1", 0))])
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: (own, [], [address]))
    found = preflight_checks.find_names_problems([(own, "10.0.0.1"), ("other", "10.0.0.2")])
    failures = {problem.sentence: (problem.asker, problem.asked) for problem in found.failed}
    assert failures == {
        f"{own} resolves its own name to a loopback address, where no other node reaches it": (own, own),
        f"{own} resolves other to 127.0.1.1, but it is at 10.0.0.2": (own, "other"),
    }


def test_a_failed_rank_outlives_the_report_of_rank_0():
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(preflight.await_report, store)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.5)
        store.set(preflight._REPORTED, b"1")
        waits.result(timeout=300)


def test_a_failed_rank_does_not_wait_for_a_rank_0_that_has_ended(monkeypatch):
    monkeypatch.setattr(preflight, "_REPORT_TIMEOUT", timedelta(milliseconds=1))
    preflight.await_report(dist.HashStore())


def test_the_digest_of_the_trainer_covers_all_of_its_packages():
    own = preflight_checks._own_versions()["trainer"]
    assert own == preflight_checks._digest(ROOT / "trainer")


def test_a_drill_outside_a_job_is_refused(monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as ended:
        drill.main(["--kill-at", "3", "--config", "{}"])
    assert ended.value.code == 2
    assert "under elasticrun" in capsys.readouterr().err
