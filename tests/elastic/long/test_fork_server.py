"""Workers from the fork server behave like new interpreters."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from pathlib import Path

import pytest

from tests.elastic.fork_servers import fork_server
from tests.elastic.harness import ROOT, TWO, Agent, Job, alive, elasticrun, wait_for
from trainer.elastic.health.processes import descendants


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def run_script(job: Job, path: Path, text: str, *arguments: str, **environ: str) -> tuple[Agent, str]:
    """Run a job of one worker to its end. Returns the agent and the worker's log."""
    agent = job.policy().start(write(path, text), *arguments, **environ)
    agent.wait(300)
    return agent, agent.log()


def started(agent: Agent) -> dict[str, object]:
    return agent.events("generation.started")[-1]["evidence"]


def test_a_script_finds_the_environment_of_a_new_interpreter(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    write(folder / "helper.py", "VALUE = 7")
    text = """
import __main__, sys, os, json, pickle, torch, helper
class Thing: pass
assert __name__ == "__main__" and __main__.Thing is Thing and pickle.loads(pickle.dumps(Thing())).__class__ is Thing
print(json.dumps({"argv": sys.argv, "path": sys.path[0], "file": __file__, "spec": __spec__ is None,
    "helper": helper.VALUE, "session": os.getsid(0) == os.getpid(),
    "marks": sorted(name for name in os.environ if "FORK" in name or "NVML" in name)}))
"""
    agent, log = run_script(job, folder / "train.py", text, "--lr", "3")
    found = json.loads(log)
    assert found["argv"] == [str(folder / "train.py"), "--lr", "3"]
    assert (found["path"], found["file"], found["spec"]) == (str(folder), str(folder / "train.py"), True)
    assert (found["helper"], found["session"], found["marks"]) == (7, True, [])
    assert started(agent)["fresh"] == {}
    assert int(str(started(agent)["fork_server_rss_bytes"])) > 50e6
    assert float(str(started(agent)["imported_in_s"])) > 0


def test_a_module_runs_as_a_module(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    write(package / "__init__.py", "")
    write(package / "go.py", "import sys; print(__name__, __package__, sys.argv[1:], __spec__.name)")
    monkeypatch.chdir(tmp_path)
    agent = job.policy().start("-m", "mine.go", "a")
    assert agent.wait(300) == 0
    assert agent.log() == "__main__ mine ['a'] mine.go\n"


def test_the_bundled_trainer_prints_only_its_own_error(job: Job) -> None:
    agent = job.policy().start("-m", "trainer", "--config", '{"steps": 0}')
    assert agent.wait(300) == 1
    assert agent.log() == "trainer: steps: is 0, must be at least 1\n"


def test_a_users_package_named_trainer_takes_precedence(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    write(package / "__init__.py", "")
    write(package / "__main__.py", "import trainer; print(trainer.__file__)")
    monkeypatch.chdir(tmp_path)
    agent = job.policy().start("-m", "trainer")
    assert agent.wait(300) == 0
    assert agent.log() == f"{package / '__init__.py'}\n"


def test_each_worker_has_its_own_seeds_and_the_number_of_threads_of_its_environment(job: Job, tmp_path: Path) -> None:
    text = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.get_num_threads())"
    agent = job.policy().start("--nproc-per-node=3", write(tmp_path / "train.py", text))
    assert agent.wait(300) == 0
    printed = [agent.log(1, rank).split() for rank in range(3)]
    assert [len(set(values)) for values in zip(*printed, strict=True)] == [3, 3, 1]
    assert printed[0][2] == "1"


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("sys.exit('bad')", 1), ("1 / 0", 1), ("os.abort()", -6)]
)
def test_an_end_is_reported_as_python_does(job: Job, tmp_path: Path, ending: str, code: int) -> None:
    agent, log = run_script(job, tmp_path / "train.py", f"import os, sys\ndef main():\n    {ending}\nmain()\n")
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.exit_code == code
    assert "forkserver" not in log
    if ending == "1 / 0":
        assert log.startswith('Traceback (most recent call last):\n  File "')
        assert log.count("File ") == 2
        assert failure.message == "ZeroDivisionError: division by zero"


def test_exit_handlers_run_after_the_last_thread(job: Job, tmp_path: Path) -> None:
    text = """
import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""
    _, log = run_script(job, tmp_path / "train.py", text)
    assert log == "thread\nlast\n"


def test_a_destroyed_process_group_is_kept(job: Job, tmp_path: Path) -> None:
    """The destructor of a gloo group can hang while it holds the interpreter lock: trainer/worker/torch_compat.py."""
    text = """
import gc, weakref, torch.distributed as dist
dist.init_process_group("gloo")
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
gc.collect()
print(group() is not None)
"""
    agent, log = run_script(job, tmp_path / "train.py", text)
    assert (agent.process.returncode, log) == (0, "True\n")


def test_a_script_may_fork_and_spawn(job: Job, tmp_path: Path) -> None:
    text = """
