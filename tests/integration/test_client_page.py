"""The examples of docs/client.md, in order, against a real service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_examples_of_the_page_run(
    service: ThrowawayService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_URL", service.url)
    examples = _EXAMPLE.findall(PAGE.read_text())
    assert len(examples) >= 7
    names: dict[str, object] = {}
    for number, example in enumerate(examples, start=1):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("SUCCEEDED ")
