"""Renders the Helm chart with Helm's own library, where there is no helm program.

    python -m deploy.dev.chart                      print what `helm template orchestrator -n orchestrator` would
    python -m deploy.dev.chart --values more.yaml   with these values on top
    python -m deploy.dev.chart --lint               only say what Helm has against the chart
    python -m deploy.dev.chart --write              write deploy/kubernetes/manifests.yaml

A process of its own each time: the library brings Go's runtime with it, which no test's process should share.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml

HERE = Path(__file__).resolve().parents[1] / "kubernetes"
CHART, MANIFESTS = HERE / "chart", HERE / "manifests.yaml"
_HEAD = """\
# The chart with its default values, for clusters without Helm: python -m deploy.dev.chart --write
# Put your images, your storage class and your namespace in, and make the three Secrets first (docs/deploy.md).
"""


def render(values: dict[str, Any], *, name: str = "orchestrator", namespace: str = "orchestrator") -> str:
    """The manifests as one YAML stream, by the names of their templates. Raises helm_python.HelmError."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name=name, namespace=namespace)
    texts = [text.strip() for path, text in sorted(rendered.items()) if path.endswith(".yaml") and text.strip()]
    return "".join(f"---\n{text.removeprefix('---').strip()}\n" for text in texts)


def lint() -> list[str]:
    """What Helm has against the chart, with its default values."""
    found = helm_python.lint(CHART, strict=True)
    return [f"{message['path']}: {message['error']}" for message in found["messages"] if message["severity"] > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=argparse.FileType(), help="a file of values, or - for standard input")
    parser.add_argument("--lint", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.lint:
        sys.exit("\n".join(lint()) or None)
    values = {} if options.values is None else yaml.safe_load(options.values) or {}
    try:
        text = render(values)
    except helm_python.HelmError as error:
        sys.exit(f"Helm: {error}")
    if options.write:
        MANIFESTS.write_text(_HEAD + text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
