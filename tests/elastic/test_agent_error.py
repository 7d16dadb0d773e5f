"""An agent that cannot start says so, as a launch failure that no other attempt fixes; one that began never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.harness import ROOT, SCRIPTS, Job
from trainer.contract.failure import FailureKind
from trainer.elastic.agent_error import explain_exception

STEADY = str(SCRIPTS / "steady.py")


@pytest.mark.parametrize(
    "error", [ImportError("no such name"), TypeError("takes 2 arguments"), AttributeError("gone"), SyntaxError("here")]
)
def test_an_error_of_the_code_before_any_worker_is_a_failure_to_launch(error: Exception) -> None:
    failure = explain_exception(error, began=False)
    assert failure.kind is FailureKind.LAUNCH
    assert failure.message.startswith("the agent cannot start with Python 3")
    assert f"{type(error).__name__}: {error}" in failure.message
    assert explain_exception(error, began=True).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("the store does not answer")])
def test_what_the_world_did_to_an_agent_may_be_tried_again(error: Exception) -> None:
    assert explain_exception(error, began=False).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("raise TypeError(\"__init__() got an unexpected keyword argument 'backend'\")", "keyword argument 'backend'"),
        ("__version__ = '99.1'", "torch 99.1"),
    ],
    ids=["raises", "lacks what the agent needs"],
)
def test_an_agent_whose_torch_is_the_wrong_one_leaves_a_record_of_a_failed_launch(
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
