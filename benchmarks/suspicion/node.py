"""One of the machines of netem.py. Lines of JSON: its port, the peers, a report, the time when a peer was suspected."""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import dataclass, field

from trainer.elastic.rendezvous.links import Links
from trainer.elastic.rendezvous.suspicion import Gap

_LOOK_S = 0.02
_COLLECT_S = 10.0  # a detector remembers 200 gaps
_SETTLES_S = 5.0
_PATIENCE_S = 120.0


@dataclass
class Record:
    """What was seen of the links of a node."""

    suspicions: int = 0
    refusals: int = 0
    longest_s: float = 0.0
    unheard: int = 0  # links
    gaps: list[Gap] = field(default_factory=list)


def main() -> int:
    links = Links(sys.argv[1])
    print(links.port, flush=True)
    peers = {node: (host, port) for node, (host, port) in json.loads(sys.stdin.readline()).items()}
    links.follow(peers)
    record = _watch(links, sorted(peers.keys() - {sys.argv[1]}))
    print(json.dumps(vars(record)), flush=True)
    suspect = sys.stdin.readline()
    if suspect:
        print(_await_suspicion(links, json.loads(suspect)), flush=True)
        sys.stdin.read()
    links.close()
    return 0


def _watch(links: Links, peers: list[str]) -> Record:
    """Watch until a line arrives. A suspicion counts once, until the peer is heard again."""
    record, suspected, collected = Record(), set[str](), dict.fromkeys(peers, 0)
    judge_s = collect_s = time.monotonic() + _SETTLES_S
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        now_s = time.monotonic()
        if now_s < judge_s:
            continue
        for peer in peers:
            silence = links.silence(peer)
            record.longest_s = max(record.longest_s, silence.silent_s)
            record.suspicions += silence.suspected and peer not in suspected
            record.refusals += silence.refused
            (suspected.add if silence.suspected else suspected.discard)(peer)
        if now_s >= collect_s:
            collect_s = now_s + _COLLECT_S
            _collect(links, record, collected)
    sys.stdin.readline()
    _collect(links, record, collected)
    record.unheard = sum(not links.silence(peer).heard for peer in peers)
    return record


def _collect(links: Links, record: Record, collected: dict[str, int]) -> None:
    for peer, before in collected.items():
        arrivals = links.arrivals(peer)
        if arrivals is not None and arrivals.heard > before:
            record.gaps += arrivals.gaps[before - arrivals.heard :]
            collected[peer] = arrivals.heard


def _await_suspicion(links: Links, peer: str) -> float:
    end_s = time.monotonic() + _PATIENCE_S
    while not links.silence(peer).suspected and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
