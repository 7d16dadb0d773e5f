"""Parse Prometheus text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.telemetry.metrics import Levels, Metrics


def value(metrics: Metrics, name: str, levels: Levels | None = None, **labels: str) -> float | None:
    """The sample with exactly these labels. None if there is none."""
    return read(metrics.render(levels).decode(), name, **labels)


def read(text: str, name: str, **labels: str) -> float | None:
    """The sample with exactly these labels. None if there is none."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) <= 1, f"{name} has {len(found)} samples"
    return found[0] if found else None
