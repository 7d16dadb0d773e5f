"""Find the nodes that made a preflight fail, from the failures between pairs of nodes. Pure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainer.contract.verdict import Outcome, Verdict

Pair = tuple[str, str]

MARK = "preflight-node: "  # before each node's verdict in the log
_LINE = re.compile(r"preflight-node: (\S+) (ok|fail)(?:: (.*))?")
# Fractions of the median. A slower pair is reported. A node whose own median is slower fails: it slows all others.
SLOW_PAIR, SLOW_NODE = 0.5, 0.25
_ENOUGH_NODES = 3  # with two nodes it is unknown which one is slow
MOST_ROUNDS = 15


@dataclass(frozen=True, kw_only=True)
class NodeVerdict:
    """`checks` are those that the node failed."""

    node: str
    checks: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.checks


def judge_nodes(nodes: Iterable[str], verdicts: Collection[Verdict]) -> list[NodeVerdict]:
    """For each node, the failed checks that it is to blame for, in the order of the checks."""
    failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAIL]
    return [
        NodeVerdict(node=node, checks=tuple(verdict.check for verdict in failed if node in verdict.nodes))
        for node in sorted(set(nodes))
    ]


def render_node_verdict(verdict: NodeVerdict) -> str:
    if verdict.is_good:
        return f"{MARK}{verdict.node} ok"
    return f"{MARK}{verdict.node} fail: {', '.join(verdict.checks)}"


def parse_node_verdict(line: str) -> NodeVerdict | None:
    """A node's verdict anywhere in a line of the log, or None."""
    match = _LINE.search(line)
    if match is None:
        return None
    checks = tuple((match[3] or "").split(", ")) if match[2] == "fail" else ()
    return NodeVerdict(node=match[1], checks=checks)


def blame(failed: Iterable[Pair]) -> tuple[str, ...]:
    """The nodes that explain the failed pairs: the one in the most pairs, then the next one, until none stands out.

    A single pair does not show which of its nodes is at fault, nor do several nodes with equally many failed pairs.
    """
    left = {tuple(sorted(pair)) for pair in failed if pair[0] != pair[1]}
    blamed: list[str] = []
    while True:
        counts = Counter(node for pair in left for node in pair).most_common(2)
        if not counts or counts[0][1] < 2 or (len(counts) > 1 and counts[0][1] == counts[1][1]):
            return tuple(sorted(blamed))
        blamed.append(counts[0][0])
        left = {pair for pair in left if counts[0][0] not in pair}


def find_unlike(texts: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that differ from the majority. Empty if no text has a majority."""
    if not texts:
        return ()
    usual, count = Counter(texts.values()).most_common(1)[0]
    return tuple(sorted(node for node, text in texts.items() if text != usual)) if count * 2 > len(texts) else ()


def pair_rounds(count: int, most: int = MOST_ROUNDS) -> list[list[tuple[int, int]]]:
    """At most `most` rounds of disjoint pairs of `count` members. If that is enough, every pair occurs once.

    The circle method of round-robin tournaments: one member stays, the others rotate by one place.
    """
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(min(most, len(places) - 1)):
        half = len(places) // 2
        met = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def judge_pairs(bandwidths: Mapping[Pair, float]) -> Verdict:
    """`bandwidths` are in bytes per second, between two nodes."""
    if not bandwidths:
        return Verdict(check="pairs", outcome=Outcome.SKIPPED, sentence="there is a single node")
    median = statistics.median(bandwidths.values())
    slow = {pair for pair, rate in bandwidths.items() if rate < SLOW_PAIR * median}
    nodes = sorted({node for pair in bandwidths for node in pair})
    own = {node: statistics.median(rate for pair, rate in bandwidths.items() if node in pair) for node in nodes}
    worst = min(bandwidths, key=lambda pair: bandwidths[pair])
    sentence = (
        f"all-reduce between {len(bandwidths)} pairs of nodes: median {median / 1e9:.2f} GB/s, "
        f"slowest {bandwidths[worst] / 1e9:.2f} GB/s between {worst[0]} and {worst[1]}"
    )
    failing = [node for node in nodes if own[node] < SLOW_NODE * median] if len(nodes) >= _ENOUGH_NODES else []
    if failing:
        slowest = f"; most pairs of {', '.join(failing)} are below {SLOW_NODE:.0%} of the median"
        return Verdict(check="pairs", outcome=Outcome.FAIL, sentence=sentence + slowest, nodes=tuple(failing))
    outcome = Outcome.WARN if slow else Outcome.OK
    detail = f"; {len(slow)} below {SLOW_PAIR:.0%} of the median" if slow else ""
    return Verdict(check="pairs", outcome=outcome, sentence=sentence + detail)


def judge_versions(versions: Mapping[str, Mapping[str, str]], *, essential: Sequence[str]) -> Verdict:
    """`versions` are by node, then by name. A difference fails the check if it is essential, and else is a warning."""
    names = sorted({name for installed in versions.values() for name in installed})
    unlike = [name for name in names if len({installed.get(name, "none") for installed in versions.values()}) > 1]
    if not unlike:
        first = next(iter(versions.values()), {})
        detail = ", ".join(f"{name} {first[name]}" for name in essential if first.get(name))
        return Verdict(check="versions", outcome=Outcome.OK, sentence=f"equal on {len(versions)} nodes: {detail}")
    sentence = "; ".join(_describe_difference(name, versions) for name in unlike)
    failing = [name for name in unlike if name in essential]
    if not failing:
        return Verdict(check="versions", outcome=Outcome.WARN, sentence=sentence)
    nodes = {node for name in failing for node in find_unlike({n: t.get(name, "none") for n, t in versions.items()})}
    return Verdict(check="versions", outcome=Outcome.FAIL, sentence=sentence, nodes=tuple(sorted(nodes)))


def _describe_difference(name: str, versions: Mapping[str, Mapping[str, str]]) -> str:
    by_text: dict[str, list[str]] = {}
    for node, installed in sorted(versions.items()):
        by_text.setdefault(installed.get(name, "none"), []).append(node)
    parts = (
        f"{text} on {', '.join(nodes[:3])}{' and more' if len(nodes) > 3 else ''}" for text, nodes in by_text.items()
    )
    return f"{name} is {' and '.join(parts)}"
