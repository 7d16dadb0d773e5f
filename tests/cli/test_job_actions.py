"""Requests and the state of clusters on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.domain.job.job import JobState
from orchestrator.wire.history_views import StacksView
from orchestrator.wire.problems import Problem
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, REQUESTS, Answer, FakeService, make_job

RUNNING = {"state": JobState.RUNNING, "reason": "trains", "attempt": 1, "attempts": 1, "nodes": "1", "step": 7}
TIME = AT.isoformat()
CLUSTER: dict[str, object] = {
    "name": "local",
    "kind": "local",
    "answers": True,
    "detail": "",
    "slots": {"used": 3, "total": 4, "free": 1},
    "max_jobs": None,
    "jobs": {"RUNNING": 1, "RECOVERING": 1, "QUEUED": 2, "SUSPENDED": 5},
    "lease": {"holder": "here:1", "since": TIME, "expires_at": TIME, "expired": False},
}
NODE: dict[str, object] = {
    "cluster": "local",
    "name": "node7",
    "excluded_until": TIME,
    "failures": 2,
    "last_at": TIME,
    "last_kind": "node",
    "last_sentence": "it fell silent",
    "last_job": "gpt-0001",
}

NO_SNAPSHOT = "it has no snapshot, so it will start from its own files or from its beginning"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["cancel"], "gpt-0001 RUNNING: is being cancelled"),
        (["suspend"], "gpt-0001 RUNNING: is being suspended"),
        (["resume"], "gpt-0001 RUNNING: trains"),
        (["retry"], "gpt-0001 RUNNING: another attempt is requested"),
        (["snapshot"], "gpt-0001 RUNNING: a snapshot is requested"),
        (["chaos", "node-loss"], "gpt-0001 RUNNING: node-loss is requested; see its effect: orchestrator why"),
        (["scale", "2:8"], "gpt-0001 RUNNING: it will continue with 2:8 nodes from a snapshot"),
        (["scale", "3"], "gpt-0001 RUNNING: it will continue with"),
    ],
)
def test_a_request_prints_one_line_each_time(run: Run, service: FakeService, arguments: list[str], told: str) -> None:
    service.add(make_job(**RUNNING))
    verb, *rest = arguments
    for _ in range(2):
        done = run(verb, "gpt-0001", *rest)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(told)
    assert service.requests.count(("POST", f"/api/v1/jobs/gpt-0001/{verb}")) == 2
    assert json.loads(run(verb, "gpt-0001", *rest, "--json").stdout)["id"] == "gpt-0001"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["suspend"],
            "is being suspended; it has no snapshot, so it will start from its own files or from its beginning",
        ),
        (["snapshot"], "only scripts with `Supervised` take them"),
        (["scale", "2:8"], f"2:8 nodes; {NO_SNAPSHOT}"),
    ],
)
def test_a_script_without_snapshots_is_promised_none(
    run: Run, service: FakeService, arguments: list[str], told: str
) -> None:
    service.add(make_job(**{**RUNNING, "step": None}))
    verb, *rest = arguments
    assert run(verb, "gpt-0001", *rest).stdout.rstrip().endswith(told)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"asked": "1", "nodes": "2", "pending": ["scale"]}, "it will continue with 1 node from a snapshot"),
        ({"asked": "1", "nodes": "2"}, "its next attempt will have 1 node"),
        ({"asked": "1", "nodes": "1"}, "it has 1 node"),
        ({"asked": "4", "nodes": "4"}, "it has 4 nodes"),
    ],
)
def test_scale_prints_when_the_new_size_applies(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object], told: str
) -> None:
    monkeypatch.setitem(REQUESTS, "scale", answer)
    service.add(make_job(**RUNNING))
    assert run("scale", "gpt-0001", "1").stdout == f"gpt-0001 RUNNING: {told}\n"


def test_a_retry_may_patch_the_spec(run: Run, service: FakeService, tmp_path: Path) -> None:
    service.add(make_job(**RUNNING))
    (tmp_path / "patch.yaml").write_text("run: {workdir: fixed, trainer: {learning_rate: 1e-4}}\nlabels: {old: null}\n")
    done = run("retry", "gpt-0001", "--patch", "patch.yaml", "--set", "run.trainer.steps=20")
    assert (done.returncode, done.stderr) == (0, "")
    trainer = {"learning_rate": 0.0001, "steps": 20}
    patch = {"run": {"workdir": str(tmp_path / "fixed"), "trainer": trainer}, "labels": {"old": None}}
    assert service.bodies[-1] == {"restore_from": None, "patch": patch}
    assert run("retry", "gpt-0001", "--set", "run.args=[]").returncode == 0
    assert service.bodies[-1]["patch"] == {"run": {"args": []}}, "the workdir is not changed"
    assert run("retry", "gpt-0001", "--patch", "none.yaml").returncode == 2


def test_a_fault_is_sent_with_its_target_and_an_unknown_fault_is_refused(run: Run, service: FakeService) -> None:
    service.add(make_job(**RUNNING))
    for arguments, body in (
        (["kill"], {"fault": "kill"}),
        (["hang", "--rank", "0"], {"fault": "hang", "rank": 0}),
        (["node-loss", "--node", "1"], {"fault": "node-loss", "node": "1"}),
    ):
        assert run("chaos", "gpt-0001", *arguments).returncode == 0
        assert service.bodies[-1] == body
    asked = len(service.requests)
    assert run("chaos", "gpt-0001", "meteor").returncode == 2
    assert run("chaos", "gpt-0001").returncode == 2
    assert len(service.requests) == asked


def test_a_job_is_deleted_only_with_confirmation(run: Run, service: FakeService) -> None:
    ended = {**RUNNING, "state": JobState.SUCCEEDED}
    service.add(make_job(**ended))
    unsure = run("delete", "gpt-0001", "--snapshots", "delete")
    assert (unsure.returncode, "--yes confirms that you want to delete its record, its snapshots" in unsure.stderr) == (
        2,
        True,
    )
    assert "gpt-0001" in service.jobs
    assert run("delete", "gpt-0001", "--snapshots", "some", "--yes").returncode == 2
    done = run("delete", "gpt-0001", "--yes")
    folders = "\n  /runs/gpt-0001\n  /snapshots/gpt-0001\n"
    assert (done.returncode, done.stdout) == (0, f"gpt-0001 is deleted; its files are kept{folders}")
    assert service.queries[-1] == {"snapshots": "keep"}
    service.add(make_job(**ended))
    told = run("delete", "gpt-0001", "--yes", "--snapshots", "delete")
    assert told.stdout == f"gpt-0001 is deleted; its files will be deleted soon{folders}"
    service.add(make_job(**ended))
    all_of_it = run("delete", "gpt-0001", "--yes", "--snapshots", "delete", "--json")
    assert json.loads(all_of_it.stdout)["files_due"] is True
    assert run("delete", "gpt-0001", "--yes").returncode == 2


def test_a_secret_is_read_from_standard_input_and_never_shown(run: Run, service: FakeService) -> None:
    value = "a secret value\nof two lines"
    done = run("secret", "set", "KEY", "--project", "p", stdin=f"{value}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert service.bodies[-1] == {"project": "p", "name": "KEY", "value": value}
    assert "secret value" not in done.stdout
    asked = len(service.requests)
    assert run("secret", "set", "KEY", stdin="").returncode == 2
    assert run("secret", "set", "KEY", "a secret value").returncode == 2, "a secret is not accepted as an argument"
    assert len(service.requests) == asked
    service.inventory["secrets"] = [{"project": "p", "name": "KEY", "updated_at": TIME, "updated_by": "alice"}]
    assert run("secret", "ls", "--project", "p").stdout == "p  KEY  2026-01-02 03:04 UTC  alice\n"
    assert service.queries[-1] == {"project": "p"}
    assert run("secret", "rm", "KEY", "--project", "p").stdout == "secret KEY of project p is removed\n"
    assert service.requests[-1] == ("DELETE", "/api/v1/secrets/p/KEY")


def a_node(name: str, cluster: str = "lab", until: str | None = TIME) -> dict[str, object]:
    return {**NODE, "name": name, "cluster": cluster, "excluded_until": until}


def test_nodes_clear_finds_the_cluster_of_the_node(run: Run, service: FakeService) -> None:
    service.inventory["nodes"] = [a_node("n1"), a_node("n2", "other"), a_node("n2", "lab")]
    listed = run("nodes", "--cluster", "lab")
    assert "n1" in listed.stdout
    assert "`orchestrator nodes clear NODE`" in listed.stderr
    assert run("nodes", "clear", "n1").stdout == "cleared the record of node n1 of cluster lab\n"
    assert service.requests[-1] == ("POST", "/api/v1/nodes/lab/n1/clear")
    several = run("nodes", "clear", "n2")
    assert (several.returncode, "--cluster" in several.stderr) == (2, True)
    assert run("nodes", "clear", "n2", "--cluster", "other", "--json").returncode == 0
    assert service.requests[-1] == ("POST", "/api/v1/nodes/other/n2/clear")
    unknown = run("nodes", "clear", "n9")
    assert (unknown.returncode, "no failure in its record" in unknown.stderr) == (2, True)


def test_only_the_secret_of_a_new_webhook_is_on_standard_output(run: Run, service: FakeService) -> None:
    made = run("webhook", "add", "pager", "https://h/in", "--event", "job.*", "--event", "recovery.*", "--all-jobs")
    assert (made.returncode, made.stdout) == (0, "whsec_x\n")
    events = ["job.*", "recovery.*"]
    assert service.bodies[-1] == {"name": "pager", "url": "https://h/in", "events": events, "all_jobs": True}
    service.inventory["webhooks"] = [{"name": "pager", "host": "h", "events": events, "all_jobs": False}]
    assert run("webhook", "ls").stdout == "pager  h  job.*,recovery.*  jobs that name it\n"
    assert run("webhook", "rm", "pager").stdout == "webhook pager is removed\n"
    assert service.requests[-1] == ("DELETE", "/api/v1/webhooks/pager")


def stacks_of(rank: int, wish: int | None, text: str | None = 'File "train.py", line 3 in step') -> StacksView:
    return StacksView(rank=rank, attempt=1, generation=2, at=AT, wish=wish, text=text)


def test_stacks_are_printed_once_every_rank_has_answered(run: Run, service: FakeService) -> None:
    service.add(make_job(**RUNNING, world_size=2))
    old, new = [stacks_of(0, 4, "old"), stacks_of(1, 4, "old")], [stacks_of(0, 9), stacks_of(1, 9, None)]
    service.stacks = [old, old, [new[0], old[1]], new]
    done = run("stacks", "gpt-0001")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "rank 0, attempt 1, generation 2, 03:04:05 UTC",
        '  File "train.py", line 3 in step',
        "rank 1, attempt 1, generation 2, 03:04:05 UTC",
        "  it did not answer",
    ]
    assert ("POST", "/api/v1/jobs/gpt-0001/stacks") in service.requests


def test_stacks_of_one_rank_are_json_and_silence_is_an_error(run: Run, service: FakeService) -> None:
    service.add(make_job(**RUNNING, world_size=2))
    service.stacks = [[], [stacks_of(1, 9)]]
    items = json.loads(run("stacks", "gpt-0001", "--rank", "1", "--json").stdout)["items"]
    assert [(each["rank"], each["wish"]) for each in items] == [(1, 9)]
    assert service.bodies[-1] == {"rank": 1}
    service.stacks = [[]]
    silent = run("stacks", "gpt-0001", "--wait", "0")
    assert (silent.returncode, "no rank of gpt-0001 answered" in silent.stderr) == (2, True)


def test_ranks_that_did_not_answer_are_named(run: Run, service: FakeService) -> None:
    service.add(make_job(**RUNNING, world_size=3))
    service.stacks = [[], [stacks_of(1, 9)]]
    done = run("stacks", "gpt-0001", "--wait", "0")
    assert (done.returncode, done.stderr.strip()) == (0, "no answer from ranks 0, 2")


def test_the_saved_stacks_of_an_ended_job_are_printed(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.FAILED, attempts=2, attempt=2))
    none = run("stacks", "gpt-0001")
    assert (none.returncode, "no stacks were saved" in none.stderr) == (2, True)
    service.log = '[a2 g1 r0/1] File "train.py", line 3 in step\n'
    assert run("stacks", "gpt-0001", "--rank", "1").stdout == service.log
    assert service.queries[-1] == {"attempt": "2", "rank": "1", "stream": "stacks", "whole": "true"}
    assert json.loads(run("stacks", "gpt-0001", "--json").stdout)["lines"] == service.log.splitlines()
    assert ("POST", "/api/v1/jobs/gpt-0001/stacks") not in service.requests


STACKS = """\
Thread 0x2 (most recent call first):
  File "threading.py", line 3 in run

