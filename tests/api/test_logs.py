"""Logs over HTTP: which lines, from which worker, and hostile files."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from orchestrator.logs.log_files import LineCutter
from tests.api.conftest import World
from tests.api.running import run
from tests.builders import make_batch, make_journal_event, make_progress


@pytest.fixture
def job_id(world: World) -> str:
    return run(world, nodes="4")


def read(world: World, job_id: str, query: str = "") -> list[str]:
    answer = world.client.get(f"/api/v1/jobs/{job_id}/logs?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "" or answer.text.endswith("\n")
    return answer.text.split("\n")[:-1]


def test_a_job_that_has_not_started_has_an_empty_log(world: World) -> None:
    assert read(world, world.submit()) == []


def test_the_last_lines_are_given_in_order(world: World, job_id: str) -> None:
    world.write_log(job_id, "".join(f"line {number}\n" for number in range(1000)))
    assert read(world, job_id, "tail=3") == ["line 997", "line 998", "line 999"]
    assert len(read(world, job_id)) == 200
    assert len(read(world, job_id, "tail=10000")) == 1000
    assert read(world, job_id, "tail=0") == []


def test_since_leaves_out_older_logs(world: World, job_id: str) -> None:
    old = world.write_log(job_id, "old\n", where="1/g1/local-0/log")
    os.utime(old, (1_000_000_000, 1_000_000_000))  # 2001-09-09T01:46:40Z
    world.write_log(job_id, "new\n", where="1/g2/local-0/log")
    assert read(world, job_id, "since=2001-09-09T01:46:40Z") == ["[a1 g1 r0/0] old", "[a1 g2 r0/0] new"]
    assert read(world, job_id, "since=2001-09-09T01:46:41Z") == ["new"]
    assert read(world, job_id, "since=2001-09-09T03:46:41%2B02:00") == ["new"]
    assert read(world, job_id, "since=2999-01-01T00:00:00Z") == []


def test_a_line_without_an_end_is_given_too(world: World, job_id: str) -> None:
    world.write_log(job_id, "one\ntwo\nthr")
    assert read(world, job_id, "tail=2") == ["two", "thr"]


def test_empty_lines_count(world: World, job_id: str) -> None:
    world.write_log(job_id, "one\n\n\n")
    assert read(world, job_id, "tail=3") == ["one", "", ""]


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072])
def test_lines_at_the_edges_of_blocks_are_whole(world: World, job_id: str, size: int) -> None:
    world.write_log(job_id, "first\n" + "x" * (size - 12) + "\nlast\n")
    assert read(world, job_id, "tail=1") == ["last"]
    assert len(read(world, job_id, "tail=2")) == 2
    assert read(world, job_id, "tail=3")[0] == "first"


def test_lines_have_a_prefix_if_there_are_several_workers(world: World, job_id: str) -> None:
    world.write_log(job_id, "zero\n")
    assert read(world, job_id) == ["zero"]
    world.write_log(job_id, "one\n", "1/g1/local-1/log")
    world.write_log(job_id, "two\n", "replica-1/1/g1/local-0/log")
    assert read(world, job_id) == ["[a1 g1 r0/0] zero", "[a1 g1 r0/1] one", "[a1 g1 r1/0] two"]
    assert read(world, job_id, "replica=1") == ["two"]


def test_older_generations_come_first(world: World, job_id: str) -> None:
    world.write_log(job_id, "old 1\nold 2\n", "1/g1/local-0/log")
    world.write_log(job_id, "new 1\n", "1/g10/local-0/log")
    world.write_log(job_id, "middle\n", "1/g9/local-0/log")
    everything = ["[a1 g1 r0/0] old 1", "[a1 g1 r0/0] old 2", "[a1 g9 r0/0] middle", "[a1 g10 r0/0] new 1"]
    for query in ("", "rank=0", "whole=true", "whole=true&rank=0"):
        assert read(world, job_id, query) == everything
    assert read(world, job_id, "tail=3") == everything[1:]


def test_a_rotated_log_comes_before_the_current_one(world: World, job_id: str) -> None:
    world.write_log(job_id, "a\nb\n", "1/g1/local-0/log.1")
    world.write_log(job_id, "c\n")
    assert read(world, job_id) == ["a", "b", "c"]
    assert read(world, job_id, "tail=2") == ["b", "c"]
    assert read(world, job_id, "whole=true") == ["a", "b", "c"]


def test_a_rank_is_found_where_it_reported_from(world: World, job_id: str) -> None:
    world.write_log(job_id, "at home\n", "1/g1/local-1/log")
    world.write_log(job_id, "away\n", "replica-3/1/g1/local-0/log")
    assert read(world, job_id, "rank=1") == ["at home"]
    lines = [(10, make_progress(1, rank=1, local_rank=0))]
    world.journals.ingest([make_batch(job_id, replica=3, progress=lines)], arrived_at=world.clock.now())
    assert read(world, job_id, "rank=1") == ["away"]


def tell_generation(world: World, job_id: str, generation: int, ranks: dict[int, list[int]], attempt: int = 1) -> None:
    """Ingest the agents' reports of a generation: its ranks by replica."""
    for replica, told in ranks.items():
        evidence = {"number": generation, "pids": {str(rank): 4000 + rank for rank in told}}
        event = make_journal_event("generation.started", generation=generation, evidence=evidence)
        batch = make_batch(job_id, attempt, replica=replica, events=[(10 * generation, event)])
        world.journals.ingest([batch], arrived_at=world.clock.now())


