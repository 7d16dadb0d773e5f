"""Job files: how they are read, and errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.spec import read_spec
from orchestrator.domain.errors import InvalidSpec, Refused


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(content: str | bytes, *changes: str) -> dict[str, object]:
    Path("job.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    return read_spec("job.yaml", changes)


def test_yaml_follows_the_core_schema() -> None:
    text = "nodes: 2:8\nrate: 1e-3\nflag: on\nday: 2026-01-02\nsteps: 10\nnone: ~\nno: false\nmodel: 010\n"
    assert read(text) == {
        "nodes": "2:8",
        "rate": 0.001,
        "flag": "on",
        "day": "2026-01-02",
        "steps": 10,
        "none": None,
        "no": False,
        "model": 10,
    }


def test_numbers_in_arguments_stay_as_they_are_written() -> None:
    run = "run: {script: a.py, args: [--lr, 3e-4, --steps, 1e5, 010, -1], env: {SEED: 007, DEBUG: 1, T: .5}}"
    found = read(f"name: a\n{run}\ntopology: {{nodes: 2}}")
    assert found["run"]["args"] == ["--lr", "3e-4", "--steps", "1e5", "010", "-1"]  # type: ignore[index]
    assert found["run"]["env"] == {"SEED": "007", "DEBUG": "1", "T": ".5"}  # type: ignore[index]
    assert found["topology"] == {"nodes": 2}
    assert read("run: {command: [sleep, 3]}")["run"]["command"] == ["sleep", "3"]  # type: ignore[index]
    assert read("run: [1]") == {"run": [1]}
    shared = read("steps: &steps 10\nrun: {env: {STEPS: *steps}}")
    assert (shared["steps"], shared["run"]["env"]) == (10, {"STEPS": "10"})  # type: ignore[index]


def test_numbers_in_changed_arguments_stay_as_they_are_written() -> None:
    found = read("run: {script: a.py}", "run.args=[--lr, 3e-4, 010]", "run.env={A: 1e5}", "topology.nodes=2")
    assert found["run"]["args"] == ["--lr", "3e-4", "010"]  # type: ignore[index]
    assert (found["run"]["env"], found["topology"]) == ({"A": "1e5"}, {"nodes": 2})  # type: ignore[index]


def test_numbers_of_a_sweep_stay_as_they_are_written_where_they_become_texts() -> None:
    product = "sweep: {product: {--lr: [1e-3, 010], run.env.N: [007], --b: [[.9, 1]], run.trainer.steps: [010]}}"
    assert read(product)["sweep"] == {
        "product": {"--lr": ["1e-3", "010"], "run.env.N": ["007"], "--b": [[".9", "1"]], "run.trainer.steps": [10]}
    }
    listed = read("sweep: {list: [{--lr: 1e-3, priority: 010}], at_once: 2}")["sweep"]
    assert listed == {"list": [{"--lr": "1e-3", "priority": 10}], "at_once": 2}
    assert read("sweep: [1e3]")["sweep"] == [1000.0]


def test_a_python_file_is_no_job_file() -> None:
    with pytest.raises(Refused, match=r"train.py is a Python file; run it with: orchestrator run train.py"):
        read_spec("train.py")


def test_json_is_read_with_its_tabs() -> None:
    assert read('{\n\t"name": "a"\n}') == {"name": "a"}


def test_a_relative_workdir_starts_at_the_current_folder(folder: Path) -> None:
    assert read("run: {script: a.py}")["run"] == {"script": "a.py", "workdir": str(folder)}
    assert read("run: {workdir: src}")["run"] == {"workdir": str(folder / "src")}
    assert read("run: {workdir: /abs}")["run"] == {"workdir": "/abs"}


def test_changes_are_made_in_their_order() -> None:
    document = read("name: a\nrun: {trainer: {steps: 1}}", "run.trainer.steps=20", "labels.team=5", "name=b")
    assert document["name"] == "b"
    assert document["labels"] == {"team": "5"}
    assert document["run"]["trainer"] == {"steps": 20}  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "job.yaml is empty"),
        ("# only a comment\n", "job.yaml is empty"),
        ("- a\n- b\n", "contains a list, must contain a mapping"),
        ("just text", "contains a text, must contain a mapping"),
        ("name: [a\n", "line 2, column 1"),
        ("a: 1\n\tb: 2\n", "line 2, column 1"),
        ("name: a\nname: b\n", "line 2, column 1: the key 'name' appears twice"),
        ("name: a\n---\nname: b\n", "line 2, column 1"),
        ("x: !!python/object:os.system {}\n", "could not determine a constructor"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"a" * 5_000_000, "is larger than 1048576 bytes"),
        ("[" * 5000, "nested too deeply"),
        ("labels: {1: x}", "/labels: has the key 1"),
        ("a: &a {b: *a}", "nested deeper than"),
        ("a: 1e999", "/a: is inf, must be a finite number"),
        ("x: !!set {a, b}", "/x: is a set"),
    ],
)
def test_an_invalid_job_file_is_refused_in_one_line(content: str | bytes, said: str) -> None:
    with pytest.raises(Refused) as caught:
        read(content)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_expanding_aliases_are_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(InvalidSpec, match="holds more than"):
        read("\n".join(lines))


@pytest.mark.parametrize("change", ["steps", "=3", "a..b=3", "name.x=3"])
def test_an_invalid_set_option_is_refused(change: str) -> None:
    with pytest.raises(Refused, match="--set"):
        read("name: a", change)


@pytest.mark.parametrize(("path", "said"), [("nope.yaml", "No such file"), (".", "Is a directory")])
def test_an_unreadable_file_is_refused(path: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read_spec(path)
