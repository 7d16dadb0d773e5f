"""The Slurm backend with scripts in place of Slurm's commands."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import ship
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.capacity import SEPARATOR
from orchestrator.backends.slurm.commands import SlurmCommands
from orchestrator.backends.slurm.listing import ACCOUNTING_FIELDS, FIELDS
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.explanation.remedies import find_remedy
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.domain.specs.spec import Resources
from tests.contract.backends import build, site
from trainer.contract import layout
from trainer.contract.failure import FailureKind

RECORDS = Path(__file__).parent / "records"
REFUSAL = "sbatch: error: Batch job submission failed: Requested node configuration is not available"


class Scripted:
    """A backend whose commands are scripts. A command without a script does not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._bin = folder, folder / "bin"
        self._bin.mkdir()
        self.root = folder / "runs"
        package = ship.find_package()
        own = SlurmSite(
            root=self.root,
            service_root=self.root,
            agent_dir=self.root / ship.agent_folder(package),
            shared_paths=(folder,),
            settle_s=0,
            listing_s=0,
        )
        client = SlurmCommands(timeout_s=20, bin_dir=str(self._bin))
        self.backend = SlurmBackend(own, client, package=package)

    def script(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(f'#!/bin/bash\necho "$*" >>{self._folder}/{name}.calls\n{text}\n')
        path.chmod(0o755)

    def nodes(self, **states: str) -> None:
        rows = [[name, "main*", state, "8", "64000", "", "none"] for name, state in states.items()]
        (self._folder / "nodes").write_text("".join(SEPARATOR.join([*row, "\n"]) for row in rows))
        self.script("sinfo", f"cat {self._folder}/nodes")

    def list_job(self, **fields: str) -> None:
        values = {**dict.fromkeys(FIELDS, ""), "JobID": "17", "exit_code": "0:0", "EndTime": "1795193299", **fields}
        (self._folder / "jobs").write_text(SEPARATOR.join([*values.values(), "\n"]))
        self.script("squeue", f"cat {self._folder}/jobs")

    def plan(self, nodes: str, *avoided: str) -> LaunchPlan:
        plan = build("train", site(self.root), seconds=1, deaf=False, nodes=nodes)
        return replace(plan, workdir=str(self._folder), excluded_nodes=avoided)

    def calls(self, name: str) -> list[str]:
        path = self._folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def was_submitted(self) -> bool:
        return (self._folder / "sbatch.calls").exists()

    def excluded(self) -> list[str | None]:
        """Return the --exclude option of each call of sbatch."""
        calls = (self._folder / "sbatch.calls").read_text().splitlines()
        return [next((word for word in call.split() if word.startswith("--exclude=")), None) for call in calls]


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    made = Scripted(tmp_path)
    made.script("sbatch", "echo 17")
    return made


def test_nodes_with_failures_are_excluded_while_enough_others_exist(scripted: Scripted) -> None:
    scripted.nodes(n1="idle", n2="idle", n3="idle")
    assert scripted.backend.submit(scripted.plan("2", "n2")) == "17"
    assert scripted.excluded() == ["--exclude=n2"]


def test_a_job_that_needs_all_nodes_excludes_none(scripted: Scripted) -> None:
    scripted.nodes(n1="idle", n2="down")
    assert scripted.backend.submit(scripted.plan("2", "n2")) == "17"
    assert scripted.excluded() == [None]


def test_a_refusal_without_the_avoided_nodes_leads_to_a_submission_with_them(scripted: Scripted) -> None:
    """Only Slurm knows which nodes satisfy a constraint."""
    scripted.script("sbatch", f'case "$*" in *--exclude=*) echo "{REFUSAL}" >&2; exit 1 ;; esac; echo 17')
    assert scripted.backend.submit(scripted.plan("2", "n2")) == "17"
    assert scripted.excluded() == ["--exclude=n2", None]


def test_a_refusal_without_avoided_nodes_is_not_repeated(scripted: Scripted) -> None:
    scripted.script("sbatch", f'echo "{REFUSAL}" >&2; exit 1')
    with pytest.raises(LaunchRefused, match="Requested node configuration is not available"):
        scripted.backend.submit(scripted.plan("2"))
    assert scripted.excluded() == [None]


@pytest.mark.parametrize(
    ("nodes", "resources", "says"),
    [
        ("1", {"cpus": 64}, "needs 1 node with 64 CPUs; partition main has none: its largest node has 8 CPUs"),
        ("2", {"cpus": 8.5}, "needs 2 nodes with 9 CPUs; partition main has none: its largest node has 8 CPUs"),
        ("2:3", {"cpus": 64}, "needs 2 nodes with 64 CPUs; partition main has none: its largest node has 8 CPUs"),
        ("3", {"cpus": 8}, "needs 3 nodes; partition main has 2"),
    ],
)
def test_a_request_that_no_node_of_the_partition_can_hold_is_refused(
    scripted: Scripted, nodes: str, resources: dict[str, Any], says: str
) -> None:
    """Slurm 22.05 and 26.05 accept it and let it wait forever (recorded, PartitionConfig)."""
    scripted.nodes(n1="idle", n2="down")
    with pytest.raises(LaunchRefused, match=says):
        scripted.backend.submit(replace(scripted.plan(nodes), resources=Resources(**resources)))
    assert not scripted.was_submitted()


def test_a_request_that_fits_on_enough_nodes_is_submitted(scripted: Scripted) -> None:
    scripted.nodes(n1="idle", n2="down")
    for resources in (Resources(cpus=8), Resources()):
        assert scripted.backend.submit(replace(scripted.plan("2"), resources=resources)) == "17"


def test_a_job_that_waits_for_nodes_lists_the_spare_ones(scripted: Scripted) -> None:
    plan = scripted.plan("1", "n2")
    scripted.nodes(n1="allocated", n2="idle", n3="mixed", n4="idle*", n5="down", n6="drained")
    for reason, spare in (("Resources", ("n2", "n3")), ("ReqNodeNotAvail, Un", ("n2", "n3")), ("Priority", None)):
        scripted.list_job(State="PENDING", Reason=reason, Name=str(plan.key), Partition="main")
        seen = scripted.backend.observe({plan.key: 1})[plan.key]
        assert (seen.presence, seen.spare_nodes, seen.avoids_strictly) == (Presence.PENDING, spare, True)


def test_a_waiting_job_can_avoid_fewer_nodes_and_keeps_its_owner_s_exclusions(scripted: Scripted) -> None:
    plan = scripted.plan("1", "n2")
    plan = replace(plan, placement=plan.placement.model_copy(update={"exclude": ("n4",)}))
    scripted.nodes(n1="idle", n2="idle", n3="idle", n4="idle")
    scripted.script("scontrol", "")
    scripted.list_job(State="PENDING", Reason="Resources", Name=str(plan.key), Partition="main")
    scripted.backend.avoid_only(plan)
    scripted.backend.avoid_only(replace(plan, excluded_nodes=()))
    assert scripted.calls("scontrol") == [
        "update JobId=17 ExcNodeList=n4,n2",
        "update JobId=17 ExcNodeList=n4",
    ]
    scripted.list_job(State="RUNNING", Name=str(plan.key), Partition="main")
    scripted.backend.avoid_only(plan)
    assert len(scripted.calls("scontrol")) == 2


@pytest.mark.parametrize(
    "words", ["Job is no longer pending execution for job 17", "Invalid job id specified for job 17"]
)
def test_a_job_that_has_left_the_queue_is_not_changed(scripted: Scripted, words: str) -> None:
    plan = scripted.plan("1", "n2")
    scripted.nodes(n1="idle", n2="idle")
    scripted.script("scontrol", f'echo "{words}" >&2; exit 1')
    scripted.list_job(State="PENDING", Reason="Resources", Name=str(plan.key), Partition="main")
    scripted.backend.avoid_only(plan)
    scripted.script("scontrol", 'echo "Access/permission denied for job 17" >&2; exit 1')
    with pytest.raises(BackendUnavailable, match="permission denied"):
        scripted.backend.avoid_only(plan)


def test_a_down_node_is_blamed_for_a_job_that_only_accounting_knows(scripted: Scripted) -> None:
    plan = scripted.plan("2")
    folder = layout.attempt_dir(Path(plan.job_dir), 1)
    folder.mkdir(parents=True)
    (folder / layout.LAUNCH).write_text('{"replicas": 2, "policy": {}}')
    (folder / layout.CLAIM).write_text("slurm-lab-17")
    (folder / "allocation-17").write_text("2 n[1-2]\n")
    scripted.nodes(n1="idle", n2="down")
    scripted.script("squeue", 'case "$*" in *" -j "*) echo "Invalid job id specified" >&2; exit 1 ;; esac')
    row = f"17|{plan.key}|NODE_FAIL|0:15|n[1-2]|1795193279|1795193299|{os.getuid()}|1795193278|"
    scripted.script("sacct", f"echo '{row}'")
    seen = scripted.backend.observe({plan.key: plan.max_nodes})[plan.key]
    assert seen.presence is Presence.GONE
    assert [one.node for one in seen.replicas] == [None, "n2"]
    assert seen.cause is not None
    words = "Slurm lost one of its nodes (Slurm job 17, NODE_FAIL): n2 down: no reason given"
    assert seen.cause.message == words


# Recorded: the controller lost its state and gave our job's id to a job of another user.
REUSED = AttemptKey("train-4fk2", 1)


def reuse_number(scripted: Scripted, *, accounting: bool) -> Path:
    """Return the folder of the attempt whose id another job has now."""
    folder = layout.attempt_dir(scripted.root / REUSED.job_id, REUSED.number)
    folder.mkdir(parents=True)
    (folder / layout.LAUNCH).write_text('{"replicas": 1, "policy": {}}')
    (folder / layout.CLAIM).write_text("slurm-lab-1")
    (folder / "allocation-1").write_text("1 n1\n")
    (folder / "submitted-1").touch()
    os.utime(folder / "submitted-1", (1795620330, 1795620330))
    (listed,) = (RECORDS / "22.05" / "reused_listing.txt").read_text().splitlines()
    (folder / "listing").write_text(listed.replace("|", SEPARATOR) + "\n")
    scripted.script("squeue", f'case "$*" in *" -j "*) cat {folder}/listing ;; esac')
    lines = (RECORDS / "22.05" / "reused_sacct.txt").read_text().splitlines()
    rows = [dict(zip(ACCOUNTING_FIELDS, line.split("|"), strict=True)) for line in lines]
    # The recording was made as root.
    mine = [{**row, "UID": str(os.getuid()) if row["UID"] == "0" else row["UID"]} for row in rows]
    (folder / "accounting").write_text(
        "".join("|".join(row[name] for name in ACCOUNTING_FIELDS) + "\n" for row in mine)
    )
    disabled = 'echo "Slurm accounting storage is disabled" >&2; exit 1'
    scripted.script("sacct", f"cat {folder}/accounting" if accounting else disabled)
    return folder


def test_accounting_explains_our_job_after_its_id_was_reused(scripted: Scripted) -> None:
    reuse_number(scripted, accounting=True)
    seen = scripted.backend.observe({REUSED: 1})[REUSED]
    assert (seen.presence, seen.evidence) == (Presence.GONE, "Slurm job 1 is over: CANCELLED")
    assert seen.cause is not None
    words = "it was cancelled in Slurm by Slurm itself (accounting names no user) (Slurm job 1, CANCELLED)"
    assert (seen.cause.kind, seen.cause.message) == (FailureKind.PREEMPTED, words)


def test_without_accounting_a_reused_id_means_that_our_job_is_gone(scripted: Scripted) -> None:
    reuse_number(scripted, accounting=False)
    seen = scripted.backend.observe({REUSED: 1})[REUSED]
    assert (seen.presence, seen.cause) == (Presence.GONE, None)
    assert seen.evidence == "Slurm no longer knows job 1: another job has that id now"


def test_agents_that_still_write_are_not_gone_after_their_id_was_reused(scripted: Scripted) -> None:
    folder = reuse_number(scripted, accounting=False)
    log = folder / "replica-0" / "1" / layout.PROGRESS
    log.parent.mkdir(parents=True)
    log.touch()
    os.utime(log, (4e9, 4e9))  # in the future, because settle_s is 0
    assert scripted.backend.observe({REUSED: 1})[REUSED].presence is Presence.UNKNOWN


def cancel_by(scripted: Scripted, plan: LaunchPlan, *, accounting: str | None, **fields: str) -> Sighting:
    """Observe a job that somebody else cancelled. `accounting`: its state there, and the administrator's comment."""
    folder = layout.attempt_dir(Path(plan.job_dir), 1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / layout.CLAIM).write_text("slurm-lab-17")
    (folder / "allocation-17").write_text("1 n1\n")
    scripted.nodes(n1="idle")
    listed = {"State": "CANCELLED", "BatchHost": "n1", "NodeList": "n1", "Name": str(plan.key), **fields}
    scripted.list_job(**listed)
    state, _, comment = (accounting or "").partition("|")
    row = f"17|{plan.key}|{state}|0:0|n1|1795193279|1795193299|{os.getuid()}|1795193278|{comment}"
    disabled = 'echo "Slurm accounting storage is disabled" >&2; exit 1'
    scripted.script("sacct", disabled if accounting is None else f"echo '{row}'")
    return scripted.backend.observe({plan.key: plan.max_nodes})[plan.key]


@pytest.mark.parametrize(
    ("accounting", "who"),
    [
        (None, "by somebody else; without accounting, Slurm does not say who it was"),
        (f"CANCELLED by {os.getuid()}", "by {me}, the user that the service runs as"),
        ("CANCELLED by 987654", "by the user with id 987654"),
        ("CANCELLED by 987654|disk | swap", "by the user with id 987654; the administrator's comment: disk | swap"),
        ("CANCELLED", "by Slurm itself (accounting names no user)"),
        ("RUNNING", "by somebody else; accounting does not say who it was"),
    ],
    ids=["no accounting", "ourselves", "another", "comment", "Slurm", "late"],
)
def test_the_cause_of_a_cancellation_names_the_user_if_slurm_does(
    scripted: Scripted, accounting: str | None, who: str
) -> None:
    seen = cancel_by(scripted, scripted.plan("1"), accounting=accounting)
    assert (seen.presence, seen.cause is not None) == (Presence.GONE, True)
    assert seen.cause is not None
    me = pwd.getpwuid(os.getuid()).pw_name
    assert seen.cause.message == f"it was cancelled in Slurm {who.format(me=me)} (Slurm job 17, CANCELLED)"
    remedy = find_remedy(seen.cause)
    assert remedy is not None
    assert remedy.name == "cancelled in Slurm"


@pytest.mark.parametrize("who", ["slurmstepd:", "[2026-11-30T13:53:34.039]"], ids=["22.05", "26.05"])
def test_the_batch_log_shows_that_slurm_cancelled_a_job_for_its_memory(scripted: Scripted, who: str) -> None:
    plan = scripted.plan("1")
    log = layout.attempt_dir(Path(plan.job_dir), 1) / "slurm-17.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{who} error: Exceeded job memory limit\n")
    seen = cancel_by(scripted, plan, accounting=None)
    assert seen.cause is not None
    assert seen.cause.kind is FailureKind.HOST_OOM


