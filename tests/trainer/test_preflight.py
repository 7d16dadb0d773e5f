"""The checks of a preflight, above all where they fail."""

import os
import socket
from pathlib import Path

import pytest

from tests.trainer.harness import start_group
from trainer import drill, preflight_checks
from trainer.contract.verdict import Outcome, parse_verdict

TWO_HOSTS = (str(Path(__file__).with_name("two_hosts_entry.py")),)


def outcomes(output):
    verdicts = [verdict for line in output.splitlines() if (verdict := parse_verdict(line)) is not None]
    return {verdict.check: verdict.outcome for verdict in verdicts}, {v.check: v.sentence for v in verdicts}


def test_nodes_that_do_not_know_each_other_fail_while_all_else_is_still_checked(tmp_path):
    with start_group(tmp_path, 2, entry=TWO_HOSTS) as group:
        assert group.wait() == [1, 1]
        found, sentences = outcomes(group.outputs())
    assert found == {
        "names": Outcome.FAIL,
        "clocks": Outcome.OK,
        "storage": Outcome.OK,
        "bandwidth": Outcome.OK,
        "steps": Outcome.OK,
    }
    assert "node-0.invalid does not know node-1.invalid" in sentences["names"]
    assert "ms, on node-1.invalid" in sentences["clocks"]
    assert "from each of 2 nodes" in sentences["storage"]
    assert list((tmp_path / "snapshots").iterdir()) == [], "it leaves nothing behind"


def test_a_configuration_that_cannot_train_fails_the_steps(tmp_path):
    with start_group(tmp_path, 1, entry=("-m", "trainer.preflight"), data="/nowhere/corpus.txt") as group:
        assert group.wait() == [1]
        found, sentences = outcomes(group.outputs())
    assert found["steps"] is Outcome.FAIL
    assert sentences["steps"].startswith("DataError: data '/nowhere/corpus.txt' cannot be read")
    assert found["storage"] is Outcome.OK


def test_storage_that_shows_other_bytes_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight_checks, "_VISIBLE_WITHIN_S", 0.05)
    digest, _ = preflight_checks._write(tmp_path / "scratch", 3)
    assert preflight_checks._wait_for(tmp_path / "scratch", {3: digest}) < 5
    (tmp_path / "scratch/rank-3").write_bytes(b"other bytes")
    with pytest.raises(OSError, match="does not see what rank 3 wrote"):
        preflight_checks._wait_for(tmp_path / "scratch", {3: digest})


def test_a_node_that_takes_its_own_name_for_loopback_is_told(monkeypatch):
    """Debian puts the host's name on 127.0.1.1: gloo would listen there, where no other node reaches it."""
    own = socket.gethostname()
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [(2, 1, 6, "", ("127.0.1.1", 0))])
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: (own, [], [address]))
    failures, _ = preflight_checks._names_problems([(own, "10.0.0.1"), ("other", "10.0.0.2")])
    assert f"{own} takes its own name for a loopback address, where no other node reaches it" in failures
    assert f"{own} knows other as 127.0.1.1, it is at 10.0.0.2" in failures


def test_a_drill_outside_a_job_is_refused(monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as ended:
        drill.main(["--kill-at", "3", "--config", "{}"])
    assert ended.value.code == 2
    assert "runs under elasticrun" in capsys.readouterr().err