def test_a_rank_of_a_plain_script_is_found_where_its_agent_started_it(world: World, job_id: str) -> None:
    for replica in range(2):
        for local in range(2):
            world.write_log(job_id, f"{replica}/{local}\n", f"replica-{replica}/1/g1/local-{local}/log")
    tell_generation(world, job_id, 1, {0: [0, 1], 1: [2, 3]})
    assert [read(world, job_id, f"rank={rank}") for rank in range(4)] == [["0/0"], ["0/1"], ["1/0"], ["1/1"]]
    assert read(world, job_id, "rank=2&stream=worker&attempt=1") == ["1/0"]


def test_a_rank_means_its_worker_in_the_newest_generation(world: World, job_id: str) -> None:
    """Replicas may change their ranks, and a smaller group has fewer ranks."""
    for replica in range(3):
        world.write_log(job_id, f"{replica}\n", f"replica-{replica}/1/g1/local-0/log")
    tell_generation(world, job_id, 1, {0: [0], 1: [1], 2: [2]})
    tell_generation(world, job_id, 2, {2: [0], 1: [1]})
    assert [read(world, job_id, f"rank={rank}") for rank in range(3)] == [["2"], ["1"], ["2"]]
    assert world.client.get(f"/api/v1/jobs/{job_id}/logs?rank=3").status_code == 404
    world.start(job_id, 2, nodes="4")
    world.write_log(job_id, "other\n", "replica-3/1/g1/local-0/log", attempt=2)
    tell_generation(world, job_id, 1, {3: [1]}, attempt=2)
    assert read(world, job_id, "rank=1") == ["other"]
    assert read(world, job_id, "rank=1&attempt=1") == ["1"]


def test_a_rank_is_found_behind_any_number_of_generations(world: World, job_id: str) -> None:
    world.write_log(job_id, "away\n", "replica-1/1/g1/local-0/log")
    tell_generation(world, job_id, 1, {0: [0], 1: [1]})
    for generation in range(2, 150):
        tell_generation(world, job_id, generation, {0: [0]})
    assert read(world, job_id, "rank=1") == ["away"]


def test_logs_are_of_one_attempt(world: World, job_id: str) -> None:
    world.write_log(job_id, "first\n")
    world.start(job_id, 2)
    world.write_log(job_id, "second\n", attempt=2)
    assert read(world, job_id) == ["second"]
    assert read(world, job_id, "attempt=1") == ["first"]
    assert world.client.get(f"/api/v1/jobs/{job_id}/logs?attempt=3").status_code == 404


def test_the_agents_log_is_shown_until_a_worker_writes(world: World, job_id: str) -> None:
    world.write_log(job_id, "agent\n", "agent.log")
    assert read(world, job_id) == ["agent"]
    world.write_log(job_id, "worker\n")
    assert read(world, job_id) == ["worker"]
    assert read(world, job_id, "stream=agent") == ["agent"]


def test_grep_keeps_lines_that_hold_a_text(world: World, job_id: str) -> None:
    world.write_log(job_id, "".join(f"step {number} loss [{number % 3}]\n" for number in range(100)))
    assert read(world, job_id, "grep=[0]&tail=2") == ["step 96 loss [0]", "step 99 loss [0]"]
    assert read(world, job_id, "grep=.*") == []


def test_invalid_bytes_and_control_characters_are_escaped(world: World, job_id: str) -> None:
    world.write_log(job_id, b"\xff\xfe ok\r\n\x1b[31mred\x00\x07\tend\n10%\r20%\n" + "bidi \u202e \x9b\n".encode())
    assert read(world, job_id) == [
        "\ufffd\ufffd ok",
        "red\\x00\\x07\tend",
        "20%",
        "bidi \\u202e \\x9b",
    ]


def test_a_long_progress_bar_shows_its_newest_state(world: World, job_id: str) -> None:
    bar = b"".join(b"\r%3d%%" % (state % 100) for state in range(50_000))
    world.write_log(job_id, b"before\n" + bar + b"\r100%\nafter\n" + b"\r10%\r20%")
    assert read(world, job_id) == ["before", "100%", "after", "20%"]


def test_what_a_carriage_return_overwrites_is_still_pending() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"10%\r20") == []
    assert cutter.feed(b"%\r") == []
    assert (cutter.pending, cutter.feed(b"\n")) == (8, ["20%"])


