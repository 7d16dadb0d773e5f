"""Examples of request bodies for the OpenAPI document. A service with default settings accepts each of them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.sweep import ArraySpec
from orchestrator.wire.credential_views import SecretRequest, TokenRequest
from orchestrator.wire.job_requests import ChaosRequest, RetryRequest, ScaleRequest, StacksRequest
from orchestrator.wire.webhook_views import WebhookRequest

EXAMPLES: Mapping[type[BaseModel], Mapping[str, object]] = {
    JobSpec: {
        "bundled trainer": {
            "name": "stdlib-gpt",
            "run": {"trainer": {"model": "gpt", "data": "stdlib", "steps": 300, "global_batch": 64}},
            "topology": {"workers_per_node": 2},
            "snapshot": {"interval": "50"},
        },
        "any program": {"name": "hello", "run": {"command": ["echo", "hello"]}, "labels": {"team": "research"}},
    },
    ArraySpec: {
        "two learning rates": {
            "name": "lr",
            "run": {"command": ["echo", "train"]},
            "sweep": {"product": {"--lr": [0.1, 0.01]}, "at_once": 1},
        },
    },
    RetryRequest: {
        "with the same spec": {},
        "with another learning rate": {"patch": {"run": {"trainer": {"learning_rate": 0.0003}}}},
    },
    ScaleRequest: {"a number": {"nodes": 1}, "a range": {"nodes": "1:2"}},
    StacksRequest: {"all ranks": {}, "one rank": {"rank": 0}},
    ChaosRequest: {"kill the last rank": {"fault": "kill"}, "lose a node": {"fault": "node-loss", "node": 0}},
    WebhookRequest: {
        "a pager": {"name": "pager", "url": "https://hooks.example/jobs", "events": ["job.state"], "all_jobs": True}
    },
    TokenRequest: {
        "for a person": {"name": "alice", "grants": {"research": "operator", "*": "viewer"}},
        "for a program, with an expiry": {
            "name": "nightly",
            "grants": {"research": "submitter"},
            "expires_at": "2099-01-01T00:00:00Z",
        },
    },
    SecretRequest: {"a key": {"project": "research", "name": "WANDB_API_KEY", "value": "0123456789abcdef"}},
}
