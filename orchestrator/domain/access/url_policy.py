"""Refuse a job's URLs that lead to private addresses, unless the settings allow them. Pure.

Only the text of a job's URL is checked. Names are not resolved, because a name may have another address when the job
uses it; firewalls must limit what nodes can reach. Where the service itself connects, `why_inside` checks the addresses
that it is about to use.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Names of the machine itself (RFC 6761), of private networks (ICANN's private-use domain) and of clouds' metadata.
_INNER = re.compile(r"(?:.*\.)?(?:localhost|internal)|metadata", re.IGNORECASE)
# Schemes in which the name is a host. In others it is a bucket, which may be a number but not a dotted address.
_HOSTED = frozenset(
    {
        "dav",
        "davs",
        "ftp",
        "ftps",
        "git",
        "hdfs",
        "http",
        "https",
        "sftp",
        "smb",
        "ssh",
        "swebhdfs",
        "webdav",
        "webhdfs",
    }
)
# Schemes of fsspec in which jobs may keep snapshots. None of them opens a folder of the machine.
STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "hdfs", "webhdfs", "sftp", "ssh", "smb")
_READ_ONLY = ("http", "https")
_BRACKETS = re.compile(r"\[[^\]]*\]")  # an IPv6 address
# fsspec chains file systems: simplecache::http://..., zip://a.zip::https://...; an IPv6 address has colons too.
_CHAINED = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")
_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # the well-known prefix; those of a network are not known here
# Teredo (RFC 4380), which reaches hosts behind a NAT; documentation (RFC 9637). `ipaddress` calls both global.
_NEVER_OUTSIDE = (ipaddress.IPv6Network("2001::/32"), ipaddress.IPv6Network("3fff::/20"))
_PART = re.compile(r"0[xX][0-9a-fA-F]{1,8}|[0-9]{1,12}", re.ASCII)


def why_no_store(url: str, *, reads: bool = False) -> str | None:
    """Return why a job's snapshots cannot be at a URL, as a phrase, or None. `reads` means that they are only read."""
    known = (*STORES, *(_READ_ONLY if reads else ()))
    if url.partition("://")[0] in known and "::" not in _BRACKETS.sub("", url):
        return None
    return f"is not a supported place for snapshots: use the path of a folder, or a URL of {', '.join(known)}"


def why_out_of_bounds(url: str, allowed: Collection[str]) -> str | None:
    """Return why a URL must not be opened, as a phrase. None if it may be. `allowed` are hosts and networks."""
    for link in _CHAINED.split(url):
        try:
            parts = urlsplit(link)
            host = (parts.hostname or "").rstrip(".")
        except ValueError:
            return "is not a URL"
        if not _is_plain(host):
            return "has a host that programs parse differently: write it in ASCII and without '%'"
        if _is_allowed(host, parts.scheme, allowed):
            continue
        if _INNER.fullmatch(host) or _is_private(host, parts.scheme):
            return f"leads to the private host {host}; an admin can allow it in private_storage_hosts"
    return None


def why_inside(host: str, addresses: Iterable[str], allowed: Collection[str]) -> str | None:
    """Return why a connection to a host must not be opened, given its addresses. None if it may be.

    The caller must connect to one of these addresses: if the name is resolved again, it may have others.
    """
    if host.lower() in {name.lower() for name in allowed}:
        return None
    for address in addresses:
        if _is_private(address, "") and not _is_allowed(address, "", allowed):
            return f"{host} has the private address {address}"
    return None


def _is_private(host: str, scheme: str) -> bool:
    address = parse_address(host, scheme)
    if address is None:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not address.is_global or address.is_multicast
    if address.scope_id is not None or (address.ipv4_mapped is None and not _is_routed(address)):
        return True
    return any(not inner.is_global or inner.is_multicast for inner in _embedded(address))


def _is_plain(host: str) -> bool:
    """Whether the host is ASCII without escapes. Other digits, other dots and `%xx` turn into an address only when the
    host is resolved."""
    return host.isascii() and "%" not in host


def _is_routed(address: ipaddress.IPv6Address) -> bool:
    """Whether it is a global unicast address (RFC 4291, 2.4), a NAT64 one (RFC 6052) or a 6to4 one (RFC 3056)."""
    if any(address in network for network in _NEVER_OUTSIDE):
        return False
    # Python 3.13 calls no 6to4 address global; the IPv4 address in it decides.
    is_translated = address in _NAT64 or address.sixtofour is not None
    return is_translated or (address in _UNICAST and address.is_global)


def _embedded(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that packets to it may be translated or tunneled to."""
    low = int(address) & 0xFFFFFFFF
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:  # RFC 3056
        yield address.sixtofour
    if address in _NAT64 or (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE:  # RFC 5214, 6.1: ISATAP
        yield ipaddress.IPv4Address(low)


def _is_allowed(host: str, scheme: str, allowed: Collection[str]) -> bool:
    if host in {name.lower() for name in allowed}:
        return True
    address = parse_address(host, scheme)
    return address is not None and any(address in network for network in map(_network, allowed) if network is not None)


def parse_address(host: str, scheme: str) -> Address | None:
    """Return the host's address if it is one in any notation of inet_aton(3), or None."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    parts = host.split(".")
    if scheme.lower() not in _HOSTED or len(parts) > 4 or not all(map(_PART.fullmatch, parts)):
        return None
    *leading, last = map(_number, parts)
    room = 256 ** (4 - len(leading))
    if last is None or last >= room or any(part is None or part > 255 for part in leading):
        return None
    value = last
    for index, part in enumerate(leading):
        value += (part or 0) << (8 * (3 - index))
    return ipaddress.IPv4Address(value)


def _number(text: str) -> int | None:
    try:
        if text.lower().startswith("0x"):
            return int(text, 16)
        return int(text, 8 if len(text) > 1 and text.startswith("0") else 10)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