def test_a_line_of_10_megabytes_is_cut_in_little_memory(world: World, job_id: str) -> None:
    world.write_log(job_id, b"before\n" + b"x" * 10_000_000 + b"\nafter\n")
    tracemalloc.start()
    before, long, after = read(world, job_id)
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
    assert (before, after) == ("before", "after")
    assert long == "x" * 65_536 + " [cut: 9934464 more bytes]"
    assert read(world, job_id, "grep=after") == ["after"]


def test_the_size_of_an_answer_is_bounded(world: World, job_id: str) -> None:
    for local in range(3):
        world.write_log(job_id, (b"y" * 60_000 + b"\n") * 400, f"1/g1/local-{local}/log")
    answer = world.client.get(f"/api/v1/jobs/{job_id}/logs?tail=10000")
    assert len(answer.text) < 18_000_000


def test_only_regular_files_of_the_job_are_read(world: World, job_id: str) -> None:
    secret = world.root / "secret.txt"
    secret.write_text("secret\n")
    folder = world.write_log(job_id, "").parent
    (folder / "log").unlink()
    (folder / "log").symlink_to(secret)
    other = world.root / "other"
    (other / "local-0").mkdir(parents=True)
    (other / "local-0" / "log").write_text("secret\n")
    (folder.parent.parent / "g2").symlink_to(other)
    (folder.parent.parent / "g3" / "local-0").mkdir(parents=True)
    os.mkfifo(folder.parent.parent / "g3" / "local-0" / "log")
    (folder.parent.parent / "g4" / "local-0" / "log").mkdir(parents=True)
    (folder.parent.parent / "g٣").mkdir()
    assert read(world, job_id) == []


WRONG = (
    *("tail=-1", "tail=10001", "rank=-1", "rank=../..", "rank=0x1", "rank=1e3", "rank=²"),
    *(
        "replica=x",
        "replica=1/../..",
        "attempt=0",
        "attempt=../../etc/passwd",
        "stream=stderr",
        "stream=../..",
        "follow=maybe",
    ),
)


@pytest.mark.parametrize("query", WRONG)
def test_a_wrong_selection_is_refused(world: World, job_id: str, query: str) -> None:
    answer = world.client.get(f"/api/v1/jobs/{job_id}/logs?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == f"/query/{query.partition('=')[0]}"


def test_a_tail_is_as_long_as_asked_when_one_worker_wrote_little(world: World, job_id: str) -> None:
    world.write_log(job_id, "".join(f"line {n}\n" for n in range(20)))
    world.write_log(job_id, "hello\n", "1/g1/local-1/log")
    os.utime(world.root / job_id / "attempts/1/replica-0/1/g1/local-1/log", (1, 1))
    for count in (1, 2, 7, 20):
        assert len(read(world, job_id, f"tail={count}")) == count
    assert read(world, job_id, "tail=2")[-1] == "[a1 g1 r0/0] line 19", "the worker that wrote last is printed last"


def test_an_unknown_rank_is_named_in_the_error(world: World, job_id: str) -> None:
    world.write_log(job_id, "zero\n")
    answer = world.client.get(f"/api/v1/jobs/{job_id}/logs?rank=9")
    assert answer.status_code == 404
    assert "no log of rank 9" in answer.json()["detail"]


def test_the_whole_log_has_every_line_and_takes_little_memory(world: World, job_id: str) -> None:
    """50 MB, as `orchestrator logs` and the page's download read it."""
    lines = [f"line {number} {'x' * 500}" for number in range(100_000)]
    world.write_log(job_id, "".join(f"{line}\n" for line in lines))
    world.write_log(job_id, "hello\n", "1/g1/local-1/log")
    os.utime(world.root / job_id / "attempts/1/replica-0/1/g1/local-1/log", (1, 1))
    found = read(world, job_id, "whole=true")
    assert found[0] == "[a1 g1 r0/1] hello"
    assert found[1:] == [f"[a1 g1 r0/0] {line}" for line in lines]
    assert read(world, job_id, "whole=true&grep=line 99999 ") == [f"[a1 g1 r0/0] {lines[-1]}"]
    assert read(world, job_id, "whole=true&grep=nowhere") == []


def test_an_answer_says_if_older_lines_did_not_fit(world: World, job_id: str) -> None:
    line = "x" * 60_000
    world.write_log(job_id, f"{line}\n" * 1000)
    found = read(world, job_id, "tail=1000")
    assert found[0] == "[older lines are left out here: they do not fit into one answer]"
    assert set(found[1:]) == {line}
    assert 200 < len(found) < 1000
    assert read(world, job_id, "tail=20") == [line] * 20
    world.write_log(job_id, f"found\n{line}\n" * 1200)  # more than a search reads
    assert read(world, job_id, "tail=2000&grep=found")[0].startswith("[older lines are left out")
    assert set(read(world, job_id, "tail=20&grep=found")) == {"found"}


def test_a_whole_log_of_an_unknown_job_or_of_none_started(world: World) -> None:
    assert world.client.get("/api/v1/jobs/nothing-0000/logs?whole=true").status_code == 404
    assert read(world, world.submit(), "whole=true") == []
