"""A generation finds what the previous one has compiled."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import Job, wait_for

COMPILED = """
import os, time, torch
from torch._dynamo.utils import counters
function = torch.compile(lambda x: torch.sin(x) * 2 + x)
function(torch.ones(8))
print("hits", counters["inductor"]["fxgraph_cache_hit"], flush=True)
if os.environ["ORCHESTRATOR_GENERATION"] == "1":
    time.sleep(600)
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_restart_does_not_compile_again(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    agent = job.policy(max_restarts=1).start(str(script))
    pid = agent.pids(1)[0]
    wait_for(lambda: "hits" in agent.log(1), "the first compilation", 120)
    os.kill(pid, signal.SIGKILL)
    assert agent.wait(120) == 0
    assert ("hits 0" in agent.log(1), "hits 1" in agent.log(2)) == (True, True), agent.log(1) + agent.log(2)
    assert list((job.folder / "cache" / "inductor").iterdir())
