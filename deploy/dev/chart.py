"""Render the Helm chart with Helm's own library. No helm program is needed.

    python -m deploy.dev.chart                      print the output of `helm template orchestrator -n orchestrator`
    python -m deploy.dev.chart --values more.yaml   with these values over the defaults
    python -m deploy.dev.chart --lint               print only what `helm lint --strict` reports
    python -m deploy.dev.chart --write              write deploy/kubernetes/manifests.yaml

Run it as a separate process: the library starts Go's runtime, which a test process should not share.
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
# First set your images, storage class and namespace, and create the three Secrets (docs/deploy.md).
"""


def render(values: dict[str, Any], *, name: str = "orchestrator", namespace: str = "orchestrator") -> str:
    """Return the manifests as one YAML stream, sorted by template name. Raises helm_python.HelmError."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name=name, namespace=namespace)
    texts = [text.strip() for path, text in sorted(rendered.items()) if path.endswith(".yaml") and text.strip()]
    return "".join(f"---\n{text.removeprefix('---').strip()}\n" for text in texts)


def lint() -> list[str]:
    """Return Helm's warnings and errors for the chart with its default values."""
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
