"""URLs that mean one thing, and the patterns that they must match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.adapters.targets import BadTarget, Pattern, read_target

IMAGES = "https://images.example.com/v1/*"


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("https://images.example.com", "https://images.example.com/"),
        ("HTTPS://Images.Example.COM:443/v1/a", "https://images.example.com/v1/a"),
        ("http://images.example.com:80/v1?x=1", "http://images.example.com/v1?x=1"),
        ("http://images.example.com:8080/", "http://images.example.com:8080/"),
        ("https://images.example.com/%41%2d%5fa%c3%a4", "https://images.example.com/A-_a%C3%A4"),
        ("https://images.example.com?q=a[]=b/../c", "https://images.example.com/?q=a[]=b/../c"),
        ("https://images.example.com/a/?", "https://images.example.com/a/"),
        ("http://[2001:DB8:0:0:0:0:0:1]:81/x", "http://[2001:db8::1]:81/x"),
        ("http://10.0.0.1/x", "http://10.0.0.1/x"),
        ("https://xn--bcher-kva.example/x", "https://xn--bcher-kva.example/x"),
    ],
)
def test_a_url_has_one_form(url: str, read: str) -> None:
    target = read_target(url)
    assert target.url == read
    assert read_target(target.url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/v1/x",
        "images.example.com/v1/x",
        "//images.example.com/v1/x",
        "ftp://images.example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///v1/x",
        "https://user@images.example.com/",
        "https://user:pw@images.example.com/",
        "https://images.example.com@evil.example/",
        "https://evil.example#@images.example.com/v1/x",
        "https://images.example.com/v1/x#y",
        "https://images.example.com\\@evil.example/",
        "https://images.example.com/v1\\..\\x",
        "https://images.example.com/v1/%5c..",
        "https://images.example.com:/v1/x",
        "https://images.example.com:0/v1/x",
        "https://images.example.com:0443/v1/x",
        "https://images.example.com:65536/",
        "https://images.example.com:+443/",
        "https://images.example.com:443:443/",
        "https://images.example.com./v1/x",
        "https://.images.example.com/",
        "https://images..example.com/",
        "https://images%2eexample.com/",
        "https://bücher.example/",
        "https://images.example。com/",
        "https://images.example.com/v1/ä",
        "https://images.example.com/v1/a b",
        "https://images.example.com/v1/a\tb",
        "https://images.example.com/v1/a\r\nX: y",
        " https://images.example.com/",
        "https://images.example.com/v1/x\n",
        "https://images.example.com/v1/%0d%0a",
        "https://images.example.com/v1/%00",
        "https://images.example.com/v1/%zz",
        "https://images.example.com/v1/%4",
        "https://images.example.com/v1/./x",
        "https://images.example.com/v1/../x",
        "https://images.example.com/v1/..",
        "https://images.example.com/v1/%2e%2e/x",
        "https://images.example.com/v1/.%2E/x",
        "https://images.example.com/v1/%252e%252e/x",
        "https://images.example.com/v1/%25252e%25252e/x",
        "https://images.example.com/v1/..;a=b/x",
        "https://images.example.com/v1/..%3b/x",
        "https://images.example.com/v1/..%20/x",
        "https://images.example.com/v1/a%2f..%2fx",
        "https://images.example.com/v1/a%252fx",
        "https://images.example.com/v1/%25%32%65",
        "https://images.example.com//v1/x",
        "https://images.example.com/v1//x",
        "http://0x7f.0.0.1/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://127.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://256.0.0.1/",
        "http://example.0x1/",
        "http://[::1%25eth0]/",
        "http://[::1/",
        "http://[127.0.0.1]/",
        "http://::1/",
        "https://images.example.com/" + "a" * 9000,
        "https://" + "a" * 64 + ".example.com/",
        'https://images.example.com/x?a="b"',
    ],
)
def test_what_two_programs_may_read_differently_is_refused(url: str) -> None:
    with pytest.raises(BadTarget) as refused:
        read_target(url)
    assert str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "url", "meant"),
    [
        (IMAGES, "https://images.example.com/v1/make", True),
        (IMAGES, "https://images.example.com/v1/", True),
        (IMAGES, "https://images.example.com/v1/a/b/c?d=e", True),
        (IMAGES, "https://IMAGES.example.com:443/v1/make", True),
        (IMAGES, "https://images.example.com/v1/%6dake", True),
        (IMAGES, "https://images.example.com/v1", False),
        (IMAGES, "https://images.example.com/v10/make", False),
        (IMAGES, "https://images.example.com/V1/make", False),
        (IMAGES, "http://images.example.com/v1/make", False),
        (IMAGES, "https://images.example.com:444/v1/make", False),
        (IMAGES, "https://images.example.com.evil.example/v1/make", False),
        (IMAGES, "https://evil-images.example.com/v1/make", False),
        ("https://a.example/users/*/images", "https://a.example/users/7/images", True),
        ("https://a.example/users/*/images", "https://a.example/users/7/8/images", False),
        ("https://a.example/users/*/images", "https://a.example/users/images", False),
        ("https://a.example/*", "https://a.example/", True),
        ("https://a.example/x", "https://a.example/x", True),
        ("https://a.example/x", "https://a.example/x/", False),
        ("https://a.example/x", "https://a.example/x/y", False),
    ],
)
def test_a_pattern_means_one_origin_and_whole_segments(pattern: str, url: str, meant: bool) -> None:
    assert Pattern.read(pattern).matches(read_target(url)) is meant


@pytest.mark.parametrize(
    "text",
    [
        "https://*.example.com/",
        "https://*/",
        "https://a.example/x*",
        "https://a.example/*x/y",
        "https://a.example/x?*",
    ],
)
def test_a_star_stands_for_a_whole_segment_and_nowhere_else(text: str) -> None:
    with pytest.raises(BadTarget):
        Pattern.read(text)


@given(st.text(st.sampled_from("ab/.%2eE5cF;\\*?#@: ~0"), max_size=40))
def test_whatever_follows_the_pattern_stays_below_it_however_it_is_decoded(rest: str) -> None:
    """What is accepted has, decoded as often as it likes, no way up and no further slashes."""
    from urllib.parse import unquote

    try:
        target = read_target(f"https://images.example.com/v1/{rest}")
    except BadTarget:
        return
    path, slashes = target.path, target.path.count("/")
    for _ in range(10):
        assert path.count("/") == slashes
        assert not any(segment.strip() in (".", "..") for segment in path.split("/"))
        assert "\\" not in path
        path = unquote(path)
    assert target.host == "images.example.com"
    assert read_target(target.url) == target
