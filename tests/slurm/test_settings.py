"""Settings and placement fields of Slurm clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.bootstrap.cluster_backends import build_slurm_site
from orchestrator.bootstrap.machine import build_clusters
from orchestrator.cluster_settings import SlurmClusterSettings
from orchestrator.commands.preview import render_plan
from orchestrator.commands.submission import check_submission
from orchestrator.domain.errors import ConfigurationError, InvalidSpec
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.time_limit import Notice
from orchestrator.domain.specs.unsupported import find_unsupported
from orchestrator.settings import Settings, load_settings
from tests.builders import make_spec

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    def loaded(text: str) -> Settings:
        path = tmp_path / "orchestrator.toml"
        path.write_text(f'root = "{tmp_path}"\n{text}')
        monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(path))
        return load_settings(path)

    return loaded


def test_without_clusters_there_is_the_local_one_and_otherwise_only_those_configured(load: Load) -> None:
    assert [place.cluster.kind for place in build_clusters(load(""), 0, b"key")] == ["local"]
    lab = '[clusters.lab]\nbackend = "slurm"\ndefaults = {partition = "main"}\nmax_jobs = 9\n'
    (place,) = build_clusters(load(lab), 0, b"key")
    assert (place.cluster.name, place.cluster.kind, place.cluster.max_jobs) == ("lab", "slurm", 9)
    assert (place.cluster.images, place.poll_s, place.submit_timeout_s) == (False, 5.0, 60.0)
    both = lab + '[clusters.local]\nbackend = "local"\n'
    assert [place.cluster.name for place in build_clusters(load(both), 0, b"key")] == ["lab", "local"]


def test_a_time_limit_that_leaves_little_time_is_refused_or_a_warning(load: Load) -> None:
    lab = '[clusters.lab]\nbackend = "slurm"\nnotice_s = 90\n'
    (place,) = build_clusters(load(lab), 0, b"key")
    assert place.cluster.notice == Notice(before_s=90)

    def spec(limit_s: float) -> JobSpec:
        return make_spec(cluster="lab", run={"command": ["t"], "workdir": "/"}, placement={"time_limit_s": limit_s})

    with pytest.raises(InvalidSpec, match="/placement/time_limit_s: is 60 s, but the cluster tells a job to end 90 s"):
        check_submission(spec(60), place.cluster)
    check_submission(spec(120), place.cluster)
    assert any("placement.time_limit_s of 120 s" in each for each in render_plan(spec(120), place.cluster).warnings)
    assert not any("placement.time_limit_s" in each for each in render_plan(spec(300), place.cluster).warnings)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('partition = "main"', r"^setting clusters\.lab\.partition: "),
        ('root = "/shared/100%"', "without '%'"),
        ('root = "relative"', "absolute"),
        ("poll_s = 0", r"^setting clusters\.lab\.poll_s: "),
        ('defaults = {colour = "red"}', r"clusters\.lab\.defaults\.colour: "),
        ('rest_url = "unix:/run/rest"', r"^setting clusters\.lab: .*needs defaults.partition"),
        ('rest_url = "http://slurm:6820"\ndefaults = {partition = "main"}', "needs rest_token_file"),
        ('rest_url = "slurm:6820"\ndefaults = {partition = "main"}', "must be http"),
        ('rest_url = "unix:/run/rest"\nconf = "/etc/slurm.conf"', "are for Slurm's commands"),
        ('rest_user = "team"', "need rest_url"),
        ('rest_url = "http://me:hush@slurm:6820"\nrest_token_file = "/t"', "no password"),
        ('rest_url = "unix:/run/rest"\nrest_user = "team"', "rest_user needs rest_token_file"),
        ('rest_url = "http://slurm:port"\nrest_token_file = "/t"', "Invalid port"),
    ],
)
def test_a_wrong_setting_is_named(load: Load, line: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        load(f'[clusters.lab]\nbackend = "slurm"\n{line}\n')


def test_an_error_about_a_table_does_not_quote_it(load: Load) -> None:
    table = 'rest_url = "http://me:hush@slurm:6820"\nrest_token_file = "/t"'
    with pytest.raises(ConfigurationError, match=r"holds the credentials$") as error:
        load(f'[clusters.lab]\nbackend = "slurm"\n{table}\n')
    assert "hush" not in str(error.value)


def test_nodes_and_service_may_see_the_root_in_different_places(tmp_path: Path) -> None:
    given = SlurmClusterSettings(backend="slurm", root=Path("/shared/runs"), service_root=tmp_path)
    site = build_slurm_site(given, Settings(root=tmp_path))
    assert site.seen_by_service(Path("/shared/runs/job/attempts/1")) == tmp_path / "job/attempts/1"
    assert site.agent_dir.parent == Path("/shared/runs/.agents")


def test_unknown_fields_and_options_that_the_service_sets_are_refused() -> None:
    placement = {"queue": "q", "options": {"output": "/etc/passwd"}}
    found = find_unsupported(make_spec(placement=placement, cluster="slurm"), "slurm")
    assert {problem.pointer for problem in found} == {"/placement/queue", "/placement/options"}
    assert find_unsupported(make_spec(placement={"options": {"mail-type": "END"}}), "slurm") == []
    assert find_unsupported(make_spec(placement={"time_limit_s": 60}), "local") != []


@pytest.mark.parametrize(
    "name", ["wrap", "wra", "w", "outp", "job-n", "gid", "ui", "bbf", "nodefile", "nodelist", "exclud"]
)
def test_abbreviated_options_are_refused(name: str) -> None:
    """sbatch uses getopt_long(3), which accepts `--outp=x` for `--output=x`."""
    found = find_unsupported(make_spec(placement={"options": {name: "x"}}), "slurm")
    assert [problem.pointer for problem in found] == ["/placement/options"]


@pytest.mark.parametrize("name", ["mail-type", "exclusive-of-nothing", "hint", "spread-job", "licenses", "nice", "mem"])
def test_other_options_are_accepted(name: str) -> None:
    assert find_unsupported(make_spec(placement={"options": {name: "x"}}), "slurm") == []


@pytest.mark.parametrize("name", ["nodelist", "exclude"])
def test_a_node_list_cannot_name_a_file(name: str) -> None:
    """sbatch(1) reads a list with a slash from that file and prints its content in an error."""
    for nodes in (["/etc/shadow"], ["n1", "./n2"]):
        found = find_unsupported(make_spec(placement={name: nodes}), "slurm")
        assert [problem.pointer for problem in found] == [f"/placement/{name}"]
    assert find_unsupported(make_spec(placement={name: ["n1", "n[2-5]"]}), "slurm") == []
