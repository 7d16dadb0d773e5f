"""Scripts that report nothing: which hang and which are only quiet. Default limits, on a virtual clock.

The counters of hanging scripts were measured with tests/elastic/scripts/stuck.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.harness import STUCK, TWO, Job, wait_for
from tests.examples import examples
from trainer.contract.exit_record import Outcome
from trainer.contract.silence import STILL_S
from trainer.elastic.chaos import Worker
from trainer.elastic.health.activity import Activity, read_activities
from trainer.elastic.health.stillness import GroupHang, Stillness
from trainer.elastic.rendezvous import round_document, round_queries, rounds
from trainer.elastic.rendezvous.round_document import Limits, Member, Round

HOUR = 3600


def stack(*frames: str) -> str:
    """A stack as faulthandler writes it. `frames` are "FILE:LINE FUNCTION", innermost first."""
    lines = ["Thread 0x00007f0000000000 (most recent call first):", '  File "/lib/background.py", line 1 in run', ""]
    lines.append("Current thread 0x00007f0000000001 (most recent call first):")
    for frame in frames:
        place, function = frame.split(" ")
        file, line = place.rsplit(":", 1)
        lines.append(f'  File "{file}", line {line} in {function}')
    return "\n".join(lines) + "\n"


SITE = "/usr/lib/python3/site-packages"
COLLECTIVE = stack(f"{SITE}/torch/distributed/distributed_c10d.py:3000 all_reduce", "/home/me/train.py:33 step")
BACKWARD = stack(f"{SITE}/torch/autograd/graph.py:800 _engine_run_backward", "/home/me/train.py:30 step")
BARRIER = stack(f"{SITE}/torch/distributed/distributed_c10d.py:4000 barrier", "/home/me/train.py:90 save")
LOADER = stack(
    "/usr/lib/python3.11/selectors.py:415 select",
    f"{SITE}/torch/utils/data/dataloader.py:1290 _try_get_data",
    "/home/me/train.py:20 batches",
)
OWN = stack("/home/me/train.py:12 fetch")


@dataclass(frozen=True)
class Doing:
    """What one rank does: rates per second, and states."""

    main: float = 0.0
    threads: float = 0.0025  # of gloo
    below: float = 0.0
    wakes: float = 0.0
    below_wakes: float = 0.0
    children: int = 0
    new_child_every_s: float | None = None
    moves: float = 0.0
    traffic: float = 0.0
    below_traffic: float = 0.0
    prints_every_s: float | None = None
    state: str = "S"
    other_states: frozenset[str] = frozenset("S")
    gpu: bool = False
    stack: Callable[[float], str] = lambda _: OWN


def constant(text: str) -> Callable[[float], str]:
    return lambda _: text


def moving(now_s: float) -> str:
    return stack(f"/home/me/train.py:{int(now_s * 7) % 90} step")


IN_COLLECTIVE = Doing(stack=constant(COLLECTIVE))
IN_BARRIER = Doing(stack=constant(BARRIER))
WORKS = Doing(main=0.9, wakes=50, stack=moving)


@dataclass
class Machine:
    """Ranks of one node on a virtual clock. `folder` holds their logs."""

    folder: Path
    doings: dict[int, Doing]
    now_s: float = 0.0
    totals: dict[int, Activity] = field(default_factory=dict)
    asked: int = 0

    def __post_init__(self) -> None:
        for rank in self.doings:
            (self.folder / str(rank)).mkdir(parents=True, exist_ok=True)
            self.totals[rank] = Activity()

    @property
    def workers(self) -> dict[int, Worker]:
        return {rank: Worker(pid=1000 + rank, folder=self.folder / str(rank)) for rank in self.doings}

    def pass_time(self, seconds: float) -> None:
        before_s, self.now_s = self.now_s, self.now_s + seconds
        for rank, doing in self.doings.items():
            self.totals[rank] = advance(self.totals[rank], doing, before_s, self.now_s)
            if ticks(doing.prints_every_s, before_s, self.now_s):
                with (self.folder / str(rank) / "log").open("a") as log:
                    log.write("still here\n")

    def read(self, pids: Iterable[int]) -> Mapping[int, Activity]:
        return {pid: self.totals[pid - 1000] for pid in pids}

    def ask(self, folders: Mapping[int, Path]) -> Mapping[int, str]:
        self.asked += 1
        for pid in folders:
            activity = self.totals[pid - 1000]
            self.totals[pid - 1000] = replace(
                activity, main_wakes=activity.main_wakes + 2, moved_bytes=activity.moved_bytes + 4000
            )
        return {pid: self.doings[pid - 1000].stack(self.now_s) for pid in folders}

    def uses_gpu(self, pid: int) -> bool:
        return self.doings[pid - 1000].gpu

    def watch(self, reports: Reports, limit_s: float | None = None) -> Stillness:
        watch = Stillness(limit_s, reports, uses_gpu=self.uses_gpu, read=self.read, ask=self.ask)
        watch.begin(self.now_s)
        return watch


def ticks(every_s: float | None, before_s: float, now_s: float) -> int:
    return 0 if every_s is None else int(now_s // every_s) - int(before_s // every_s)


def advance(activity: Activity, doing: Doing, before_s: float, now_s: float) -> Activity:
    span_s = now_s - before_s
    age = 0 if doing.new_child_every_s is None else int(now_s // doing.new_child_every_s)
    children = {5000 + index + 100 * age: int(now_s * doing.below_wakes) for index in range(doing.children)}
    return Activity(
        main_cpu_s=activity.main_cpu_s + doing.main * span_s,
        threads_cpu_s=activity.threads_cpu_s + doing.threads * span_s,
        below_cpu_s=activity.below_cpu_s + doing.below * span_s,
        main_wakes=activity.main_wakes + int(now_s * doing.wakes) - int(before_s * doing.wakes),
        below_wakes=children,
        moved_bytes=activity.moved_bytes + int(doing.moves * span_s),
        own_traffic_bytes=activity.own_traffic_bytes + int(doing.traffic * span_s),
        below_traffic_bytes=activity.below_traffic_bytes + int(doing.below_traffic * span_s),
        main_state=doing.state,
        other_states=doing.other_states,
    )


class Reports:
    """The rendezvous document of a group, in memory, as one node sees it."""

    def __init__(self, document: list[Round], node: str) -> None:
        self._document, self._node = document, node

    def report_stillness(self, report: str | None) -> None:
        self._document[0] = rounds.report_stillness(self._document[0], self._document[0].number, self._node, report)

    def find_stillness(self) -> Sequence[str] | None:
        return round_queries.find_stillness(round_document.parse_round(round_document.render_round(self._document[0])))


def reports_of(*nodes: str) -> list[Reports]:
    limits, group = Limits(min_nodes=len(nodes), max_nodes=len(nodes)), Round()
    for node_rank, node in enumerate(nodes):
        group = rounds.join(group, Member(node=node, node_rank=node_rank, address=node, workers=2), limits)
    document = [rounds.form(group, limits, time_is_up=True)]
    return [Reports(document, node) for node in nodes]


def run(machine: Machine, watch: Stillness, seconds: float, look_s: float = 1.0) -> tuple[float, GroupHang] | None:
    """The first verdict, and when it came."""
    end_s = machine.now_s + seconds
    while machine.now_s < end_s:
        machine.pass_time(look_s)
        found = watch.look(machine.workers, machine.now_s)
        if found is not None:
            return machine.now_s, found
    return None


QUIET = {
    "an hour-long epoch without a line of log": [WORKS, WORKS],
    "an hour-long epoch in one call": [Doing(main=1.0), IN_COLLECTIVE],
    "a long compile": [Doing(main=0.8, stack=moving), IN_COLLECTIVE],
    "a long compile in processes below": [Doing(below=0.9, children=4), IN_COLLECTIVE],
    "a long evaluation on one rank": [WORKS, IN_BARRIER],
    "an evaluation that a thread computes": [Doing(threads=0.9), IN_BARRIER],
    "a slow download": [Doing(main=0.001, wakes=4), IN_BARRIER],
    "a slow download by a thread": [Doing(threads=0.004, moves=20_000), IN_BARRIER],
    "a slow download by a thread into memory": [Doing(threads=0.004, traffic=100_000), IN_BARRIER],
    "a slow download by a thread of a process below": [Doing(children=1, below_traffic=50_000), IN_BARRIER],
    "a broadcast over a slow network": [Doing(threads=0.004, traffic=500_000, stack=constant(COLLECTIVE))] * 2,
    "a slow download by a process below": [Doing(children=1, below=0.001, below_wakes=4), IN_BARRIER],
    "a download that waits for its server with growing pauses": [Doing(wakes=1 / 60), IN_BARRIER],
    "rank 0 writes its save": [Doing(moves=5e6), IN_BARRIER],
    "rank 0 waits for the disk in its save": [Doing(state="D"), IN_BARRIER],
    "a thread of rank 0 waits for the disk in its save": [Doing(other_states=frozenset("SD")), IN_BARRIER],
    "an upload by processes below": [Doing(children=2, below=0.03), IN_BARRIER],
    "a long kernel": [Doing(gpu=True), IN_COLLECTIVE],
    "a loop that polls for a file": [Doing(wakes=1 / 30), IN_BARRIER],
    "a shell loop that polls for a file": [Doing(children=1, new_child_every_s=30), IN_BARRIER],
    "a rank that waits for a busy processor": [Doing(state="R"), IN_BARRIER],
    "a line every 14 minutes": [Doing(prints_every_s=14 * 60), IN_BARRIER],
    "an all-reduce over a slow network": [Doing(threads=0.1, stack=constant(COLLECTIVE))] * 2,
    "a script that starts torchrun itself": [Doing(children=3, below_wakes=10)],
    "a script without a Python stack": [Doing(stack=constant(""))],
    "a server that waits for its first request": [Doing()],
    "a tracker's process beside a sleep, which may be work": [Doing(children=1, below=0.03), IN_BARRIER],
}


@pytest.mark.parametrize("name", QUIET)
def test_a_quiet_script_does_not_hang(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, dict(enumerate(QUIET[name])))
    assert run(machine, machine.watch(*reports_of("a")), 6 * HOUR) is None


HUNG = {
    "in its own code": (Doing(stack=constant(OWN)), 1, "rank 1 is at train.py:12 in fetch"),
    "in a data loader": (
        Doing(stack=constant(LOADER), wakes=0.2, children=4, below_wakes=0.2),
        1,
        "rank 1 is at train.py:20 in batches",
    ),
    "in its own code beside idle data loaders": (
        Doing(children=4, below_wakes=0.2),
        1,
        "rank 1 is at train.py:12 in fetch",
    ),
    "stopped by a signal": (
        Doing(state="T", other_states=frozenset("T"), stack=constant("")),
        1,
        "rank 1 is at an unknown line",
    ),
    "in another collective": (IN_BARRIER, None, "rank 1 waits for other ranks at train.py:90 in save"),
    "beside a tracker in a collective": (
        Doing(stack=constant(BARRIER), children=1, below=0.03),
        None,
        "rank 1 waits for other ranks at train.py:90 in save",
    ),
}


@pytest.mark.parametrize("name", HUNG)
def test_a_hang_is_found_by_the_default_limit(name: str, tmp_path: Path) -> None:
    hung, rank, words = HUNG[name]
    machine = Machine(tmp_path, {0: WORKS, 1: WORKS})
    watch = machine.watch(*reports_of("a"))
    assert run(machine, watch, HOUR) is None
    machine.doings.update({0: IN_COLLECTIVE, 1: hung})
    found = run(machine, watch, HOUR)
    assert found is not None
    assert STILL_S <= found[0] - HOUR <= STILL_S + 45
    assert found[1].rank == rank
    assert words in found[1].sentence
    assert "rank 0 waits for other ranks at train.py:33 in step" in found[1].sentence


def test_a_hang_is_found_on_a_busy_machine(tmp_path: Path) -> None:
    """Gloo's threads often wait for a core on such a machine, and a data loader's watching thread sometimes does."""
    machine = Machine(tmp_path, {0: IN_COLLECTIVE, 1: HUNG["in a data loader"][0]})
    watch = machine.watch(*reports_of("a"))
    found, crowded = None, frozenset("RS")
    while found is None and machine.now_s < HOUR:
        state = "R" if machine.now_s % 100 < 14 else "S"
        machine.doings = {rank: replace(doing, other_states=crowded) for rank, doing in machine.doings.items()}
        machine.doings[1] = replace(machine.doings[1], state=state)
        found = run(machine, watch, 1)
    assert found is not None
    assert STILL_S <= found[0] <= STILL_S + 45


def test_ranks_that_spin_in_a_collective_count_as_waiting(tmp_path: Path) -> None:
    spinning = Doing(main=1.0, threads=1.0, stack=constant(COLLECTIVE), gpu=True)
    machine = Machine(tmp_path, {0: spinning, 1: spinning, 2: Doing()})
    found = run(machine, machine.watch(*reports_of("a")), HOUR)
    assert found is not None
    assert found[1].rank == 2
    assert "ranks 0, 1 wait for other ranks at train.py:33 in step" in found[1].sentence


def test_the_rank_that_waits_at_another_line_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {0: IN_COLLECTIVE, 1: IN_COLLECTIVE, 2: IN_BARRIER})
    found = run(machine, machine.watch(*reports_of("a")), HOUR)
    assert found is not None
    assert found[1].rank == 2


def test_a_limit_of_the_spec_replaces_the_default(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {0: IN_COLLECTIVE, 1: Doing()})
    found = run(machine, machine.watch(*reports_of("a"), limit_s=60), HOUR)
    assert found is not None
    assert 60 <= found[0] <= 70


def test_with_a_limit_of_the_spec_no_rank_must_be_waiting(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {0: Doing(stack=constant(""))})
    found = run(machine, machine.watch(*reports_of("a"), limit_s=STILL_S), HOUR)
    assert found is not None
    assert found[1].rank == 0


def test_a_single_rank_that_waits_for_its_data_loader_hangs(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {0: Doing(stack=constant(LOADER), wakes=0.2, children=4, below_wakes=0.2)})
    assert run(machine, machine.watch(*reports_of("a")), HOUR) is not None


def test_the_time_in_which_the_machine_slept_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {0: IN_COLLECTIVE, 1: Doing()})
    watch = machine.watch(*reports_of("a"))
    assert run(machine, watch, 850) is None
    machine.now_s += 10 * HOUR
    assert run(machine, watch, 850) is None


@pytest.mark.parametrize(("share", "times"), [(0.5, 0), (1.0, 1)])
def test_a_healthy_worker_is_rarely_asked_for_stacks(share: float, times: int, tmp_path: Path) -> None:
    machine = Machine(tmp_path, {0: replace(WORKS, main=share), 1: IN_BARRIER})
    run(machine, machine.watch(*reports_of("a")), 3 * HOUR)
    assert machine.asked == times


def both(machines: Sequence[Machine], watches: Sequence[Stillness], seconds: int) -> list[GroupHang]:
    found = []
    for _ in range(seconds):
        for machine, watch in zip(machines, watches, strict=True):
            machine.pass_time(1)
            hang = watch.look(machine.workers, machine.now_s)
            found += [] if hang is None else [hang]
        if found:
            return found
    return found


def two_nodes(folder: Path, *doings: Doing) -> tuple[list[Machine], list[Stillness]]:
    machines = [
        Machine(folder / "a", {0: doings[0], 1: doings[1]}),
        Machine(folder / "b", {2: doings[2], 3: doings[3]}),
    ]
    return machines, [machine.watch(reports) for machine, reports in zip(machines, reports_of("a", "b"), strict=True)]


def test_ranks_that_wait_for_another_node_do_not_hang(tmp_path: Path) -> None:
    machines, watches = two_nodes(tmp_path, IN_BARRIER, IN_BARRIER, IN_BARRIER, WORKS)
    assert both(machines, watches, 4 * HOUR) == []


def test_only_the_agent_of_the_hanging_rank_ends_the_hang(tmp_path: Path) -> None:
    machines, watches = two_nodes(tmp_path, IN_COLLECTIVE, IN_COLLECTIVE, IN_COLLECTIVE, Doing())
    (hang,) = both(machines, watches, HOUR)
    assert hang.rank == 3
    assert "ranks 0, 1, 2 wait for other ranks" in hang.sentence


def test_a_node_that_works_again_withdraws_its_report(tmp_path: Path) -> None:
    machines, watches = two_nodes(tmp_path, IN_COLLECTIVE, IN_COLLECTIVE, IN_COLLECTIVE, WORKS)
    assert both(machines, watches, 1000) == []
    machines[0].doings[0], machines[1].doings[3] = WORKS, Doing()
    assert both(machines, watches, 2000) == []


@settings(max_examples=examples(15, 200))
@given(
    signs=st.lists(st.sampled_from(["main", "wakes", "prints", "disk", "nothing"]), min_size=1, max_size=12),
    pauses=st.lists(st.integers(1, 840), min_size=12, max_size=12),
)
def test_a_hang_is_found_after_the_limit_without_activity_and_not_before(
    signs: list[str], pauses: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Activity of any kind with pauses below the limit, and then none."""
    doings = {"main": WORKS, "wakes": Doing(wakes=4), "prints": Doing(prints_every_s=1), "disk": Doing(state="D")}
    machine = Machine(tmp_path_factory.mktemp("ranks"), {0: IN_COLLECTIVE, 1: Doing()})
    watch = machine.watch(*reports_of("a"))
    for sign, pause_s in zip(signs, pauses, strict=False):
        if sign != "nothing":
            machine.doings[1] = doings[sign]
            assert run(machine, watch, 40, look_s=5) is None
            machine.doings[1] = Doing()
            began_s = machine.now_s
            assert run(machine, watch, pause_s, look_s=5) is None
    began_s = machine.now_s if all(sign == "nothing" for sign in signs) else began_s
    found = run(machine, watch, 2 * HOUR, look_s=5)
    assert found is not None
    assert STILL_S - 20 <= found[0] - began_s <= STILL_S + 60


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param("sleep", "rank 1 is at stuck.py", marks=[pytest.mark.long, pytest.mark.smoke]),
        pytest.param("load", "rank 1 is at stuck.py", marks=pytest.mark.long),
        pytest.param("call", "rank 1 is at stuck.py", marks=pytest.mark.long),
        pytest.param("skip", "rank 1 waits for other ranks at stuck.py", marks=pytest.mark.long),
    ],
)
def test_a_real_hang_restarts_the_group_and_saves_all_stacks(how: str, words: str, job: Job) -> None:
    job.policy(max_restarts=1, heartbeat_timeout_s=6.0)
    agent = job.start(TWO, STUCK, how)
    assert agent.wait(150) == 0, agent.printed()
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    (failed,) = agent.events("worker.failed")
    evidence = failed["evidence"]
    assert isinstance(evidence, dict)
    assert (evidence["kind"], evidence.get("rank")) == ("hang", None if how == "skip" else 1)
    assert f"{words}:" in str(failed["sentence"])
    assert "rank 0 waits for other ranks at stuck.py:" in str(failed["sentence"])
    (saved,) = agent.events("stacks.saved")
    assert saved["evidence"] == {"ranks": [0, 1]}


def test_the_activity_of_a_worker_includes_the_processes_below_it(job: Job) -> None:
    pids = job.policy().start("--nproc-per-node=1", "--no-python", "sh", "-c", "sh -c 'while :; do :; done'").pids(1)
    wait_for(lambda: read_activities(pids.values())[pids[0]].below_wakes, "process below")
    before = read_activities(pids.values())[pids[0]]
    wait_for(lambda: read_activities(pids.values())[pids[0]].below_cpu_s > before.below_cpu_s + 0.1, "CPU time")