import multiprocessing as mp, os, sys, torch
from torch.utils.data import DataLoader
def work(x): return x * 2
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(1) as pool: print(method, pool.map(work, [1, 2]))
    print(sum(int(x.sum()) for x in DataLoader(Squares(), num_workers=2)))
    pid = os.fork()
    if pid == 0: os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    agent, log = run_script(job, tmp_path / "train.py", text)
    assert agent.exit_record().failure is None
    assert log.splitlines() == ["fork [2, 4]", "spawn [2, 4]", "forkserver [2, 4]", "140", "5"]


@pytest.mark.parametrize(
    ("files", "arguments", "because"),
    [
        ({"train.py": "print('ok')", "random.py": "x = 1"}, ["{folder}/train.py"], "has a random of its own"),
        ({"__main__.py": "print('ok')"}, ["{folder}"], "is not a file"),
        ({"go.sh": "echo ok"}, ["--no-python", "sh", "{folder}/go.sh"], "sh is not this Python"),
    ],
)
def test_a_program_that_cannot_be_forked_is_a_new_process_with_a_reason(
    job: Job,
    tmp_path: Path,
    files: dict[str, str],
    arguments: list[str],
    because: str,
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    for name, text in files.items():
        write(folder / name, text)
    agent = job.policy().start(*(argument.format(folder=folder) for argument in arguments))
    assert agent.wait(300) == 0
    assert agent.log() == "ok\n"
    assert because in str(started(agent)["fresh"]["0"])
    assert "rank 0 is a new process, not a fork" in agent.printed()


def test_a_preloaded_module_with_a_thread_makes_forks_unsafe(job: Job, tmp_path: Path) -> None:
    write(tmp_path / "threaded.py", "import threading, time; threading.Thread(target=time.sleep, args=[600]).start()")
    looping = write(tmp_path / "loop.py", "import time; print('up', flush=True); time.sleep(600)")
    agent = job.policy(max_restarts=1).start(looping, PYTHONPATH=f"{ROOT}:{tmp_path}", ORCHESTRATOR_PRELOAD="threaded")
    pid = agent.pids(1)[0]
    server = next(child for child in descendants(agent.process.pid) if child.parent == agent.process.pid)
    wait_for(lambda: len(list(Path(f"/proc/{server.pid}/task").iterdir())) > 1, "the module's thread", 60)
    os.kill(pid, signal.SIGKILL)
    agent.pids(2)
    assert started(agent)["fresh"] == {"0": "a preloaded module runs 1 threads"}


def test_proc_shows_a_workers_own_command_and_ranks(job: Job, tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "import time; print('up', flush=True); time.sleep(600)")
    agent = job.policy().start(TWO, script, "--epochs", "3")
    pids = agent.pids(1)
    wait_for(lambda: agent.log(1, 0) and agent.log(1, 1), "start of both")
    for rank, pid in pids.items():
        process = Path(f"/proc/{pid}")
        assert process.joinpath("cmdline").read_text().rstrip("\0") == f"{sys.executable} -u {script} --epochs 3"
        assert process.joinpath("comm").read_text() == "train.py\n"
        assert f"LOCAL_RANK={rank}" in process.joinpath("environ").read_text().split("\0")


GRANDCHILDREN = """
import os, subprocess, sys, time
inner = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
if os.environ["LOCAL_RANK"] == "0":
    subprocess.Popen([sys.executable, "-c", inner])  # leaves the session, as daemons do
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["keeper", "agent", "server", "worker"])
def test_no_process_outlives_its_worker_or_its_agent(job: Job, tmp_path: Path, victim: str) -> None:
    agent = job.policy(max_restarts=1).start(TWO, write(tmp_path / "train.py", GRANDCHILDREN))
    pids = agent.pids(1)
    wait_for(lambda: len(re.findall(r"^\d+$", agent.log(), re.MULTILINE)) == 2, "both grandchildren")
    everyone = [*pids.values(), *map(int, agent.log().split())]
    server = next(child.pid for child in descendants(agent.process.pid) if child.parent == agent.process.pid)
    victims = {"keeper": agent.process.pid, "agent": agent.agent_pid, "server": server, "worker": pids[1]}
    os.kill(victims[victim], signal.SIGKILL)
    wait_for(lambda: not any(map(alive, everyone)), "end of all")
    if victim != "keeper":
        assert set(agent.pids(2).values()).isdisjoint(everyone), "the group did not restart"
        assert len(agent.events("worker.failed")) == (victim == "worker")
        assert len(agent.events("agent.lost")) == (victim != "worker")


PATIENT = """
import json, os, sys, time, numpy, random
from pathlib import Path
def find_spare():
    for pid in Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split():
        try:
            if Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\\n":
                return pid
        except OSError:
            continue
print(json.dumps({"rank": os.environ["RANK"], "session": os.getsid(0) == os.getpid(), "argv": sys.argv[1:],
    "command": Path("/proc/self/cmdline").read_bytes().split(bytes(1))[0].decode().split()[-1],
    "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"], "oom": Path("/proc/self/oom_score_adj").read_text(),
    "seeds": [random.random(), numpy.random.rand()], "edited": None}), flush=True)
