"""Snapshots that the service requests of a training group."""

import signal

from tests.trainer.harness import Group, start_group, wait_for
from tests.trainer.test_snapshot_requests import request
from trainer.contract import layout


def wait_for_snapshots(group: Group, count: int) -> list[int]:
    wait_for(lambda: len(group.events("snapshot.committed")) >= count, f"{count} snapshots")
    return [event["evidence"]["step"] for event in group.events("snapshot.committed")]


def test_a_running_group_takes_each_requested_snapshot_once(tmp_path):
    path = layout.attempt_dir(tmp_path, 1) / layout.DESIRED
    options = {"steps": 100_000, "snapshot_interval": 100_000}
    with start_group(tmp_path, 2, **options) as group:
        group.wait_for_step(3)
        request(path, snapshot=1, number=2)
        [first] = wait_for_snapshots(group, 1)
        request(path, snapshot=1, number=3)  # another request, not for a snapshot
        request(path, snapshot=9, number=1)  # an older document
        group.wait_for_step(first + 150)
        assert wait_for_snapshots(group, 1) == [first]
        request(path, snapshot=2, number=4)
        wait_for_snapshots(group, 2)
        group.processes[0].send_signal(signal.SIGTERM)
        assert group.wait() == [143, 143], group.outputs()
    with start_group(tmp_path, 2, generation=2, **options) as again:
        again.wait_for_step(max(group.losses()) + 50)
        assert again.events("snapshot.committed") == [], "the request was answered before the restart"
