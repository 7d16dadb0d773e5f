"""The workers' logs are printed line by line, each with a prefix that names its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.contract.printed import Writer, parse_printed, parse_printed_sample
from trainer.elastic.workers import echo
from trainer.elastic.workers.echo import Echo, find_logs


def log(folder: Path, incarnation: int, generation: int, local_rank: int, text: str, *, mode: str = "a") -> Path:
    path = folder / f"{incarnation}/g{generation}/local-{local_rank}/log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(text)
    return path


def lines(printed: list[bytes]) -> list[tuple[Writer, bytes]]:
    found = [parse_printed(line) for line in b"".join(printed).splitlines()]
    return [each for each in found if each is not None]


def test_complete_lines_are_printed_once_and_an_incomplete_one_at_the_end(tmp_path: Path) -> None:
    printed: list[bytes] = []
    echo = Echo(tmp_path, printed.append)
    log(tmp_path, 1, 1, 0, "one\ntw")
    log(tmp_path, 1, 1, 1, "other\n")
    echo.look()
    log(tmp_path, 1, 1, 0, "o\nthree")
    echo.look()
    echo.look()
    zero, one = Writer(1, 1, 0), Writer(1, 1, 1)
    assert lines(printed) == [(zero, b"one"), (one, b"other"), (zero, b"two")]
    echo.look(final=True)
    echo.look(final=True)
    assert lines(printed)[3:] == [(zero, b"three")]


def test_a_truncated_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    printed: list[bytes] = []
    echo = Echo(tmp_path, printed.append)
    log(tmp_path, 1, 1, 0, "a long line of the first half\n")
    echo.look()
    log(tmp_path, 1, 1, 0, "new\n", mode="w")
    echo.look()
    assert [text for _, text in lines(printed)] == [b"a long line of the first half", b"new"]


def test_only_the_newest_generations_of_the_newest_incarnation_are_printed(tmp_path: Path) -> None:
    for incarnation, generation in ((1, 9), (2, 1), (2, 9), (2, 10)):
        log(tmp_path, incarnation, generation, 0, "x\n")
    (tmp_path / "agent.log").write_text("not of a worker\n")
    assert [writer for writer, _ in find_logs(tmp_path)] == [Writer(2, 9, 0), Writer(2, 10, 0)]
    assert list(find_logs(tmp_path / "missing")) == []


def test_a_very_long_line_is_printed_in_pieces_and_old_output_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echo, "_MOST_BYTES", 64)
    monkeypatch.setattr(echo, "_LONGEST_LINE", 32)
    monkeypatch.setattr(echo, "_MOST_BEHIND", 640)
    printed: list[bytes] = []
    echoing = Echo(tmp_path, printed.append)
    log(tmp_path, 1, 1, 0, "x" * 100)
    while echoing.look():
        pass
    assert [text for _, text in lines(printed)] == [b"x" * 32, b"x" * 32]
    log(tmp_path, 1, 1, 0, "y" * 1000 + "\n")
    while echoing.look():
        pass
    assert b"bytes are skipped here)" in b"".join(printed)
    assert lines(printed)[-1][1].endswith(b"y")


def test_closing_prints_all_output(tmp_path: Path) -> None:
    printed: list[bytes] = []
    echo = Echo(tmp_path, printed.append)
    echo.start()
    log(tmp_path, 1, 1, 0, "one\nand a last line without end")
    echo.close()
    assert [text for _, text in lines(printed)] == [b"one", b"and a last line without end"]


def test_the_newest_sample_is_printed_once_and_rarely(tmp_path: Path) -> None:
    printed: list[bytes] = []
    now_s = 0.0
    echo = Echo(tmp_path, printed.append, monotonic=lambda: now_s)
    (tmp_path / "7").mkdir()
    path = tmp_path / "7" / "resources.jsonl"
    path.write_text('{"at": 1}\n{"at": 2}\n{"at":')
    echo.look()
    now_s = 20.0
    echo.look()
    assert [parse_printed_sample(each.rstrip()) for each in printed] == [(7, b'{"at": 2}')]
    path.write_text('{"at": 3}\n')
    echo.look()
    path.write_text('{"at": 4}\n')
    echo.look()
    assert printed[1:] == [b'[i7 resources] {"at": 3}\n'], "the next one comes 15 seconds later"
    echo.look(final=True)
    echo.look(final=True)
    assert printed[2:] == [b'[i7 resources] {"at": 4}\n']


@pytest.mark.parametrize("planted", [b"x" * 200_000 + b"\xff\n", b"{" + b"x" * 20_000 + b"\n", b"\n", b"{", b""])
def test_what_a_job_writes_in_place_of_samples_is_not_printed(tmp_path: Path, planted: bytes) -> None:
    printed: list[bytes] = []
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "resources.jsonl").write_bytes(planted)
    Echo(tmp_path, printed.append).look()
    assert printed == []
