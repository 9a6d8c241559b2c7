"""Which addresses a call may connect to: all forms in which a private one can be written, and what an endpoint allows."""

from ipaddress import IPv4Address

import pytest

from fairlane.workers.adapters.endpoints.addresses import (
    addresses_said,
    read_address,
    read_networks,
    why_refused,
)

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.254", "127.0.0.1", "127.9.9.9"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.168.1.1", "198.18.0.1", "198.19.255.255"),
    *("168.63.129.16", "100.100.100.200", "192.0.0.192"),  # where clouds tell secrets
    *("192.0.2.1", "198.51.100.7", "203.0.113.9", "192.88.99.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
]  # fmt: skip
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
]
PUBLIC += [
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "223.255.255.255",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_of_the_public_internet_is_refused_in_every_form(text: str) -> None:
    last = f"{int(IPv4Address(text)):08x}"
    high, low = last[:4], last[4:]
    forms = [
        text,
        f"::ffff:{text}",
        f"::ffff:{high}:{low}",
        f"0:0:0:0:0:ffff:{high}:{low}",
        f"::{text}",
        f"::ffff:0:{high}:{low}",
        f"64:ff9b::{high}:{low}",
        f"64:ff9b:1::{high}:{low}",
        f"2002:{high}:{low}::1",
        f"2a00:1450::5efe:{high}:{low}",
        f"2a00:1450::200:5efe:{high}:{low}",
        f"2001:0:{high}:{low}::1",
    ]
    for form in forms:
        assert why_refused(read_address(form), ()), form


@pytest.mark.parametrize("text", PUBLIC)
def test_the_public_internet_may_be_called(text: str) -> None:
    assert not why_refused(read_address(text), ())
    assert not why_refused(read_address(f"::ffff:{text}"), ())
    assert not why_refused(read_address(f"64:ff9b::{text}"), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("2606:4700:4700::1111%eth0", "link-local"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("2001:20::1", "tunnel"),
        ("5f00::1", "reserved"),
        ("4000::1", "reserved"),
        ("100::1", "reserved"),
    ],
)
def test_forms_of_ipv6_are_refused(text: str, why: str) -> None:
    assert why in why_refused(read_address(text), ())


def test_a_mapped_address_is_connected_to_as_what_it_is() -> None:
    assert read_address("::ffff:1.2.3.4") == IPv4Address("1.2.3.4")


def test_an_endpoint_allows_networks() -> None:
    allowed = read_networks(["10.1.0.0/16", "fd00::/8"])
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd12::1"):
        assert not why_refused(read_address(text), allowed), text
    for text in ("10.2.0.1", "127.0.0.1", "fc00::1", "::1", "64:ff9b::10.2.0.1"):
        assert why_refused(read_address(text), allowed), text
    with pytest.raises(ValueError, match="host bits"):
        read_networks(["10.1.2.3/8"])


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("localhost", ["127.0.0.1", "::1"]),
        ("a.b.localhost", ["127.0.0.1", "::1"]),
        ("10.1.2.3", ["10.1.2.3"]),
        ("[::1]", ["::1"]),
        ("[::ffff:a01:203]", ["10.1.2.3"]),
        ("example.com", []),
        ("localhost.example.com", []),
        ("notlocalhost", []),
    ],
)
def test_a_host_says_its_addresses_itself_or_has_to_be_looked_up(host: str, said: list[str]) -> None:
    assert [str(address) for address in addresses_said(host)] == said
