"""`make bench`: what is run, what is written into the page, and what is left alone. No timing is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import yardstick
from benchmarks.__main__ import measure_all
from benchmarks.control_plane.__main__ import keeps_limits
from benchmarks.report import catalogue, tables, training
from benchmarks.report.catalogue import BENCHMARKS, Arguments, Benchmark
from benchmarks.report.running import BenchmarkBroke, Measured, run
from deploy.dev.sections import NoSection, list_sections, read_section, replace_section

ROOT = Path(__file__).parents[2]
PAGE = """# Figures
Words.

<!-- made: one -->
old
<!-- end: one -->
More words.
<!-- made: two -->
older
<!-- end: two -->
"""


def make_benchmark(name: str, **more: Any) -> Benchmark:
    given: dict[str, Any] = {"full": (("--runs", "9"),), "quick": (("--runs", "1"),), "render": render_lines}
    return Benchmark(name=name, **(given | more))


def render_lines(documents: Any) -> list[str]:
    return [f"| {document['seconds']} s |" for document in documents]


class FakeRunner:
    """Answers with what it was given for a benchmark; `None` breaks."""

    def __init__(self, seconds: Mapping[str, float | None], *, kept: bool = True) -> None:
        self.asked: list[tuple[str, Arguments]] = []
        self._seconds, self._kept = seconds, kept

    def __call__(self, name: str, arguments: Arguments) -> Measured:
        self.asked.append((name, arguments))
        seconds = self._seconds[name]
        if seconds is None:
            raise BenchmarkBroke("it broke")
        command = " ".join(["python", "-m", f"benchmarks.{name}", *arguments])
        return Measured(command=command, document={"seconds": seconds}, kept=self._kept)


@pytest.fixture(autouse=True)
def short_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "_ADDITIONS", 10)
    monkeypatch.setattr(yardstick, "_OBJECTS", 10)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_every_benchmark_has_one_section_on_the_page_and_there_is_no_other() -> None:
    sections = list_sections((ROOT / "docs" / "benchmarks.md").read_text())
    assert sorted(sections) == sorted(benchmark.name for benchmark in BENCHMARKS)
    for name in sections:
        assert read_section((ROOT / "docs" / "benchmarks.md").read_text(), name)


def test_a_section_is_replaced_and_all_words_around_it_stay() -> None:
    assert replace_section(PAGE, "one", "new\n") == PAGE.replace("\nold\n", "\n\nnew\n\n")
    assert read_section(replace_section(PAGE, "one", "new"), "one") == "new"
    again = replace_section(replace_section(PAGE, "one", "first"), "one", "second")
    assert again == replace_section(PAGE, "one", "second")


@pytest.mark.parametrize(
    "page",
    [
        PAGE.replace("<!-- made: one -->", ""),
        PAGE.replace("<!-- end: one -->", ""),
        PAGE + "<!-- made: one -->\n<!-- end: one -->\n",
        "<!-- end: one -->\n<!-- made: one -->\n",
    ],
    ids=["no beginning", "no end", "two of them", "the wrong way round"],
)
def test_a_page_without_one_place_for_a_section_is_refused(page: str) -> None:
    with pytest.raises(NoSection, match="one"):
        replace_section(page, "one", "new")


def test_a_section_says_when_on_what_by_which_commands_and_what_came_out(page: Path) -> None:
    runner = FakeRunner({"one": 3.5})
    assert list(measure_all([make_benchmark("one")], page, quick=False, runner=runner)) == []
    section = read_section(page.read_text(), "one")
    for words in ("Measured 20", "Load average", "yardstick", "cores", "Python 3", "torch 2", "commit"):
        assert words in section
    assert section.endswith("\n\n    python -m benchmarks.one --runs 9\n\n| 3.5 s |")
    assert read_section(page.read_text(), "two") == "older"


def test_a_benchmark_that_breaks_leaves_its_section_and_the_next_one_runs(page: Path) -> None:
    runner = FakeRunner({"one": None, "two": 2.0})
    both = [make_benchmark("one"), make_benchmark("two")]
    assert list(measure_all(both, page, quick=False, runner=runner)) == ["one"]
    assert read_section(page.read_text(), "one") == "old"
    assert "| 2.0 s |" in read_section(page.read_text(), "two")


def test_a_limit_that_was_missed_stands_in_the_section_and_is_named(page: Path) -> None:
    runner = FakeRunner({"one": 3.5}, kept=False)
    assert list(measure_all([make_benchmark("one")], page, quick=False, runner=runner)) == ["one"]
    assert "**A limit was not kept.**" in read_section(page.read_text(), "one")


def test_a_machine_that_lacks_something_leaves_that_benchmark_out(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = FakeRunner({})
    lacking = make_benchmark("one", missing=lambda: "no rope here")
    assert list(measure_all([lacking], page, quick=False, runner=runner)) == []
    assert (runner.asked, page.read_text()) == ([], PAGE)
    assert "one: left out, no rope here" in capsys.readouterr().err


def test_a_section_may_be_made_by_another_benchmarks_program(page: Path) -> None:
    runner = FakeRunner({"two": 2.0})
    assert list(measure_all([make_benchmark("one", module="two")], page, quick=False, runner=runner)) == []
    assert runner.asked == [("two", ("--runs", "9"))]
    assert "| 2.0 s |" in read_section(page.read_text(), "one")


def test_a_machine_without_a_gpu_leaves_out_what_is_measured_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = [benchmark for benchmark in BENCHMARKS if benchmark.name.endswith("_gpu")]
    assert all("cuda" in arguments for benchmark in on_gpu for arguments in (*benchmark.full, *benchmark.quick))
    monkeypatch.setattr(catalogue, "list_gpus", list)
    assert {benchmark.missing() for benchmark in on_gpu} == {"nvidia-smi names no GPU here"}
    monkeypatch.setattr(catalogue, "list_gpus", lambda: ["NVIDIA H100 80GB HBM3"])
    assert {benchmark.missing() for benchmark in on_gpu} == {None}


def test_quick_runs_are_small_and_printed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = FakeRunner({"one": 3.5}, kept=False)
    assert list(measure_all([make_benchmark("one")], None, quick=True, runner=runner)) == []
    assert runner.asked == [("one", ("--runs", "1"))]
    assert "## one\n" in (printed := capsys.readouterr().out)
    assert "| 3.5 s |" in printed


def test_a_command_is_run_and_its_object_read() -> None:
    measured = run("simulate_ettr", ("--seeds", "1", "--days", "0.2", "--jobs", "0", "--gpus", "64"))
    assert measured.command == "python -m benchmarks.simulate_ettr --json --seeds 1 --days 0.2 --jobs 0 --gpus 64"
    assert measured.kept
    assert measured.document["64 GPUs"]["seeds"] == 1
    assert tables.render_simulate_ettr([measured.document])[2].startswith("| 64 GPUs | 1 | ")


def test_a_command_without_an_object_is_broken() -> None:
    with pytest.raises(BenchmarkBroke, match="--nonsense ended with 2 and no JSON object"):
        run("startup", ("--nonsense",))


def test_recovery_tells_each_launcher_beside_ours_of_the_same_run() -> None:
    ours = {"kills": 4, "recovered": 4, "p50_s": 0.2, "p95_s": 0.25, "p99_s": None, "steps_redone": 6.3}
    safe = {**ours, "p50_s": 3.1}
    never = {**ours, "recovered": 0, "p50_s": None, "p95_s": None, "steps_redone": None}
    document = {"elastic": ours, "torchrun_safe": safe, "torchrun": never}
    lines = training.render_recovery([document] * 3)
    assert lines[2] == "| bundled trainer, DDP | elasticrun | 4 of 4 | 0.2 s | 0.25 s |  | 6.3 | 1.0 |"
    assert lines[3] == "| bundled trainer, DDP | torchrun, safe settings | 4 of 4 | 3.1 s | 0.25 s |  | 6.3 | 15.5 |"
    assert lines[4] == "| bundled trainer, DDP | torchrun, defaults | 0 of 4 |  |  |  |  |  |"
    assert len(lines) == 2 + 3 * 3


def test_recovery_tells_where_the_time_went_of_the_programs_that_know() -> None:
    parts = {"process_s": 1.0, "verify_s": 0.1, "device_s": 2.5, "load_s": 0.4, "first_step_s": 0.3}
    told = {"kills": 2, "recovered": 2, "p50_s": 4.0, "p95_s": 4.0, "p99_s": 4.0, "steps_redone": 5.0}
    ours = {**told, "split": {"kills": 2, "notice_s": 0.05, **parts}}
    safe = {**told, "split": {"kills": 2, "notice_s": None, **parts}}
    lines = training.render_recovery([{"elastic": ours, "torchrun_safe": safe}, {"elastic": told}, {"elastic": told}])
    assert lines[-2:] == [
        "| bundled trainer, DDP, elasticrun | 0.05 s | 1 s | 0.1 s | 2.5 s | 0.4 s | 0.3 s |",
        "| bundled trainer, DDP, torchrun, safe settings |  | 1 s | 0.1 s | 2.5 s | 0.4 s | 0.3 s |",
    ]


def test_the_trainer_is_told_beside_the_loop_by_hand() -> None:
    told = {
        "strategy": "ddp", "rounds": 20, "steps": [90, 88], "load_before": 0.2, "ours_ms": 50.5, "handwritten_ms": 52.0,
        "ratio": 1.03, "quartiles": [0.99, 1.05], "ours_cpu_ms": 99.0, "handwritten_cpu_ms": 100.0, "cpu_ratio": 1.01,
    }  # fmt: skip
    row = training.render_trainer([{"ddp": told}])[-1]
    assert row == "| ddp | 20 | 50.5 ms | 52.0 ms | 1.03 | 0.99 to 1.05 | 99.0 ms | 100.0 ms | 1.01 |"


def test_the_trainer_on_a_gpu_is_told_in_tokens_and_by_its_peak() -> None:
    told = {
        "strategy": "fsdp", "rounds": 12, "ours_tokens_per_s": 72900, "handwritten_tokens_per_s": 73010,
        "ours_mfu": 0.528, "handwritten_mfu": None, "ratio": 0.998, "quartiles": [0.997, 1.001], "limit": 0.99,
    }  # fmt: skip
    lines = training.render_trainer_gpu([{"plain": {**told, "strategy": "plain"}}, {"fsdp": told}])
    assert len(lines) == 4
    assert lines[-1] == "| fsdp | 12 | 72,900 tokens/s | 73,010 tokens/s | 52.8% |  | 0.998 | 0.997 to 1.001 | 0.99 |"


def test_a_snapshots_stall_is_told_beside_the_others() -> None:
    ours = {"stall_s": 0.2, "stalls_s": [0.1, 0.2, 0.4], "excess_s": 0.3, "in_all_s": 4.0}
    summary = {
        "strategy": "ddp", "parameters": 113_700_000, "quiet_step_s": 1.5, "times_shorter": 10.0,
        "baseline": "torch.save", "compared": "ours, staged", "measure": "stall", "limit": 5.0, "verify_s": 0.7,
        "kinds": {"torch.save": {**ours, "stall_s": 2.0}, "ours, staged": ours},
    }  # fmt: skip
    lines = training.render_snapshot([{"machine": "", "rounds": 3, "strategies": [summary]}])
    assert lines[2] == "| ddp | torch.save | 2 s | 0.1 s | 0.4 s | 10.0 | 0.3 s | 4 s |"
    assert "the stall of `ours, staged` is 10.0 times shorter than that of torch.save, limit 5" in lines[-1]


def test_lost_nodes_are_told_by_how_they_were_lost_and_a_split_is_never_hidden() -> None:
    nothing = {"n": 0, "p50_s": None, "max_s": None}
    some = {"n": 3, "p50_s": 6.612, "max_s": 6.889}
    document = {
        "nodes": 2,
        "passed": False,
        "split": "step 7",
        "loss_by_kill": nothing,
        "loss_by_cut": some,
        "join": some,
    }
    lines = tables.render_nodes([document])
    assert lines[2:4] == [
        "| 2 | lost by a silent network | 3 | 6.61 s | 6.89 s |",
        "| 2 | joins | 3 | 6.61 s | 6.89 s |",
    ]
    assert lines[-1] == "Two worlds that trained at one time: step 7."


def test_the_control_plane_is_told_by_database() -> None:
    requests = {"n": 300, "refused": 0, "per_s": 486.2, "p50_ms": 1.31, "p95_ms": 6.0, "p99_ms": 9.24}
    times = {"n": 5, "cpu_s": 1.9, "cpu_min_s": 1.8, "cpu_max_s": 2.1, "wall_s": 2.2}
    parts = {
        "submissions": {"sequential": requests, "16 clients": requests, "at rest": {}, "load_before": 0.5},
        "1000 jobs": {
            "stored": 1000,
            "list": requests,
            "show": requests,
            "memory": {"rss_mb": 120.5, "peak_mb": 130.0},
        },
        "pass over 50 jobs": {"quiet": times, "load_before": 0.5},
    }
    lines = tables.render_control_plane([{"machine": {}, "sqlite": parts}])
    assert "| sqlite, sequential | 300 | 486 | 1.31 ms | 6 ms | 9.24 ms | 0 |" in lines
    assert "| sqlite, 1000 jobs: show | 300 | 486 | 1.31 ms | 6 ms | 9.24 ms | 0 |" in lines
    assert "| sqlite, 50 jobs: quiet | 5 | 1.9 s | 1.8 s | 2.1 s | 2.2 s |" in lines
    assert lines[-1] == "| sqlite, 1000 jobs | 120.5 MB | 130.0 MB |"


def test_what_others_cost_a_request_is_told_by_database() -> None:
    requests = {"n": 300, "refused": 0, "per_s": 20.0, "p50_ms": 1.31, "p95_ms": 6.0, "p99_ms": 9.24}
    measured = {**requests, "pass_ms": 16.1}
    followers = {"alone": measured, "beside 200": measured, "p95_grows_by": 0.047, "passes_grow_by": -0.016}
    identity = {name: {**requests, "cpu_ms": 2.6} for name in ("open", "admin", "viewer")}
    identity |= {"share_of_admins_token": 0.06, "share_of_viewers_token": -0.048}
    parts = {"1000 jobs": {"identity": identity}, "followers": {**followers, "load_before": 0.5}}
    lines = tables.render_followers([{"machine": {}, "postgresql": {"server": "15.18", **parts}}])
    assert "| postgresql, alone | 300 | 20 | 1.31 ms | 6 ms | 9.24 ms | 0 | 16.1 ms |  |" in lines
    assert "| postgresql, beside 200 | 300 | 20 | 1.31 ms | 6 ms | 9.24 ms | 0 | 16.1 ms | +5%, -2% |" in lines
    assert "| postgresql, 1000 jobs: open | 300 | 20 | 1.31 ms | 6 ms | 9.24 ms | 0 | 2.6 ms |  |" in lines
    assert lines[-1] == "| postgresql, 1000 jobs: viewer | 300 | 20 | 1.31 ms | 6 ms | 9.24 ms | 0 | 2.6 ms | -5% |"


@pytest.mark.parametrize(
    ("grown", "share", "kept"), [(0.24, 0.09, True), (0.26, 0.0, False), (0.0, 0.11, False), (-0.5, -0.5, True)]
)
def test_followers_and_tokens_have_limits(grown: float, share: float, kept: bool) -> None:
    identity = {"open": {"p50_ms": 9.0}, "share_of_admins_token": share, "share_of_viewers_token": 0.0}
    figures = {
        "machine": {"cores": 2},
        "sqlite": {"1000 jobs": {"identity": identity}},
        "postgresql": {"followers": {"p95_grows_by": 0.0, "passes_grow_by": grown}},
    }
    assert keeps_limits(figures) is kept


def test_no_ratio_is_told_where_ours_took_no_time() -> None:
    ours = {"stall_s": -0.008, "stalls_s": [-0.01, 0.0], "excess_s": 0.1, "in_all_s": 0.2}
    summary = {
        "strategy": "ddp", "parameters": 900_000, "quiet_step_s": 0.2, "times_shorter": 122.0, "baseline": "torch.save",
        "compared": "ours, staged", "measure": "stall", "limit": 5.0, "verify_s": 0.0,
        "kinds": {"torch.save": {**ours, "stall_s": 0.1}, "ours, staged": ours},
    }  # fmt: skip
    lines = training.render_snapshot([{"rounds": 1, "strategies": [summary]}])
    assert lines[2] == "| ddp | torch.save | 0.1 s | -0.01 s | 0 s |  | 0.1 s | 0.2 s |"
