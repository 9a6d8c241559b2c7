"""Codings of bodies: what is decoded, in how small steps, and which bodies are rejected."""

import gzip
import zlib

import pytest

from fairlane.workers.decoding import MAX_MEMBERS, STEP, Decoder, TooLargeError, coding_of, zstd  # type: ignore[attr-defined]

BODY = b'{"input": "' + b"some words " * 30_000 + b'"}'
LIMIT = 1 << 20


def deflated(body: bytes, wbits: int = -zlib.MAX_WBITS) -> bytes:
    compressor = zlib.compressobj(wbits=wbits)
    return compressor.compress(body) + compressor.flush()


def decoded(header: str, body: bytes, step: int = 1000) -> bytes:
    decoder = Decoder(coding_of([header]) or "", LIMIT)
    pieces = [piece for at in range(0, len(body), step) for piece in decoder.feed(body[at : at + step])]
    decoder.end()
    assert max(map(len, pieces), default=0) <= max(STEP, step)
    return b"".join(pieces)


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("gzip", gzip.compress(BODY)),
        ("X-Gzip", gzip.compress(BODY)),
        ("GZIP, identity", gzip.compress(BODY)),
        ("gzip", gzip.compress(BODY[:99]) + gzip.compress(BODY[99:])),
        ("gzip", gzip.compress(BODY) + bytes(100)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", deflated(BODY)),
        ("zstd", zstd.compress(BODY)),
        ("zstd", zstd.compress(BODY[:99]) + zstd.compress(BODY[99:])),
    ],
)  # fmt: skip
def test_what_is_decoded(header: str, body: bytes, step: int) -> None:
    assert decoded(header, body, step) == BODY


@pytest.mark.parametrize(
    ("header", "coding"),
    [("", ""), ("identity", ""), ("br", None), ("gzip, br", None), ("gzip;q=1", None), ("gzip, zstd", None)],
)
def test_a_body_without_a_coding_and_with_one_that_cannot_be_undone(header: str, coding: str | None) -> None:
    assert coding_of([header]) == coding


ZEROS = bytes(LIMIT + 1)
WIDE = {zstd.CompressionParameter.window_log: 24}


@pytest.mark.parametrize(
    ("header", "body", "error"),
    [
        ("gzip", BODY, ValueError),
        ("zstd", BODY, ValueError),
        ("deflate", BODY, ValueError),
        ("gzip", gzip.compress(BODY)[:-1], ValueError),
        ("zstd", zstd.compress(BODY)[:-1], ValueError),
        ("gzip", gzip.compress(b"") * (MAX_MEMBERS + 1), ValueError),
        ("zstd", zstd.compress(b"") * (MAX_MEMBERS + 1), ValueError),
        ("zstd", zstd.compress(bytes(1 << 25), options=WIDE), ValueError),
        ("gzip", gzip.compress(ZEROS), TooLargeError),
        ("deflate", zlib.compress(ZEROS), TooLargeError),
        ("zstd", zstd.compress(ZEROS), TooLargeError),
    ],
)  # fmt: skip
def test_what_is_rejected(header: str, body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        decoded(header, body)
    assert type(raised.value) is error


def test_a_bomb_is_given_up_at_the_limit() -> None:
    pieces: list[bytes] = []
    with pytest.raises(TooLargeError):
        pieces.extend(Decoder("gzip", LIMIT).feed(gzip.compress(bytes(1 << 27))))
    assert sum(map(len, pieces)) <= LIMIT
