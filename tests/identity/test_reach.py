"""URLs with private addresses are refused in every notation."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.access.url_policy import parse_address, why_inside, why_no_store, why_out_of_bounds


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",  # metadata service of clouds
        "http://127.0.0.1:8700/api/v1/tokens",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://metadata/computeMetadata",
        "http://metadata.google.internal/",
        "https://10.0.0.5/bucket",
        "https://192.168.1.1/bucket",
        "https://172.16.0.1/",
        "https://100.64.0.1/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[2002:7f00:1::]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0xa9.0xfe.43518/",
        "http://user:pass@127.0.0.1/",
        "sftp://10.1.2.3/path",
        "hdfs://10.1.2.3:9000/path",
        "s3://169.254.169.254/x",
        "simplecache::http://127.0.0.1/x",
        "zip://a.zip::https://192.168.0.1/a.zip",
        "http://224.0.0.1/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::808:808]/",
        "http://[::7f00:1]/",
        "http://[::808:808]/",
        "http://[::ffff:0:7f00:1]/",
        "http://[2001:0:53aa:64c::1]/",
        "http://[2606:4700::5efe:7f00:1]/",
        "http://[2606:4700::200:5efe:a00:1]/",
        "http://[fec0::1]/",
        "http://[2001:db8::1]/",  # documentation
        "http://[3fff::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[2606:4700::1111%25lo]/",
        "http://１２７.0.0.1/",
        "http://127。0。0。1/",
        "http://127．0.0.1/",
        "http://127｡0.0.1/",
        "http://⑫⑦.0.0.1/",
        "http://loc\N{SOFT HYPHEN}alhost/",
        "http://ｌocalhost/",
        "http://127%2e0.0.1/",
        "http://%6cocalhost/",
        "http://127.0.0.1./",
        "http://0x7f.1./",
        "http://[::1/",
    ],
)
def test_an_inner_address_is_refused(url: str) -> None:
    assert why_out_of_bounds(url, ()) is not None


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/folder",
        "s3://20240101/folder",
        "s3://127/x",
        "http://10.0.0.1.0/x",  # host names that only resemble addresses
        "http://127.0.0.1_0/x",
        "http://10.0.0.08/x",
        "gs://my.bucket.example/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "https://storage.example.com/x",
        "https://8.8.8.8/x",
        "http://[2606:4700::1111]/",
        "http://[64:ff9b::808:808]/",
        "http://[2002:808:808::]/",
        "http://[::ffff:8.8.8.8]/",
        "https://xn--bcher-kva.example/x",
        "file:///scratch/x",
        "http://256.1.1.1/",
        "http://09.1.1.1/",
        "http://1.2.3.4.5/",
    ],
)
def test_public_addresses_and_buckets_are_allowed(url: str) -> None:
    assert why_out_of_bounds(url, ()) is None


@pytest.mark.parametrize("allowed", ["10.0.0.5", "10.0.0.0/8", "10.0.0.9/8"])
def test_an_admin_may_allow_an_address_or_its_network(allowed: str) -> None:
    assert why_out_of_bounds("http://10.0.0.5:9000/bucket", [allowed]) is None
    assert why_out_of_bounds("http://192.168.0.1/", [allowed]) is not None


def test_an_admin_may_allow_a_name() -> None:
    assert why_out_of_bounds("http://minio.internal:9000/bucket", ["MinIO.internal"]) is None
    assert why_out_of_bounds("http://other.internal/", ["minio.internal"]) is not None


INNER = st.sampled_from(["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"])


@given(network=INNER, offset=st.integers(0, 2**16 - 1))
def test_an_inner_address_is_refused_in_every_notation(network: str, offset: int) -> None:
    address = IPv4Network(network)[offset]
    value, (a, b, c, d) = int(address), address.packed
    four = [str(address), f"{a}.{b}.{c * 256 + d}", f"{a}.{value & 0xFFFFFF}", str(value), hex(value), f"0{value:o}"]
    hexadecimal = f"{value >> 16:x}:{value & 0xFFFF:x}"
    prefixes = ["::", "::ffff:", "64:ff9b::", "64:ff9b:1::", "::ffff:0:", "2606:4700::5efe:"]
    six = [f"[{prefix}{hexadecimal}]" for prefix in prefixes] + [f"[2002:{hexadecimal}::1]", f"[::ffff:{address}]"]
    for host in [*four, *(f"{each}." for each in four), f"0{a:o}.{b:#x}.{c}.{d}", *six]:
        assert why_out_of_bounds(f"http://{host}/x", ()) is not None, host


@given(st.integers(0, 2**128 - 1))
def test_no_address_outside_of_global_unicast_is_connected_to(value: int) -> None:
    address = IPv6Address(value)
    outside = why_inside("name", [str(address)], ()) is None
    assert not outside or address in IPv6Network("2000::/3") or address in IPv6Network("64:ff9b::/96")


def test_an_address_of_one_interface_is_inside() -> None:
    assert why_inside("a.example", ["2606:4700::1111%lo"], ()) is not None
    assert why_inside("a.example", ["2606:4700::1111"], ()) is None


LOCAL = ("file", "local", "memory", "dir", "zip", "tar", "simplecache", "filecache", "blockcache", "reference", "git")


@pytest.mark.parametrize("scheme", [*LOCAL, "FILE", "S3", "libarchive", "data", "cached", "jupyter", "nonsense", ""])
@pytest.mark.parametrize("reads", [True, False])
def test_snapshots_cannot_be_in_a_local_or_chained_store(scheme: str, reads: bool) -> None:
    for url in (f"{scheme}:///scratch", f"{scheme}://bucket/x", f"{scheme}::s3://bucket/x", f"s3://b/x::{scheme}://y"):
        assert why_no_store(url, reads=reads) is not None


def test_snapshots_can_be_in_object_stores_and_on_file_servers() -> None:
    assert why_no_store("s3://bucket/x") is None
    assert why_no_store("https://models.example/x", reads=True) is None
    assert "a URL of s3" in str(why_no_store("https://models.example/x"))


def test_addresses_are_parsed_as_resolvers_parse_them() -> None:
    assert str(parse_address("127.1", "http")) == "127.0.0.1"
    assert str(parse_address("0x0a.1.258", "http")) == "10.1.1.2"
    assert parse_address("127.1", "s3") is None
    assert parse_address("1.2.3.999999", "http") is None
    assert parse_address("256.1", "http") is None
    assert parse_address("example.com", "http") is None


def test_an_allowed_network_does_not_allow_local_names() -> None:
    assert why_out_of_bounds("http://localhost/", ("10.0.0.0/8",)) is not None


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::7f00:1",
        "::7f00:1",
        "fe80::1%2",
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "fe80::1",
        "::ffff:192.168.0.1",
    ],
)
def test_a_name_is_refused_if_any_of_its_addresses_is_private(address: str) -> None:
    told = why_inside("hook.example", ["93.184.215.14", address], [])
    assert told is not None
    assert "hook.example" in told
    assert address in told
    assert why_inside("hook.example", ["93.184.215.14"], []) is None


def test_an_admin_may_allow_a_private_name_or_address() -> None:
    assert why_inside("Hook.Example", ["10.0.0.1"], ["hook.example"]) is None
    assert why_inside("hook.example", ["10.0.0.1"], ["10.0.0.0/8"]) is None
    assert why_inside("hook.example", ["10.0.0.1", "192.168.0.1"], ["10.0.0.0/8"]) is not None
    assert why_inside("hook.example", ["10.0.0.1"], ["other.example", "192.168.0.0/16"]) is not None