def test_a_cancelled_job_waits_for_accounting_to_name_the_user(scripted: Scripted) -> None:
    plan, now = scripted.plan("1"), int(time.time())
    late = cancel_by(scripted, plan, accounting="RUNNING", EndTime=str(now + 60))
    assert (late.presence, late.cause) == (Presence.RUNNING, None)
    named = cancel_by(scripted, plan, accounting="CANCELLED by 987654", EndTime=str(now + 60))
    assert named.cause is not None
    assert "987654" in named.cause.message
    without = cancel_by(scripted, scripted.plan("1"), accounting=None, EndTime=str(now + 60))
    assert without.cause is not None


def test_accounting_is_queried_once_and_never_for_jobs_that_we_cancelled(scripted: Scripted) -> None:
    plan = scripted.plan("1")
    for _ in range(3):
        cancel_by(scripted, plan, accounting="CANCELLED by 0")
    assert len(scripted.calls("sacct")) == 1
    ours = replace(plan, key=AttemptKey(plan.key.job_id, 2))
    scripted.script("scancel", "")
    scripted.list_job(State="RUNNING", Name=str(ours.key))
    scripted.backend.cancel(ours.key, force=True)
    assert cancel_by(scripted, ours, accounting="CANCELLED by 0").cause is None
    assert len(scripted.calls("sacct")) == 1


