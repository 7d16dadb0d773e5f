"""Parse --rdzv-endpoint and --rdzv-conf, without torch. An invalid value raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

LONGEST_S = 1e9  # select(2) refuses longer timeouts


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds. The names in --rdzv-conf are torchrun's."""

    join_s: float = 600.0
    # torch waits 30 s for late nodes in every round, and 15 s for a node that is gone.
    last_call_s: float = 1.0
    beat_s: float = 1.0
    beats: int = 5
    read_s: float = 60.0
    # Time for a paused node to return, so that the workers can continue. TCP connections to a silent store break after
    # 30 s, whatever this value (endpoint.py).
    patience_s: float = 30.0

    @property
    def silence_s(self) -> float:
        """A node is lost when its count in the store is older, if no datagram from it ever arrived or another agent
        still hears it."""
        return self.beat_s * self.beats


def parse_timing(conf: Mapping[str, str], read_s: float = 60.0) -> Timing:
    """Parse the times in --rdzv-conf. `read_s` is the default of read_timeout. Raises ValueError that names the key."""
    return Timing(
        join_s=_number(conf, "join_timeout", Timing.join_s),
        last_call_s=_number(conf, "last_call_timeout", Timing.last_call_s),
        beat_s=max(0.05, _number(conf, "keep_alive_interval", Timing.beat_s)),
        beats=int(_number(conf, "keep_alive_max_attempt", Timing.beats)),
        read_s=_number(conf, "read_timeout", _number(conf, "timeout", read_s)),
        patience_s=_number(conf, "patience", Timing.patience_s),
    )


def parse_is_host(conf: Mapping[str, str]) -> bool | None:
    """Whether this agent serves the store. None: the agent at the endpoint's address does. Raises ValueError."""
    text = conf.get("is_host", "").lower()
    if text in ("1", "true", "t", "yes", "y"):
        return True
    if text in ("0", "false", "f", "no", "n"):
        return False
    if text:
        raise ValueError(f"--rdzv-conf: is_host is {text!r}, must be 1 or 0")
    return None


def parse_endpoint(endpoint: str, default_port: int) -> tuple[str, int]:
    """Host and port of HOST[:PORT] or [IPV6]:PORT. Raises ValueError."""
    host, colon, port = endpoint.strip().rpartition(":")
    if not colon or (host.count(":") and not host.endswith("]")):
        host, port = endpoint.strip(), str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535 or not host or (":" in host and not _is_ipv6(host)):
        raise ValueError(f"the rendezvous endpoint is {endpoint!r}, must be HOST:PORT")
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).version == 6
    return False


def _number(conf: Mapping[str, str], name: str, default: float) -> float:
    text = conf.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= LONGEST_S:
        raise ValueError(f"--rdzv-conf: {name} is {text!r}, must be a number from 0")
    return number
