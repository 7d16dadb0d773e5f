"""Snapshots that the service asks for."""

import json
import os
from pathlib import Path

import pytest

from trainer.worker.snapshot_requests import SnapshotRequests


def request(path: Path, **document: object) -> None:
    temporary = path.with_name("temporary")
    temporary.write_text(json.dumps({"state": "run", **document}))
    temporary.replace(path)


@pytest.fixture
def path(tmp_path):
    request(tmp_path / "desired.json", snapshot=1, number=1)
    return tmp_path / "desired.json"


def test_the_file_is_read_at_most_twice_a_second(path):
    requests = SnapshotRequests(path, answered=1)
    assert not requests.is_due(now=0.0)
    request(path, snapshot=2, number=2)
    assert not requests.is_due(now=0.4)
    assert requests.is_due(now=0.5)
    assert requests.answer() == 2
    assert not requests.is_due(now=9.0)


def test_a_request_before_the_start_is_due_unless_it_was_answered(path):
    assert SnapshotRequests(path, answered=0).is_due(now=0.0)
    assert not SnapshotRequests(path, answered=1).is_due(now=0.0)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"snapshot": "7"}', '{"snapshot": -1}'])
def test_an_unreadable_file_is_no_request(content, path):
    path.write_text(content)
    os.utime(path, ns=(1, 1))
    assert not SnapshotRequests(path, answered=0).is_due(now=0.0)


def test_outside_a_job_nothing_is_requested():
    assert not SnapshotRequests(None, answered=0).is_due(now=0.0)
