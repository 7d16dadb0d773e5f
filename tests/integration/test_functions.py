"""Python functions as jobs, with a real service and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.client.functions import FunctionFailed, submit_function
from orchestrator.domain.errors import Refused
from orchestrator.domain.job.job import JobState
from trainer.contract.function_call import FunctionCall, pack, unpack

# What people write: a file that is run, with its function in `__main__` and a module of their own beside it.
_SCRIPT = """
import os
import threading
from orchestrator.client.functions import submit_function
from helper import double

LOCK = threading.Lock()  # not used by the function, so it does not travel

def train(x, *, y):
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
    return {"rank": int(os.environ["RANK"]), "sum": double(x) + y}

if __name__ == "__main__":
    job = submit_function(train, (20,), {"y": 2}, workers_per_node=2)
    print(job.result())
    print(job.logs())
"""


def test_a_function_of_a_script_runs_on_every_rank_and_returns_its_value(
    service: ThrowawayService, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_SCRIPT)
    (tmp_path / "helper.py").write_text("def double(x): return 2 * x\n")
    environment = {**os.environ, "ORCHESTRATOR_URL": service.url}
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'rank': 0, 'sum': 42}\n")
    assert "rank 1 of 2" in done.stdout


def test_a_function_that_raises_fails_its_job_with_its_traceback(client: Client, tmp_path: Path) -> None:
    def broken() -> None:
        raise KeyError("labels")

    fast = {"run": {"workdir": str(tmp_path)}, "supervise": {"budgets": {"application": 0}}}
    job = submit_function(broken, client=client, spec=fast)
    with pytest.raises(FunctionFailed, match="KeyError: 'labels'") as failed:
        job.result(300)
    assert failed.value.job.state is JobState.FAILED
    assert "KeyError" in str(job.exception(300))
    assert job.done()


def test_a_value_without_json_is_named(client: Client, tmp_path: Path) -> None:
    job = submit_function(lambda: {1, 2}, client=client, spec={"run": {"workdir": str(tmp_path)}})
    with pytest.raises(FunctionFailed, match="its value is not JSON: Object of type set is not JSON serializable"):
        job.result(300)
    assert job.exception(300) is None


def test_what_cannot_be_pickled_is_refused() -> None:
    lock, data = os.scandir("."), os.urandom(40_000)
    with lock, pytest.raises(Refused, match="cannot be pickled"):
        submit_function(lambda: lock)
    with pytest.raises(Refused, match=r"take \d+ characters, at most 32000; move code into a module"):
        submit_function(len, (data,))


class Awkward:
    def __reduce__(self) -> str:
        raise RuntimeError("not today")


def test_what_is_no_function_or_replaces_it_is_refused() -> None:
    with pytest.raises(Refused, match="5 is not a function"):
        submit_function(5)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"run.args is set by the function"):
        submit_function(len, spec={"run": {"args": ["zz"]}})
    with pytest.raises(Refused, match="cannot be pickled: not today"):
        submit_function(len, (Awkward(),))


def test_a_function_of_another_python_is_refused_by_the_worker() -> None:
    text = pack(FunctionCall(max, (1, 2), {}))
    assert unpack(text).function is max
    with pytest.raises(ValueError, match=r"the function is from Python 2\.7, this is Python 3"):
        unpack("2.7:" + text.partition(":")[2])