while not (spare := find_spare()):
    time.sleep(0.01)
time.sleep(0.5)
print(spare, flush=True)
sys.exit(1)
"""


def test_a_spare_behaves_like_a_fork(job: Job, tmp_path: Path) -> None:
    """From the second start on each worker is a spare, if it was ready. The script is edited after the first spare."""
    script = tmp_path / "train.py"
    write(script, PATIENT)
    agent = job.policy(max_restarts=8).start(str(script), "a")
    wait_for(lambda: len(agent.log(1).splitlines()) == 2 or agent.log(2), "first spare", 120)
    write(script, PATIENT.replace('"edited": None', '"edited": 7'))
    assert agent.wait(240) == 1
    starts = [event["evidence"] for event in agent.events("generation.started")]
    assert starts[0]["spares"] == [], "there is no spare for the first start"
    by_spare = [number for number, start in enumerate(starts, 1) if start["spares"] == [0]]
    assert by_spare, "a spare was used"
    printed = {number: json.loads(agent.log(number).splitlines()[0]) for number in by_spare}
    usual = json.loads(agent.log(1).splitlines()[0])
    for number, words in printed.items():
        spare = int(agent.log(number - 1).splitlines()[1])
        assert starts[number - 1]["pids"] == {"0": spare}
        assert starts[number - 1]["spare_bytes"] > 1e6
        assert words["restarts"] == str(number - 1)
        same = ("rank", "session", "argv", "command", "oom")
        assert [words[key] for key in same] == [usual[key] for key in same]
        assert words["seeds"][0] != usual["seeds"][0]
        assert words["seeds"][1] != usual["seeds"][1]
    assert printed[by_spare[-1]]["edited"] == 7
    spares = [int(agent.log(number).splitlines()[1]) for number in range(1, len(starts) + 1)]
    assert not any(map(alive, spares)), "unused spares end with the agent"


def test_the_fork_server_ignores_signals_to_the_whole_group(job: Job, tmp_path: Path) -> None:
    """Slurm and a terminal signal every process."""
    script = write(tmp_path / "train.py", "import time; print('up', flush=True); time.sleep(600)")
    agent = job.policy().start(script)
    agent.pids(1)
    wait_for(lambda: agent.log(), "start")
    processes = [agent.process.pid, *(child.pid for child in descendants(agent.process.pid))]
    for pid in processes:
        os.kill(pid, signal.SIGTERM)
    assert agent.wait(90) == 143
    assert not any(map(alive, processes))


def test_outside_a_job_output_goes_to_the_console_or_to_log_dir(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "import os; os.write(1, b'rank %s\\n' % os.environb[b'RANK'])")
    assert sorted(elasticrun(TWO, script).stdout.splitlines()) == ["rank 0", "rank 1"]
    assert elasticrun(TWO, "-r", "3", "--log-dir", str(tmp_path / "logs"), script).returncode == 0
    assert sorted(path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")) == ["rank 0\n", "rank 1\n"]


def test_a_server_that_is_closed_with_unread_messages_prints_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    with fork_server() as served:
        served.client.prepare(["this_module_is_missing"])
        assert select.select([served.channel], [], [], 60)[0], "an answer, which stays unread"
    assert "Traceback" not in capfd.readouterr().err


def test_a_command_line_may_be_very_long(job: Job, tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "import sys; print(sum(map(len, sys.argv[1:])))")
    agent = job.start(script, *["x" * 100_000] * 4)
    assert agent.wait(300) == 0, agent.printed()
    assert agent.log(1, 0).split() == ["400000"]


def test_a_stopped_fork_server_is_continued_when_a_worker_is_needed() -> None:
    with fork_server() as served:
        served.client.prepare(["json"])
        os.kill(served.process.pid, signal.SIGSTOP)
        process = served.client.start([sys.executable, "-c", "pass"], {}, local_rank=0, stdout=None, stderr=None)
        assert process.pid > 0
        assert process.wait(300) == 0


def test_a_worker_that_gets_sigterm_just_after_its_fork_ends(tmp_path: Path) -> None:
    script = write(tmp_path / "sleep.py", "import time; time.sleep(600)")
    with fork_server() as served:
        served.client.prepare(["json"])
        for _ in range(20):
            command = [sys.executable, script]
            process = served.client.start(command, os.environ, local_rank=0, stdout=None, stderr=None)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(300) == -signal.SIGTERM
