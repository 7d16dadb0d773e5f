"""`clusters` and `nodes`: the clusters, and the nodes that jobs avoid."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, print_json, reading, writing
from orchestrator.cli.render import print_clusters, print_nodes
from orchestrator.cli.terminal import echo, say
from orchestrator.client import Client
from orchestrator.domain.errors import NotFound, Refused


def clusters(as_json: AsJson = False) -> None:
    """List the clusters, with their nodes and jobs."""
    with reading() as client:
        found = client.clusters()
    if as_json:
        print_items(found)
        return
    print_clusters(found)
    for cluster in found:
        if not cluster.answers:
            say(f"{cluster.name} does not answer: {cluster.detail}", err=True)


nodes = typer.Typer(rich_markup_mode=None, add_completion=False)


@nodes.callback(invoke_without_command=True)
def _list_nodes(
    context: typer.Context,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Show only the nodes of this cluster.")] = None,
    as_json: AsJson = False,
) -> None:
    """List nodes with recorded failures, or clear a record."""
    if context.invoked_subcommand is not None:
        return
    with reading() as client:
        found = client.nodes(cluster=cluster)
    if as_json:
        print_items(found)
        return
    if not found:
        say("No node has a failure in its record.", err=True)
        return
    print_nodes(found)
    if any(node.excluded_until is not None for node in found):
        say("`orchestrator nodes clear NODE` lets attempts use a node again.", err=True)


@nodes.command()
def clear(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of `orchestrator nodes`.")],
    cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Required if several clusters have a node with this name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Clear the record of a node that is healthy again. Attempts may then use it."""
    with writing() as client:
        where = _find_cluster(client, node) if cluster is None else cluster
        client.clear_node(where, node)
    if as_json:
        print_json({"cluster": where, "node": node})
    else:
        echo(f"cleared the record of node {node} of cluster {where}")


def _find_cluster(client: Client, node: str) -> str:
    """Return the cluster of a node with a record. Raises NotFound, Refused."""
    where = [each.cluster for each in client.nodes() if each.name == node]
    if not where:
        raise NotFound(f"node {node} has no failure in its record; `orchestrator nodes` lists the nodes that have one")
    if len(where) > 1:
        raise Refused(f"clusters {', '.join(where)} each have a node {node} with a record; choose one with --cluster")
    return where[0]
