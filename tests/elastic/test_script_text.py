"""What a launcher reads in a script before it starts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer.elastic.workers.script_text import advise_on_address, settle_rank_argument

PASSED = "--local-rank=${local_rank}"


def command(folder: Path, text: str, *arguments: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(text)
    return [sys.executable, "-u", str(script), *arguments]


@pytest.mark.parametrize("text", ["", "rank = os.environ['LOCAL_RANK']\n"])
@pytest.mark.parametrize("spelling", ["--local-rank", "--local_rank"])
def test_the_rank_is_spelled_as_the_script_asks(tmp_path: Path, spelling: str, text: str) -> None:
    asks = f"{text}parser.add_argument('{spelling}', type=int)"
    settled, advice = settle_rank_argument(command(tmp_path, asks, PASSED, "--lr=1"))
    assert (settled[3:], advice) == ((PASSED.replace("--local-rank", spelling), "--lr=1"), None)


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("add_argument('--local_rank', default=0)", True),
        ("add_argument('--local_rank', default=os.environ.get('LOCAL_RANK'))", False),
        ("print(1)", False),
    ],
)
def test_only_a_script_that_asks_in_vain_is_told(tmp_path: Path, text: str, is_told: bool) -> None:
    _, advice = settle_rank_argument(command(tmp_path, text))
    assert (advice is not None) == is_told


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("os.environ['MASTER_PORT'] = '12355'", True),
        ("os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='12355')", True),
        ("dist.init_process_group('gloo', init_method='tcp://127.0.0.1:23456', rank=rank)", True),
        ("os.environ.setdefault('MASTER_PORT', '12355')", False),
        ("if 'MASTER_PORT' not in os.environ: os.environ['MASTER_PORT'] = '12355'", False),
        ("os.environ['MASTER_PORT'] = os.environ.get('MASTER_PORT', '12355')", False),
        ("dist.init_process_group('gloo', init_method='env://')", False),
    ],
)
def test_an_address_of_its_own_is_no_place_for_several_workers(tmp_path: Path, text: str, is_told: bool) -> None:
    assert (advise_on_address(command(tmp_path, text), 2) is not None) == is_told
    assert advise_on_address(command(tmp_path, text), 1) is None
