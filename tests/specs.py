"""Random valid specs, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_labels = st.dictionaries(st.sampled_from(["team", "sweep", "a.b/c"]), _texts, max_size=2)
_seconds = st.floats(0.001, 1e8) | st.integers(1, 10**8)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=4,
)
_environments = st.dictionaries(st.sampled_from(["SEED", "PATH_TO_DATA"]), _texts | st.integers(), max_size=2)
_runs = st.fixed_dictionaries(
    {"script": st.just("train.py")},
    optional={"args": st.lists(_texts | st.floats(0, 1) | st.integers(), max_size=3), "env": _environments},
) | st.fixed_dictionaries({"trainer": st.fixed_dictionaries({}, optional={"steps": st.integers(1, 9)})})
_SECTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "topology": {"nodes": st.sampled_from([1, "2", "2:8", "3:3"]), "workers_per_node": st.sampled_from([1, 8, "gpu"])},
    "resources": {"cpus": st.floats(0.1, 99) | st.integers(1, 99), "memory_gb": st.floats(1e-7, 1e6), "extra": _labels},
    "placement": {
        "time_limit_s": _seconds,
        "exclude": st.lists(_texts, max_size=2),
        "tolerations": st.lists(st.dictionaries(_texts, _json, max_size=2), max_size=2),
        "overlay": st.dictionaries(_texts, _json, max_size=2),
    },
    "snapshot": {"from": _texts, "interval": st.sampled_from(["auto", "30s", 5]), "keep": st.integers(1, 9)},
    "supervise": {
        "heartbeat_timeout_s": _seconds | st.just("auto"),
        "max_runtime_s": _seconds,
        "grow_back_after_s": st.none() | _seconds,
        "backoff_s": st.tuples(st.integers(0, 9), st.floats(9, 99)),
        "budgets": st.fixed_dictionaries(
            {}, optional={"node": st.none() | st.integers(0, 9), "preemption": st.just(2)}
        ),
    },
}


def specs() -> st.SearchStrategy[dict[str, Any]]:
    sections = {name: st.fixed_dictionaries({}, optional=fields) for name, fields in _SECTIONS.items()}
    rest = {"priority": st.integers(-100, 100), "labels": _labels, "after": st.lists(_texts, max_size=2)}
    return st.fixed_dictionaries({"name": st.just("demo"), "run": _runs}, optional={**sections, **rest})
