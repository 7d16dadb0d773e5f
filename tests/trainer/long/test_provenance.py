"""The provenance in a manifest, and the report of differences."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

from tests.trainer.harness import make_manifest, start_group
from trainer.contract import env
from trainer.contract.config import TrainerConfig
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName
from trainer.snapshot.provenance import Provenance, compare, describe_code

NOW = {"commit": "b" * 40, "dirty": False, "command": ["python", "-m", "trainer"], "image": None}


def saved(**document):
    manifest = make_manifest(SnapshotName(10, Term(1, 1)), {})
    details = {"config": {"learning_rate": 0.1, "gone": 1}, "provenance": {**NOW, **document}}
    return replace(manifest, versions={"torch": "2.13.0"}, details=details)


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_code_is_identified_by_its_commit_and_local_changes(tmp_path):
    assert describe_code(str(tmp_path)) == {"commit": None, "dirty": None}
    (tmp_path / "train.py").write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    clean = describe_code(str(tmp_path))
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "train.py").write_text("2")
    assert describe_code(str(tmp_path)) == {**clean, "dirty": True}


def test_each_difference_is_named_and_unknown_values_are_not():
    config, versions = {"learning_rate": 0.2, "new": 3}, {"torch": "2.14.0", "python": "3.12"}
    assert compare(saved(commit="a" * 40, dirty=None), config, versions, NOW) == [
        "learning_rate was 0.1 and is 0.2",
        "version of torch was 2.13.0 and is 2.14.0",
        f"commit was {'a' * 40} and is {'b' * 40}",
    ]
    assert compare(saved(), {"learning_rate": 0.1}, {"torch": "2.13.0"}, NOW) == []


def test_a_restore_with_another_configuration_is_reported_once(tmp_path):
    with start_group(tmp_path, 2, steps=2) as group:
        assert group.wait() == [0, 0], group.outputs()
    variables = {env.IMAGE: "registry.example/trainer:2"}
    with start_group(tmp_path, 2, generation=2, steps=4, learning_rate=2e-3, variables=variables) as group:
        assert group.wait() == [0, 0], group.outputs()
    (reported,) = group.events("provenance.changed")
    assert reported["sentence"].startswith("changed since step-00000002-a1-g1: steps was 2 and is 4; learning_rate")
    assert "learning_rate was 0.001 and is 0.002" in reported["sentence"]


def test_a_job_that_is_stopped_does_not_wait_for_git(tmp_path, monkeypatch):
    """Not even a snapshot that already waits: here git answers only after the test."""
    os.mkfifo(tmp_path / "answer")
    (tmp_path / "git").write_text(f"#!/bin/sh\nread answer < {tmp_path}/answer\nexit 1\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    provenance = Provenance(TrainerConfig(), parse_place({}), None, lambda *_: None)
    documents: list[dict[str, object]] = []
    waiting = threading.Thread(target=lambda: documents.append(provenance.document()))
    waiting.start()
    with (tmp_path / "answer").open("w"):  # git runs now
        assert not documents
        provenance.stop_waiting()
        waiting.join(300)
        assert documents[0].keys() == {"command", "image", "host"}
        assert documents[0]["command"] == " ".join(sys.orig_argv).split()
