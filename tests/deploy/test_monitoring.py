"""Alerts and dashboard use only metrics and labels that the service has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.main import COMMANDS
from orchestrator.telemetry.metrics import Levels, Metrics
from tests.deploy.tools import require_program

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
ALERT_TESTS = ROOT / "tests" / "deploy" / "alerts_test.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
OBSERVABILITY = ROOT / "docs" / "observability.md"

_NAME = re.compile(r"\b(?:orchestrator|process)_[a-z_]+\b")
_SELECTOR = re.compile(r"\b((?:orchestrator|process)_[a-z_]+)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on) \(([a-z_, ]*)\)")
_ADDED_BY_PROMETHEUS = {"instance", "job", "le"}


def _families() -> dict[str, Metric]:
    """Return every metric of the service by the names that a query may use."""
    metrics = Metrics(version="1.2.3", clusters=["local"])
    levels = Levels(jobs_by_state={"QUEUED": 1}, oldest_queued_s={"local": 1.0}, oldest_snapshot_s={"local": 1.0})
    names: dict[str, Metric] = {}
    for family in text_string_to_metric_families(metrics.render(levels).decode()):
        if family.name.endswith("_created"):
            continue  # the start time of a counter, which no query uses
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        names |= {family.name + suffix: family for suffix in suffixes}
    return names


def _labels() -> dict[str, set[str]]:
    """Return the labels of each metric. The registry knows them before the first sample."""
    suffixes = ("", "_total", "_bucket", "_count", "_sum")
    return {name + suffix: set(labels) for name, labels in Metrics().labels.items() for suffix in suffixes}


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def _expressions() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in _rules())
    yield from ((panel["title"], target["expr"]) for panel in _panels() for target in panel.get("targets", []))


def test_every_metric_in_alerts_and_dashboard_exists() -> None:
    known, asked = _families(), {(where, name) for where, text in _expressions() for name in _NAME.findall(text)}
    assert len({name for _, name in asked}) > 20
    assert {(where, name) for where, name in asked if name not in known} == set()


def test_every_label_in_alerts_and_dashboard_exists() -> None:
    known = _labels()
    wrong = []
    for where, text in _expressions():
        here = [name for name in _NAME.findall(text) if name in known]
        of_all = set().union(*(known[name] for name in here)) | _ADDED_BY_PROMETHEUS
        for name, selector in _SELECTOR.findall(text):
            wrong += [
                (where, name, label)
                for label in re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selector)
                if label not in known.get(name, set()) | _ADDED_BY_PROMETHEUS
            ]
        for grouping in _GROUPING.findall(text):
            labels = {label.strip() for label in grouping.split(",") if label.strip()}
            wrong += [(where, "by", label) for label in labels - of_all]
    assert wrong == []


def test_every_metric_is_documented() -> None:
    explained = set(re.findall(r"^\| `(orchestrator_[a-z_]+)", OBSERVABILITY.read_text(), re.MULTILINE))
    ours = {name for name in _families() if name.startswith("orchestrator_") and not name.endswith(("_bucket", "_sum"))}
    assert explained == {name.removesuffix("_count") for name in ours}


def test_every_alert_has_a_severity_a_summary_and_a_runbook() -> None:
    for rule in _rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in _rules()]
    for section in re.split(r"^## ", RUNBOOKS.read_text(), flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["Means", "Look", "Do"], section


def test_commands_and_links_in_runbooks_exist() -> None:
    text = RUNBOOKS.read_text()
    assert set(re.findall(r"(?:`|^ +)orchestrator ([a-z]+)", text, re.MULTILINE)) <= set(COMMANDS)
    sections = {section.lower() for section in re.findall(r"^## (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", text)) <= sections


def test_templates_of_alerts_use_existing_labels() -> None:
    for rule in _rules():
        used = set(re.findall(r"\$labels\.([a-z_]+)", json.dumps(rule["annotations"])))
        kept = {label.strip() for each in _GROUPING.findall(rule["expr"]) for label in each.split(",")}
        assert used <= kept | ({"instance"} if rule["expr"].startswith("up{") else set()), rule["alert"]


def test_panels_do_not_overlap() -> None:
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_prometheus_accepts_the_alerts() -> None:
    promtool = require_program("promtool", "Debian: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "rules", ALERTS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(_rules())} rules found" in done.stdout


def test_prometheus_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """promtool does not read dashboards, so the queries become recording rules."""
    promtool = require_program("promtool", "Debian: apt-get install prometheus")
    queries = [target["expr"] for panel in _panels() for target in panel.get("targets", [])]
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m").replace("$cluster", ".*")}
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [promtool, "check", "rules", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    promtool = require_program("promtool", "Debian: apt-get install prometheus")
    shutil.copy(ALERTS, tmp_path / "alerts.yaml")
    shutil.copy(ALERT_TESTS, tmp_path / "test.yaml")
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
