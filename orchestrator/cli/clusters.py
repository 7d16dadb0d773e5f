"""`clusters` and `nodes`: what there is to run on."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, reading
from orchestrator.cli.render import print_clusters, print_nodes
from orchestrator.cli.terminal import echo


def clusters(as_json: AsJson = False) -> None:
    """List the clusters and what they hold."""
    with reading() as client:
        found = client.clusters()
    if as_json:
        print_items(found)
        return
    print_clusters(found)
    for cluster in found:
        if not cluster.answers:
            echo(f"{cluster.name} does not answer: {cluster.detail}", err=True)


def nodes(cluster: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False) -> None:
    """List the nodes with failures in their record."""
    with reading() as client:
        found = client.nodes(cluster=cluster)
    if as_json:
        print_items(found)
    elif found:
        print_nodes(found)
    else:
        echo("No node has a failure in its record.", err=True)
