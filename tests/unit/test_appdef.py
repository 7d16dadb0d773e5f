"""An AppDef as plain values."""

from __future__ import annotations

from enum import Enum

from torchx.specs import AppDef, Resource, RetryPolicy, Role

from orchestrator.domain.job.appdef import render_appdef


class Tier(Enum):
    FAST = 2


class Opaque:
    def __str__(self) -> str:
        return "opaque"


def test_an_appdef_has_only_values_of_json() -> None:
    odd = {"tier": Tier.FAST, "zones": ("a", "b"), 7: Opaque()}
    plain = {"none": None, "share": 0.5, "spot": True}
    resource = Resource(cpu=1, gpu=0, memMB=1, capabilities={**odd, **plain})  # type: ignore[dict-item]
    role = Role(name="r", image="i", retry_policy=RetryPolicy.REPLICA, resource=resource)
    (shown,) = render_appdef(AppDef(name="demo", roles=[role]))["roles"]
    assert type(shown["retry_policy"]) is str
    assert shown["resource"]["capabilities"] == {"tier": 2, "zones": ["a", "b"], "7": "opaque", **plain}
