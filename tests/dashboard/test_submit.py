"""The page to submit a job."""

from __future__ import annotations

import re

from tests.api.conftest import World
from tests.dashboard.looks import HTML, Markup, page

ORIGIN = {**HTML, "Origin": "http://localhost:8700"}


def spec_of(world: World, more: str = "") -> str:
    return f"name: demo\nrun: {{script: train.py, workdir: {world.workdir}}}\n{more}"


def trainer_of(world: World) -> str:
    run = f"run: {{trainer: {{model: gpt, steps: 10}}, workdir: {world.workdir}}}"
    return f"name: demo\n{run}\nresources: {{memory_gb: 4}}\n"


def test_the_submit_page_starts_with_a_valid_spec(world: World) -> None:
    text = page(world, "/submit")
    assert "Plan</h2>" in text
    assert "global_batch: 64" in text
    assert 'value="local"' in text
    assert not world.client.get("/api/v1/jobs").json()["items"], "opening the page submits nothing"


def test_a_spec_becomes_a_job_once(world: World) -> None:
    form = {"yaml": spec_of(world), "key": "abc"}
    answers = [world.client.post("/submit", data=form, headers=ORIGIN) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert answers[0].headers["location"] == answers[1].headers["location"], "a double click submits one job"
    (job,) = world.client.get("/api/v1/jobs").json()["items"]
    assert answers[0].headers["location"] == f"/jobs/{job['id']}"


def test_a_draft_does_not_reveal_jobs_of_other_projects(closed: World) -> None:
    owner, stranger = closed.give("default=submitter", name="alice"), closed.give("vision=submitter", name="eve")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(), headers=owner).json()["id"]
    told = []
    for name in (job_id, "absent"):
        form = {"changed": "yaml", "yaml": spec_of(closed, f"project: vision\nafter: [{name}]\n")}
        plan = closed.client.post("/submit/draft", data=form, headers={**ORIGIN, **stranger}).json()["plan"]
        assert f"there is no job {name}" in plan
        told.append(plan.replace(name, "absent"))
    assert told[0] == told[1]


def test_a_refused_spec_is_shown_again_with_its_errors(world: World) -> None:
    for text, words in (
        (spec_of(world, "topology: {nodes: 0}"), "/topology/nodes"),
        (spec_of(world, "colour: red"), "/colour"),
        ("name: [", "not YAML"),
        ("", "the YAML is empty"),
    ):
        answer = world.client.post("/submit", data={"yaml": text, "key": "k"}, headers=ORIGIN)
        assert answer.status_code == 422
        assert words in answer.text
        assert "This spec cannot be submitted" in answer.text
        assert text.split("\n")[0] in answer.text, "the form keeps the typed text"
    assert not world.client.get("/api/v1/jobs").json()["items"]


def draft(world: World, changed: str, yaml: str, **fields: str) -> dict[str, object]:
    answer = world.client.post("/submit/draft", data={"changed": changed, "yaml": yaml, **fields}, headers=ORIGIN)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_the_form_and_the_yaml_update_each_other(world: World) -> None:
    made = draft(
        world, "form", spec_of(world), kind="script", script="train.py", nodes="2:4", workdir=str(world.workdir)
    )
    assert "nodes: '2:4'" in str(made["yaml"])
    read = draft(world, "yaml", str(made["yaml"]))
    assert isinstance(read["fields"], dict)
    assert read["fields"]["nodes"] == "2:4"
    assert "4 agents" in str(read["plan"])


def test_the_plan_shows_memory_by_strategy_request_and_warnings(world: World) -> None:
    plan = str(draft(world, "yaml", trainer_of(world))["plan"])
    assert "Memory per device, by strategy" in plan
    assert "fits" in plan
    widths = [float(width) for width in re.findall(r'<rect class="term-\w+" x="[\d.]+%" width="([\d.]+)%"', plan)]
    assert widths
    assert all(0 <= width <= 100 for width in widths)
    assert "elasticrun" in plan or "trainer" in plan
    assert "not enforced" in plan


def test_invalid_yaml_does_not_change_the_form(world: World) -> None:
    found = draft(world, "yaml", "name: [")
    assert (found["yaml"], found["fields"]) == (None, None)
    assert "not YAML" in str(found["plan"])


def test_a_clone_has_the_spec_of_its_source(world: World) -> None:
    job_id = world.submit(labels={"team": "speech"}, topology={"nodes": "1:3"}, supervise={"max_runtime_s": 77})
    text = page(world, f"/submit?from={job_id}")
    for words in ("team: speech", "max_runtime_s: 77", "Clone of"):
        assert words in text
    nodes = [names["value"] for names in Markup(text).all("input") if names.get("name") == "nodes"]
    assert nodes == ["1:3"]
    assert world.client.get("/submit?from=absent", headers=HTML).status_code == 404


def test_a_hostile_spec_is_shown_as_text(world: World) -> None:
    hostile = "name: <script>alert(1)</script>\nrun: {command: ['<img src=x onerror=alert(1)>'], workdir: /}"
    for answer in (
        world.client.post("/submit", data={"yaml": hostile}, headers=ORIGIN).text,
        str(draft(world, "yaml", hostile)["plan"]),
    ):
        markup = Markup(answer)
        assert not [names for names in markup.all("img") if names["src"] == "x"]
        assert all(str(names["src"]).startswith("/static/") for names in markup.all("script"))
