"""An exception of an agent: a launch failure if it cannot start here at all, otherwise an infrastructure failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.harness import ROOT, STEADY, Job
from trainer.contract.failure import FailureKind
from trainer.elastic.agent_error import explain_exception


@pytest.mark.parametrize(
    "error", [ImportError("no such name"), TypeError("takes 2 arguments"), AttributeError("gone"), SyntaxError("here")]
)
def test_a_code_error_before_any_worker_is_a_launch_failure(error: Exception) -> None:
    failure = explain_exception(error, began=False)
    assert failure.kind is FailureKind.LAUNCH
    assert failure.message.startswith("the agent cannot start with Python 3")
    assert f"{type(error).__name__}: {error}" in failure.message
    assert explain_exception(error, began=True).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("the store does not answer")])
def test_an_error_of_the_machine_is_an_infrastructure_failure(error: Exception) -> None:
    assert explain_exception(error, began=False).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("raise TypeError(\"__init__() got an unexpected keyword argument 'backend'\")", "keyword argument 'backend'"),
        ("__version__ = '99.1'", "torch 99.1"),
    ],
    ids=["raises", "lacks what the agent needs"],
)
def test_an_agent_with_the_wrong_torch_writes_an_exit_record_of_a_launch_failure(
    job: Job, tmp_path: Path, torch: str, words: str
) -> None:
    (tmp_path / "wrong" / "torch").mkdir(parents=True)
    (tmp_path / "wrong" / "torch" / "__init__.py").write_text(torch)
    agent = job.policy(max_restarts=3).start(STEADY, "never", PYTHONPATH=f"{tmp_path / 'wrong'}:{ROOT}")
    assert agent.wait() == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert (failure.kind, words in failure.message) == (FailureKind.LAUNCH, True), failure.message
    assert not agent.events("generation.started")
