"""The stacks and the log of one rank, and the page of the launch."""

from __future__ import annotations

from html import unescape
from re import findall

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import make_batch, make_progress
from tests.dashboard.looks import page


def make_job_of_two_ranks(world: World) -> str:
    job_id = world.submit(topology={"workers_per_node": 2})
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    lines = [(10 + rank, make_progress(5, rank=rank, local_rank=rank, generation=2)) for rank in (0, 1)]
    world.journals.ingest([make_batch(job_id, progress=lines)], arrived_at=world.clock.now())
    for rank in (0, 1):
        world.write_log(job_id, f"rank {rank} says hello\n", f"1/g2/local-{rank}/log")
    return job_id


def test_a_rank_shows_the_stacks_that_were_saved_last(world: World) -> None:
    job_id = make_job_of_two_ranks(world)
    world.write_log(job_id, "File old.py, line 1\n", "1/g1/local-1/stacks.txt")
    world.write_log(job_id, "File newer.py, line 7\n", "1/g2/local-1/stacks.txt")
    world.write_log(job_id, "", "1/g2/local-0/stacks.txt")  # created at the start of each worker, usually empty
    text = page(world, f"/jobs/{job_id}?rank=1")
    assert "File newer.py, line 7" in text
    assert "File old.py" not in text
    assert "rank 1 says hello" in text
    assert "No stacks yet" in page(world, f"/jobs/{job_id}?rank=0")
    answer = world.client.get(f"/api/v1/jobs/{job_id}/logs?stream=stacks&rank=1")
    assert answer.text == "File newer.py, line 7\n"


def test_the_page_says_that_a_rank_does_not_exist(world: World) -> None:
    text = page(world, f"/jobs/{make_job_of_two_ranks(world)}?rank=9")
    assert "This attempt has no rank 9" in text
    assert "has no log of rank 9" in text


def test_the_launch_page_shows_the_request_of_the_newest_attempt(world: World) -> None:
    job_id = world.submit(labels={"team": "speech"})
    assert "nnodes" in page(world, f"/jobs/{job_id}/launch"), "a queued job shows what would be launched"
    world.start(job_id, 3)
    text = page(world, f"/jobs/{job_id}/launch")
    assert "team: speech" in text
    answer = world.client.get(f"/api/v1/jobs/{job_id}/request").json()
    assert answer["rendezvous_endpoint"] == "127.0.0.1:20003"
    assert answer["native_request"] in unescape(text)


def test_the_page_shows_the_last_line_of_each_worker_of_a_script_that_reports_nothing(world: World) -> None:
    job_id = world.submit(topology={"workers_per_node": 2})
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    world.write_log(job_id, "an old generation\n", "1/g1/local-0/log")
    world.write_log(job_id, "first\nepoch 3 <b>loss</b> 0.1\n\n", "1/g2/local-0/log")
    world.write_log(job_id, "x" * 5000, "1/g2/local-1/log")
    rows = findall(r"<td>(local rank .)</td><td class=\"code\"><div>(.*)</div>", page(world, f"/jobs/{job_id}"))
    assert rows == [("local rank 0", "epoch 3 &lt;b&gt;loss&lt;/b&gt; 0.1"), ("local rank 1", "x" * 300)]


def test_the_page_leaves_out_the_last_lines_of_many_workers(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    for rank in range(40):
        world.write_log(job_id, f"hello from {rank}\n", f"1/g1/local-{rank}/log")
    assert "Last line of output" not in page(world, f"/jobs/{job_id}")
