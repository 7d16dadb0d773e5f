"""Hostile JSON: arbitrary documents, and valid ones with some values replaced."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

DEEP: object = None
for _ in range(400):
    DEEP = [DEEP]

WILD = (
    *(2**63, -(2**63) - 1, 10**400, 1e308, float("inf"), float("-inf"), float("nan"), -0.0, True, False, None),
    *("", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "é" * 50_000, "9" * 4000, "-1", "1e5", "0x10", "nan", "١٢"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-11-20T12:00:00", "2026-11-20T12:00:00Z"),
    *("step-00000001-a1-g1\n", "step-1-a99999999999999999999-g1", "step-00000001-a1-g1", "__proto__"),
    *([], {}, [[]], {"": {}}, {"a": [None] * 1000}, DEEP, ["x"] * 1000, {"\x00": "\ud800"}),
)
_leaves = (
    st.sampled_from(WILD)
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.characters(categories=["Cs"])
)
values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)


def mutated(good: Mapping[str, object]) -> st.SearchStrategy[dict[str, object]]:
    """The document with some values replaced and a name added, or any other document."""
    names = st.sampled_from(sorted(good))
    changes = st.dictionaries(names | st.text(max_size=5), values, max_size=3)
    left_out = st.sets(names, max_size=1)
    changed = st.builds(
        lambda change, left: {name: value for name, value in {**good, **change}.items() if name not in left},
        changes,
        left_out,
    )
    return changed | st.dictionaries(st.text(), values, max_size=3)
