"""Documents between the service and Kubernetes pods: what a pod starts, and its last words. Pure.

A pod's last words are the container's termination message, of which the kubelet keeps 4096 bytes (Kubernetes,
"Determine the Reason for Pod Failure").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainer.contract.exit_record import ExitRecord, parse_exit_record, render_exit_record
from trainer.contract.launch import LaunchPolicy, parse_policy, render_policy
from trainer.contract.node import NodeLaunch, parse_node_launch, render_node_launch
from trainer.contract.words import cut_traceback

LAST_WORDS_BYTES = 4096
_SHORT_MESSAGE, _SHORT_TRACEBACK = 600, 1000  # characters; one may take six bytes in JSON, an escape


@dataclass(frozen=True, kw_only=True)
class PodLaunch:
    """What every pod of an attempt starts, and the content of `launch.json` if the service cannot write that."""

    node: NodeLaunch
    policy: LaunchPolicy
    replicas: int


def render_pod_launch(launch: PodLaunch) -> dict[str, object]:
    policy = {"version": 1, "replicas": launch.replicas, "policy": render_policy(launch.policy)}
    return {"node": render_node_launch(launch.node), "launch": policy}


def parse_pod_launch(document: Mapping[str, object]) -> PodLaunch:
    """Raises ValueError for an incomplete document."""
    node, launch = document.get("node"), document.get("launch")
    policy = launch.get("policy") if isinstance(launch, Mapping) else None
    if not isinstance(node, Mapping) or not isinstance(launch, Mapping) or not isinstance(policy, Mapping):
        raise ValueError("pod launch: node or launch is not an object")
    return PodLaunch(
        node=parse_node_launch(node), policy=parse_policy(policy), replicas=int(str(launch.get("replicas", 1)))
    )


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """The exit record of one incarnation of a replica's agent, from its pod."""

    replica: int
    incarnation: int
    record: ExitRecord


def render_last_words(words: LastWords) -> str:
    """At most LAST_WORDS_BYTES of JSON: a traceback is shortened, then left out, then the message is shortened."""
    text = _dump(words)
    if len(text) > LAST_WORDS_BYTES and words.record.failure is not None:
        failure = words.record.failure
        shorter = (
            replace(failure, traceback=cut_traceback(failure.traceback or "", limit=_SHORT_TRACEBACK)),
            replace(failure, traceback=None),
            replace(failure, traceback=None, message=failure.message[:_SHORT_MESSAGE]),
        )
        texts = [_dump(replace(words, record=replace(words.record, failure=each))) for each in shorter]
        text = next((each for each in texts if len(each) <= LAST_WORDS_BYTES), texts[-1])
    return text


def parse_last_words(text: str) -> LastWords | None:
    """None for any other message: a user's container may write its own."""
    try:
        document = json.loads(text)
        return LastWords(
            replica=int(str(document["replica"])),
            incarnation=int(str(document["incarnation"])),
            record=parse_exit_record(document["record"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _dump(words: LastWords) -> str:
    document = {
        "replica": words.replica,
        "incarnation": words.incarnation,
        "record": render_exit_record(words.record),
    }
    return json.dumps(document, separators=(",", ":"))