def test_the_list_of_nodes_is_refreshed_before_a_node_is_blamed(scripted: Scripted) -> None:
    plan = scripted.plan("2")
    scripted.nodes(n1="idle", n2="idle")
    assert scripted.backend.submit(plan) == "17"
    folder = layout.attempt_dir(Path(plan.job_dir), 1)
    (folder / layout.CLAIM).write_text("slurm-lab-17")
    (folder / "allocation-17").write_text("2 n[1-2]\n")
    scripted.nodes(n1="idle", n2="down")
    scripted.list_job(State="NODE_FAIL", Name=str(plan.key), NodeList="n[1-2]")
    seen = scripted.backend.observe({plan.key: plan.max_nodes})[plan.key]
    assert [one.node for one in seen.replicas] == [None, "n2"]


def test_a_job_without_a_script_is_gone_once_slurm_lists_no_step_of_it(scripted: Scripted) -> None:
    plan = scripted.plan("1:2")
    scripted.nodes(n1="idle", n2="idle")
    scripted.backend.submit(plan)
    folder = layout.attempt_dir(Path(plan.job_dir), 1)
    (folder / layout.CLAIM).write_text("slurm-lab-17")
    (folder / "allocation-17").write_text("2 n[1-2]\n")
    scripted.list_job(State="RUNNING", Name=str(plan.key), NodeList="n2", BatchHost="n1")
    jobs, steps = Path(plan.workdir) / "jobs", Path(plan.workdir) / "steps"

    def observe(listed: str | None) -> Presence:
        answer = "exit 1" if listed is None else f"cat {steps}"
        steps.write_text(listed or "")
        scripted.script("squeue", f'case "$*" in *" -s "*) {answer} ;; *) cat {jobs} ;; esac')
        return scripted.backend.observe({plan.key: plan.max_nodes})[plan.key].presence

    assert observe("17.0\n17.batch\n") is Presence.RUNNING
    assert observe(None) is Presence.RUNNING, "no answer proves nothing"
    assert observe("17.batch\n17.extern\n18.0\n") is Presence.GONE


