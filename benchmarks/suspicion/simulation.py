"""One link in virtual time: heartbeats with random delays and losses, for the real detector."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainer.elastic.rendezvous.suspicion import FLOOR_S, Detector, Heartbeat

DELAY_JITTER = 0.8  # a delay is uniform between 1 - DELAY_JITTER and 1 + DELAY_JITTER times its mean
_BEAT_S = 0.2
_CHUNK = 18_000  # heartbeats, an hour
_LEARNS = 200  # heartbeats that are not judged
_DEATHS = 400
_WORTH_A_LOOK_S = 1.0


@dataclass
class Outcome:
    """Of one simulated link. `over_fixed_limit` are silences of more than FLOOR_S."""

    suspicions: int = 0
    over_fixed_limit: int = 0
    longest_s: float = 0.0
    highest_phi: float = 0.0
    deaths_s: list[float] = field(default_factory=list)  # until each was suspected


def simulate(delay_s: float, loss: float, hours: int, seed: int) -> Outcome:
    """One link, from after its first 200 heartbeats on."""
    rng = np.random.default_rng(seed)
    detector, outcome = Detector(0.0), Outcome()
    since_s = 0.0
    for hour in range(hours):
        sequences, arrivals = _draw_hour(rng, hour, delay_s, loss)
        deaths = set(rng.choice(_CHUNK, size=math.ceil(_DEATHS / hours), replace=False) + hour * _CHUNK)
        for at_s, sequence, next_sequence in zip(arrivals, sequences, [*sequences[1:], sequences[-1]], strict=True):
            silent_s = at_s - since_s
            if silent_s > _WORTH_A_LOOK_S and sequence > _LEARNS:
                outcome.longest_s = max(outcome.longest_s, silent_s)
                outcome.highest_phi = max(outcome.highest_phi, detector.phi(silent_s))
                outcome.over_fixed_limit += silent_s > FLOOR_S
                outcome.suspicions += detector.suspects(silent_s)
            if detector.hear(Heartbeat(1, sequence, _BEAT_S), at_s):
                since_s = at_s
            for last_sent in range(sequence, next_sequence):
                if last_sent in deaths:
                    died_s = (last_sent + rng.random()) * _BEAT_S
                    outcome.deaths_s.append(since_s + _find_limit_s(detector) - died_s)
    return outcome


def _draw_hour(rng: np.random.Generator, hour: int, delay_s: float, loss: float) -> tuple[list[int], list[float]]:
    """The numbers of the heartbeats that arrive, and when, in order of arrival."""
    sequences: NDArray[np.int64] = np.arange(_CHUNK) + hour * _CHUNK
    sequences = sequences[rng.random(_CHUNK) >= loss]
    arrivals = sequences * _BEAT_S + delay_s * rng.uniform(1 - DELAY_JITTER, 1 + DELAY_JITTER, len(sequences))
    order = np.argsort(arrivals)
    return sequences[order].tolist(), arrivals[order].tolist()


def _find_limit_s(detector: Detector) -> float:
    """The shortest silence that is suspicious, to a millisecond."""
    low_s, high_s = 0.0, 3600.0
    while high_s - low_s > 0.001:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if detector.suspects(middle_s) else (middle_s, high_s)
    return high_s
