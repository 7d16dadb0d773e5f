"""Which death an out-of-memory kill explains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.contract.failure import FailureKind
from trainer.elastic import causes
from trainer.elastic.causes import Causes
from trainer.elastic.health import oom
from trainer.elastic.health.postmortem import Death


@pytest.mark.parametrize(
    ("kills", "spares", "kind"),
    [
        (0, 0, FailureKind.UNKNOWN),
        (1, 0, FailureKind.HOST_OOM),
        (1, 1, FailureKind.UNKNOWN),
        (2, 1, FailureKind.HOST_OOM),
        (0, 1, FailureKind.UNKNOWN),
    ],
)
def test_the_kill_of_a_spare_does_not_explain_the_death_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, spares: int, kind: FailureKind
) -> None:
    counted, ended = [5], [2]  # of earlier generations
    monkeypatch.setattr(causes, "read_oom_kills", lambda: counted[0])
    monkeypatch.setattr(oom, "read_oom_kills", lambda: counted[0])
    own = Causes(None, None, lambda: ended[0])
    own.begin()
    counted[0] += kills
    ended[0] += spares
    local: Any = SimpleNamespace(processes={0: None})
    death = Death(rank=0, local_rank=0, exit_code=-9, folder=tmp_path)
    assert own.find([death], {}, local).kind is kind
