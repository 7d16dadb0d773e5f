"""Requests for stacks and faults, on real agents: each is carried out once, by one agent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.elastic.harness import Job, wait_for
from tests.elastic.requested import await_events, chaos, evidence, request, start
from trainer.contract.chaos import Fault
from trainer.contract.launch import DesiredDocument
from trainer.elastic.chaos import damage_newest


def test_requested_stacks_are_journaled_and_training_continues(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    pids = agent.pids(1)
    request(job, DesiredDocument(number=1, stacks=1))
    (all_ranks,) = await_events(agent, "stacks.saved")
    assert (evidence(all_ranks)["ranks"], evidence(all_ranks)["silent"], evidence(all_ranks)["wish"]) == ([0, 1], [], 1)
    stacks = evidence(all_ranks)["stacks"]
    assert isinstance(stacks, dict)
    assert all("steady.py" in str(text) for text in stacks.values())
    request(job, DesiredDocument(number=2, stacks=2, stacks_rank=1))
    second = await_events(agent, "stacks.saved", 2)[1]
    assert evidence(second)["ranks"] == [1]
    steps = len(agent.progress(1))
    wait_for(lambda: len(agent.progress(1)) > steps + 4, "more steps")
    assert agent.pids(1) == pids
    assert len(agent.events("stacks.saved")) == 2
    assert len(agent.events("generation.started")) == 1


def test_a_worker_is_killed_once_although_the_request_stays(job: Job, tmp_path: Path) -> None:
    agent = start(job, tmp_path)
    victim = agent.pids(1)[1]
    chaos(job, Fault.KILL)
    (event,) = await_events(agent, "chaos.injected")
    assert evidence(event) == {"fault": "kill", "number": 1, "rank": 1}
    assert (event["generation"], str(victim) in str(event["sentence"])) == (1, True)
    agent.pids(2)
    agent.await_steps(2)
    (failure,) = agent.events("worker.failed")
    assert evidence(failure)["signal"] == "SIGKILL"
    chaos(job, Fault.KILL, number=2, rank=0)
    agent.pids(3)
    agent.await_steps(3)
    assert [evidence(each)["number"] for each in agent.events("chaos.injected")] == [1, 2]
    assert len(agent.events("worker.failed")) == 2


def a_snapshot(folder: Path, step: int, files: dict[str, bytes], *, committed: bool = True) -> Path:
    path = folder / f"step-{step:08d}-a1-g1"
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    document = {
        "step": step,
        "attempt": 1,
        "generation": 1,
        "parent": None,
        "at": "",
        "world_size": 1,
        "strategy": "ddp",
        "samples_seen": 0,
        "files": {name: {"size_bytes": len(content), "checksum": "x:0"} for name, content in files.items()},
    }
    if committed:
        (path / "MANIFEST.json").write_text(json.dumps(document))
    return path


def test_one_byte_of_the_newest_committed_snapshot_is_changed(tmp_path: Path) -> None:
    old = a_snapshot(tmp_path, 1, {"a.distcp": b"old"})
    new = a_snapshot(tmp_path, 2, {".metadata": b"m", "a.distcp": b"0123456789", "b.distcp": b"01234"})
    a_snapshot(tmp_path, 3, {"a.distcp": b"torn"}, committed=False)
    sentence = damage_newest(str(tmp_path))
    assert sentence == f"byte 2 of b.distcp in snapshot {new.name} was changed; the next restore detects it"
    assert (new / "b.distcp").read_bytes() == b"01" + bytes([ord("2") ^ 0xFF]) + b"34"
    assert ((new / "a.distcp").read_bytes(), (old / "a.distcp").read_bytes()) == (b"0123456789", b"old")


def test_a_file_that_another_job_may_share_is_not_damaged(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "shared").write_bytes(b"shared")
    (theirs / "linked").write_bytes(b"linked")
    mine = a_snapshot(tmp_path / "mine", 2, {"own": b"mine to break"})
    os.link(theirs / "shared", mine / "hard")
    (mine / "soft").symlink_to(theirs / "linked")
    manifest = json.loads((mine / "MANIFEST.json").read_text())
    entry = {"size_bytes": 1, "checksum": "x:0"}
    for name in ("hard", "soft", "../../theirs/linked"):
        manifest["files"] = {name: entry}
        (mine / "MANIFEST.json").write_text(json.dumps(manifest))
        with pytest.raises(OSError):  # noqa: PT011  # each for another reason
            damage_newest(str(tmp_path / "mine"))
    assert [(theirs / name).read_bytes() for name in ("shared", "linked")] == [b"shared", b"linked"]
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "step-00000009-a1-g1").symlink_to(mine)
    with pytest.raises(FileNotFoundError):
        damage_newest(str(tmp_path / "links"))
    with pytest.raises(OSError, match="is not a folder"):
        damage_newest("s3://bucket/mine")
