"""The pages of docs/how-to and docs/guides are listed and can be run, and the runner notices errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.howto.page import GUIDES, HOW_TO, ROOT, PageFailed, matches, read_blocks, run_page

TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_the_tutorial_has_blocks_to_type_and_to_check() -> None:
    kinds = [block.kind for block in read_blocks(TUTORIAL.read_text())]
    assert kinds.count("sh service") == 2, "the service is started twice"
    assert kinds.count("text") >= 8


@pytest.mark.parametrize("page", [*HOW_TO, *GUIDES], ids=lambda page: page.stem)
def test_a_page_is_short_and_has_blocks_to_type_and_to_check(page: Path) -> None:
    text = page.read_text()
    kinds = [block.kind for block in read_blocks(text)]
    assert text.startswith("# ")
    assert len(text.splitlines()) < 170
    assert kinds.count("sh service") >= (page in HOW_TO)
    assert kinds.count("sh") >= 1
    assert kinds.count("text") >= 1
    assert f"{page.parent.name}/{page.name}" in (ROOT / "docs" / "README.md").read_text()


@pytest.mark.parametrize(
    ("stated", "printed"),
    [
        ("a\n", "a"),
        ("a...\n", "abc\n"),
        ("...\n", ""),
        ("...\nb\n", "b\n"),
        ("...\nb\n", "x\ny\nb\n"),
        ("a\n...\nb\n", "a\nb\n"),
        ("a\n...\nb\n", "a\nx\ny\nb\n"),
        ("a\n...\n", "a  \nx\n"),
        ("id-... OK: ...\n", "id-7 OK: done (twice)\n"),
    ],
)
def test_printed_output_is_found(stated: str, printed: str) -> None:
    assert matches(stated, printed)


@pytest.mark.parametrize(
    ("stated", "printed"),
    [("a\n", "b"), ("a\n", "a\nb"), ("a...c\n", "ab"), ("a\n...\nb\n", "a\nx\n"), ("...\nb\n", "xb\n"), ("(a)\n", "a")],
)
def test_other_output_is_noticed(stated: str, printed: str) -> None:
    assert not matches(stated, printed)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\nfalse\n```\n", "a line fails"),
        ("```sh\necho a\n```\n```text\nb\n```\n", "the page says"),
        ("```sh service\nexit 1\n```\n", "does not start"),
        ("```python\n1\n```\n", "neither typed nor checked"),
    ],
)
def test_a_wrong_page_fails(tmp_path: Path, text: str, complaint: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    folder = tmp_path / "terminals"
    folder.mkdir()
    with pytest.raises(PageFailed, match=complaint):
        run_page(page, folder)


def test_variables_of_a_block_stay_for_the_next_one(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "terminals"
    folder.mkdir()
    page.write_text(
        "```sh\nA=1; mkdir b; cd b\nexport C=2\ncat\n```\n```sh\necho $A $C ${PWD##*/}\n```\n```text\n1 2 b\n```\n"
    )
    run_page(page, folder)
