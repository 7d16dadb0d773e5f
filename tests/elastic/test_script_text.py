"""What the launcher finds in a script's text before its start."""

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
def test_the_local_rank_argument_is_spelled_as_the_script_expects(tmp_path: Path, spelling: str, text: str) -> None:
    text = f"{text}parser.add_argument('{spelling}', type=int)"
    settled, advice = settle_rank_argument(command(tmp_path, text, PASSED, "--lr=1"))
    assert (settled[3:], advice) == ((PASSED.replace("--local-rank", spelling), "--lr=1"), None)


@pytest.mark.parametrize(
    ("text", "has_advice"),
    [
        ("add_argument('--local_rank', default=0)", True),
        ("add_argument('--local_rank', default=os.environ.get('LOCAL_RANK'))", False),
        ("print(1)", False),
    ],
)
def test_only_a_script_that_never_gets_its_local_rank_gets_advice(tmp_path: Path, text: str, has_advice: bool) -> None:
    _, advice = settle_rank_argument(command(tmp_path, text))
    assert (advice is not None) == has_advice


@pytest.mark.parametrize(
    ("text", "has_advice"),
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
def test_several_workers_at_the_scripts_own_address_get_advice(tmp_path: Path, text: str, has_advice: bool) -> None:
    assert (advise_on_address(command(tmp_path, text), 2) is not None) == has_advice
    assert advise_on_address(command(tmp_path, text), 1) is None
