"""`make bench`: what it runs, what it writes to the page, and what it leaves unchanged. No time is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks.__main__ as bench
from benchmarks import yardstick
from benchmarks.__main__ import BENCHMARKS, PAGE, Benchmark, BenchmarkFailed, measure_all
from benchmarks.frame import render_number, render_ratio
from deploy.dev.sections import NoSection, list_sections, read_section, replace_section

ROOT = Path(__file__).parents[2]
TEXT = """# Figures
Words.

<!-- made: one -->
old
<!-- end: one -->
More words.
<!-- made: two -->
older
<!-- end: two -->
"""
# The exit status by name: 1 is a missed limit, None a program that prints no table.
PROGRAMS = {"one": 0, "two": 1, "broken": None}


@pytest.fixture(autouse=True)
def short_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "_ADDITIONS", 10)
    monkeypatch.setattr(yardstick, "_OBJECTS", 10)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with two sections, and programs below the package `benchmarks`."""
    (tmp_path / "benchmarks").mkdir()
    for name, status in PROGRAMS.items():
        text = "raise SystemExit(3)" if status is None else f"print('| 3.5 s |')\nraise SystemExit({status})"
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "page.md"
    path.write_text(TEXT)
    return path


def some(*names: str) -> Iterator[Benchmark]:
    return (Benchmark(name, name, "", "--quick") for name in names)


def test_make_bench_runs_every_benchmark() -> None:
    files = [*(ROOT / "benchmarks").glob("*/__main__.py"), *(ROOT / "benchmarks").glob("*.py")]
    found = {
        file.parent.name if file.name == "__main__.py" else file.stem
        for file in files
        if "build_parser(" in file.read_text() and file.stem != "frame"  # starting each would take a minute
    }
    assert {benchmark.module for benchmark in BENCHMARKS} == found


def test_every_benchmark_has_one_section_on_the_page_and_no_other_exists() -> None:
    sections = list_sections(PAGE.read_text())
    assert sorted(sections) == sorted(benchmark.name for benchmark in BENCHMARKS)
    assert all(read_section(PAGE.read_text(), name) for name in sections)


def test_a_section_is_replaced_and_the_text_around_it_is_kept() -> None:
    assert replace_section(TEXT, "one", "new\n") == TEXT.replace("\nold\n", "\n\nnew\n\n")
    assert read_section(replace_section(TEXT, "one", "new"), "one") == "new"
    again = replace_section(replace_section(TEXT, "one", "first"), "one", "second")
    assert again == replace_section(TEXT, "one", "second")


@pytest.mark.parametrize(
    "page",
    [
        TEXT.replace("<!-- made: one -->", ""),
        TEXT.replace("<!-- end: one -->", ""),
        TEXT + "<!-- made: one -->\n<!-- end: one -->\n",
        "<!-- end: one -->\n<!-- made: one -->\n",
    ],
    ids=["no beginning", "no end", "two of them", "the wrong way round"],
)
def test_a_page_must_have_exactly_one_place_for_a_section(page: str) -> None:
    with pytest.raises(NoSection, match="one"):
        replace_section(page, "one", "new")


def test_a_section_has_date_machine_command_and_results(page: Path) -> None:
    assert list(measure_all(some("one"), page, quick=False)) == []
    section = read_section(page.read_text(), "one")
    for words in ("Measured 20", "Load average", "yardstick", "cores", "Python 3", "torch 2", "commit"):
        assert words in section
    assert section.endswith("\n\n    python -m benchmarks.one\n\n| 3.5 s |")
    assert read_section(page.read_text(), "two") == "older"


def test_a_missed_limit_is_in_the_section_and_reported(page: Path) -> None:
    assert list(measure_all(some("two"), page, quick=False)) == ["two"]
    assert "**A limit was missed.**" in read_section(page.read_text(), "two")


def test_a_failed_benchmark_keeps_its_old_section_and_the_next_one_runs(page: Path) -> None:
    page.write_text(TEXT.replace("two", "broken"))
    assert list(measure_all(some("broken", "one"), page, quick=False)) == ["broken"]
    assert read_section(page.read_text(), "broken") == "older"
    assert "| 3.5 s |" in read_section(page.read_text(), "one")
    with pytest.raises(BenchmarkFailed, match=r"benchmarks.broken ended with 3 and printed no table"):
        bench.run("benchmarks.broken")


def test_quick_runs_are_printed_and_limits_do_not_count(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(measure_all(some("two"), None, quick=True)) == []
    assert page.read_text() == TEXT
    assert "    python -m benchmarks.two --quick\n" in (printed := capsys.readouterr().out)
    assert "| 3.5 s |" in printed


def test_a_machine_without_a_gpu_skips_benchmarks_of_a_gpu(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpu = [benchmark for benchmark in BENCHMARKS if benchmark.name.endswith("_gpu")]
    assert all("--device cuda" in command for each in on_gpu for command in (each.full, each.quick))
    monkeypatch.setattr(yardstick, "list_gpus", lambda: ["NVIDIA H100 80GB HBM3"])
    assert {benchmark.missing() for benchmark in on_gpu} == {None}
    monkeypatch.setattr(yardstick, "list_gpus", list)
    assert list(measure_all(on_gpu, page, quick=False)) == []
    assert page.read_text() == TEXT
    assert "trainer_gpu: skipped, nvidia-smi finds no GPU" in capsys.readouterr().err


def test_cells_have_three_digits_and_are_empty_if_unknown() -> None:
    assert [render_number(value, "s") for value in (0.12345, 12.345, 1234.5, None)] == [
        "0.123 s",
        "12.3 s",
        "1234 s",
        "",
    ]
    assert [render_ratio(3.1, ours) for ours in (0.2, 0.0, None)] == ["15.5", "", ""]