def test_squeue_lists_the_jobs_of_the_service_s_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    scripted = Scripted(tmp_path)
    scripted.script("squeue", "")
    scripted.backend.observe({scripted.plan("1").key: 1})
    assert f" -u {os.getuid()} " in (tmp_path / "squeue.calls").read_text()


def test_a_completing_job_is_not_cancelled(scripted: Scripted) -> None:
    """Otherwise the end would count as ours."""
    plan = scripted.plan("1")
    scripted.script("scancel", "")
    scripted.list_job(State="COMPLETING", Name=str(plan.key))
    scripted.backend.cancel(plan.key, force=True)
    assert not (Path(plan.workdir) / "scancel.calls").exists()
    scripted.list_job(State="RUNNING", Name=str(plan.key))
    scripted.backend.cancel(plan.key, force=True)
    assert (Path(plan.workdir) / "scancel.calls").read_text() == "--quiet 17\n"


def test_a_cluster_that_answers_again_is_noticed_even_without_an_attempt(scripted: Scripted) -> None:
    """While Slurm does not answer, the last attempt may end by its own record."""
    key = scripted.plan("1").key
    scripted.script("squeue", "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1")
    with pytest.raises(BackendUnavailable):
        scripted.backend.observe({key: 1})
    with pytest.raises(BackendUnavailable):
        scripted.backend.observe({})
    scripted.list_job(JobName=str(key), state="RUNNING")
    assert scripted.backend.observe({}) == {}
    assert scripted.backend.slots() is None
    calls = scripted.calls("squeue")
    assert scripted.backend.observe({}) == {}
    assert scripted.calls("squeue") == calls, "without attempts, a cluster that answers is not asked"