Current thread 0x1 (most recent call first):
  File "train.py", line 3 in step
  File "/opt/trainer/elastic/workers/program.py", line 103 in run_program
"""
READABLE = """\
Current thread 0x1 (most recent call first):
  File "train.py", line 3 in step

Thread 0x2 (most recent call first):
  File "threading.py", line 3 in run
"""


def test_stacks_are_printed_with_the_main_thread_first_and_without_the_launcher(run: Run, service: FakeService) -> None:
    service.add(make_job(**RUNNING, world_size=1))
    service.stacks = [[], [stacks_of(0, 9, STACKS)]]
    _, *shown = run("stacks", "gpt-0001").stdout.splitlines()
    assert [line[2:] for line in shown] == READABLE.splitlines()
    service.stacks = [[], [stacks_of(0, 9, STACKS)]]
    assert json.loads(run("stacks", "gpt-0001", "--json").stdout)["items"][0]["text"] == STACKS


def test_saved_stacks_are_printed_so_for_each_rank(run: Run, service: FakeService) -> None:
    def labeled(text: str) -> str:
        return "".join(f"[a1 g1 r0/{rank}] {line}\n" for rank in (0, 1) for line in text.splitlines())

    service.add(make_job(state=JobState.FAILED, attempts=1, attempt=1))
    service.log = labeled(STACKS)
    assert run("stacks", "gpt-0001").stdout == labeled(READABLE)


def test_a_suspended_job_is_shown_and_resumed(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUSPENDED, suspended=True, reason="suspended by its owner"))
    assert "SUSPENDED" in run("ls").stdout
    assert run("resume", "gpt-0001").stdout == "gpt-0001 SUSPENDED: returns to the queue\n"
    service.add(make_job(state=JobState.SUSPENDED, suspended=True, reason="suspended by its owner"))
    shown = run("show", "gpt-0001").stdout
    assert "state      SUSPENDED\n" in shown
    assert "nodes      1 requested\n" in shown


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "snapshot", "retry", "scale"])
def test_a_refused_request_exits_with_status_2(run: Run, service: FakeService, verb: str) -> None:
    service.add(make_job(**RUNNING))
    rest = ["4"] if verb == "scale" else []
    refusal = Answer(409, Problem(type="x", title="Conflict", status=409, detail="it has ended FAILED"))
    service.before_answer = lambda path: service.refusals.append(refusal) if path.endswith(verb) else None
    refused = run(verb, "gpt-0001", *rest)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == ("orchestrator: it has ended FAILED\n  See its state: orchestrator show gpt-0001\n")


def test_a_refusal_without_a_job_suggests_no_command(run: Run, service: FakeService) -> None:
    service.refusals = [Answer(409, Problem(type="x", title="Conflict", status=409, detail="the key was used"))]
    assert run("submit", "-", stdin='{"name": "gpt", "run": {"command": ["true"]}}').stderr == (
        "orchestrator: the key was used\n"
    )


def test_show_prints_nodes_budgets_phase_and_pending_requests(run: Run, service: FakeService) -> None:
    spent = {"application": 1}
    facts = {"asked": "2:8", "spent": spent, "preemptions": 4, "phase": "compile", "pending": ["scale"]}
    service.add(make_job(**{**RUNNING, "nodes": "2:3"}, **facts))
    shown = run("show", "gpt-0001").stdout
    assert "state      RUNNING (scale is requested)\n" in shown
    assert "nodes      2:3 of 2:8 requested\n" in shown
    assert "budgets    application 1 of 3, 4 preemptions (free)\n" in shown
    assert "phase      compile\n" in shown


def test_clusters_are_listed_with_their_slots_and_jobs(run: Run, service: FakeService) -> None:
    service.inventory["clusters"] = [
        CLUSTER,
        {**CLUSTER, "name": "far", "answers": False, "detail": "no route", "lease": None}
        | {"slots": {"used": 2, "total": None, "free": None}},
    ]
    done = run("clusters")
    local, far = (line.split() for line in done.stdout.splitlines()[1:])
    assert local[:7] == ["local", "local", "3/4", "1", "2", "2", "here:1"]
    assert far[:4] == ["far", "local,", "does", "not"]
    assert "nobody" in far
    assert done.stderr == "far does not answer: no route\n"
    assert [item["name"] for item in json.loads(run("clusters", "--json").stdout)["items"]] == ["local", "far"]


def test_nodes_are_listed_with_the_end_of_their_exclusion(run: Run, service: FakeService) -> None:
    assert "No node has a failure" in run("nodes").stderr
    service.inventory["nodes"] = [a_node("node8", until=None)]
    assert run("nodes").stderr == "", "nodes that are not avoided need no advice"
    service.inventory["nodes"] = [NODE, {**NODE, "name": "node8", "excluded_until": None}]
    lines = run("nodes", "--cluster", "local").stdout.splitlines()
    assert lines[1].split()[0] == "node7"
    assert "node: it fell silent" in lines[1]
    assert lines[1].split()[2] == "2026-01-02"
    assert lines[2].split()[2] == "2", "not avoided: no date stands before the count"
    assert json.loads(run("nodes", "--json").stdout)["items"][0]["failures"] == 2
