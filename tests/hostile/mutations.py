"""What is sent over one connection, decided by a random number generator alone. Pure."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.hostile.cast import NOBODYS, ROGUE, STREAMING, secret
from tests.hostile.corpus import Known, Valid, any_valid, submits, words

MIB = 1 << 20
MAX_BODY = 16 * MIB
"""The largest body that a gateway takes by default."""
BIG = 0.004
"""Share of the bodies that are as large as they may be."""


@dataclass(slots=True)
class Plan:
    """One connection. `proper`: its requests are valid HTTP and must be answered."""

    kind: str
    writes: list[bytes]
    pauses: list[float] = field(default_factory=list)
    """Seconds before each write but the first; none where it is shorter."""
    requests: int = 1
    waits: bool = False
    """Whether each write, a request, waits for the answer to the one before: the gateway answers no pipelined requests."""
    methods: tuple[str, ...] = ()
    proper: bool = False
    end: str = "wait"
    """Then: wait for the answers, `half` close first, `leave` (FIN) or `reset` (RST) immediately."""
    wants: frozenset[int] | None = None
    """The only right statuses, where that is known."""

    @property
    def size(self) -> int:
        return sum(map(len, self.writes))


NASTY = (
    *(" ", "", "\0", "a\0b", "\x01\x1f\x7f", "\r\nX-Evil: 1", "\n", "*", "../..", "%00", "%s%n"),
    *("\u2028", "\ufeff", "\u202e", "é", "日本", "🙂", "\ud83d", "{}", "null", "__proto__", "::", "t:x"),
    *("a" * 200, "a" * 201, "b" * 5000, "flw_" + "A." * 2000, "Bearer " + "x" * 400, "sk-" + "-" * 3000),
)
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 6, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30),
    *(0.5, -0.0, 1e-300, 1e308, True, False, None),
)
RAW_NUMBERS = (
    *["1e999", "-1e999", "NaN", "Infinity", "01", "1.", ".5", "+1", "0x10", "1e-99999"],
    "9" * 400,
    "1" + "0" * 5000,
)
_FIELDS = """
model messages prompt input stream async timeout mode priority onDisconnect resultTtlMs repair idempotencyKey template chain
stages each when variables locale response_format metadata type payload stream_options encoding_format max_tokens n tools paused
weight max_length concurrency __class__
"""
_HEADERS = """
X-Fairlane-Timeout X-Fairlane-Priority X-Fairlane-Mode X-Fairlane-On-Disconnect X-Fairlane-Result-Ttl X-Fairlane-Repair TE
Idempotency-Key X-Fairlane-Metadata X-Fairlane-User X-Fairlane-Tier Last-Event-ID Traceparent Content-Type Accept Authorization
Host Origin X-Forwarded-For Cookie Connection Expect Upgrade Transfer-Encoding Content-Length Content-Encoding Range
"""
_CURSORS = "0-0 1-0 1-1 9-9 999999999999999-1 1 - 1-1-1 a-b １-１ * $ + -1 1.5-2 0x1-1 1-1,1-2"
FIELDS, HEADERS = (*_FIELDS.split(), ""), _HEADERS.split()
CURSORS = (
    *_CURSORS.split(),
    "1-" + "9" * 100,
    "1-1\u2028",
    "18446744073709551615-18446744073709551615",
    "x" * 9000,
)
METHODS = (b"BREW", b"get", b"", b"CONNECT", b"TRACE", b"PRI", b"X" * 300, b"G\0T", b"OPTIONS")
PATHS = (b"*", b"", b"http://evil.example/", b"//api/openai", b"/?" + b"a=1&" * 3000, b"/%zz", b"\xff")
VERSIONS = (b"HTTP/0.9", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/9", b"", b"XTTP/1.1", b"HTTP/1.1 ")
LINES = (
    *(b"Host: evil.example", b"Expect: 100-continue", b"Expect: 200-ok", b"Upgrade: websocket"),
    *(b"Content-Length: %d" % length for length in (0, 1, 5, 10**18, 10**30)),
    *(
        b"Transfer-Encoding: " + coding
        for coding in (b"chunked", b"gzip, chunked", b"identity", b"\x0bchunked")
    ),
    *(b"X: " + b"y" * length for length in (1000, 8000, 9000, 60_000, 300_000)),
    *(b"\r\n".join(b"X-%d: y" % n for n in range(many)) for many in (90, 101, 3000)),
    *(
        b"No colon",
        b" folded: x",
        b": no name",
        b"X : y",
        b"X\0: y",
        b"X: a\r\n b",
        b"Authorization: Basic x",
    ),
)


# ---- whole bodies ----------


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value, often a strange one."""
    match rng.randrange(7 if depth < 4 else 4):
        case 0:
            return rng.choice(NASTY)
        case 1 | 2:
            return rng.choice(NUMBERS)
        case 3:
            return rng.choice((words(rng), [], {}, "", 0))
        case 4:
            return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            names = [rng.choice((*FIELDS, rng.choice(NASTY))) for _ in range(rng.randrange(4))]
            return {name: odd_value(rng, depth + 1) for name in names}


def odd_object(rng: random.Random, body: Any) -> Any:
    """Return a body with some members replaced, added or removed."""
    if not isinstance(body, dict):
        return odd_value(rng)
    body = dict(body)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice((*FIELDS, *body))
        if rng.random() < 0.25:
            body.pop(name, None)
        else:
            body[name] = odd_value(rng)
    return body


def _size(rng: random.Random, small: int) -> int:
    """Return how large a body that may be large is."""
    return rng.choice((MAX_BODY - 200, 4 * MIB, MIB)) if rng.random() < BIG else rng.randint(10, small)


def odd_json(rng: random.Random, valid: Valid) -> bytes:
    """Return a body as text: odd values, or JSON that is odd as such, up to the limits."""
    text = valid.payload() or b"{}"
    inner = text[1:-1] + b"," if len(text) > 2 else b""
    match rng.randrange(10):
        case 0:  # deep
            opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
            depth = _size(rng, 20_000) // 2 // len(opening)
            return b"{" + inner + b'"deep":' + opening * depth + b"1" + closing * depth + b"}"
        case 1:  # wide: parsed, it is many times larger
            piece = rng.choice((b"{},", b"[],", b"0,", b"[[]],", b'{"role":"user","content":"a"},'))
            name = rng.choice((b"messages", b"wide"))
            return b"{%b%b:[" % (inner, b'"%b"' % name) + piece * (_size(rng, 30_000) // len(piece)) + b"0]}"
        case 2:  # many members
            return (
                b"{" + inner + b",".join(b'"m%d":%d' % (n, n) for n in range(_size(rng, 30_000) // 10)) + b"}"
            )
        case 3:
            member = b'"%b":%b' % (rng.choice(FIELDS).encode(), rng.choice(RAW_NUMBERS).encode())
            return b"{" + inner + member + b"}"
        case 4:  # the same member twice
            return b"{" + inner + text[1:]
        case 5:
            return damaged(rng, text)
        case _:
            body = odd_object(rng, valid.body)
            return json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return the data with some bytes changed, inserted, removed or doubled."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 12))):
        if not out:
            break
        at, span = rng.randrange(len(out)), rng.choice((1, 1, 2, 8, 40))
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice((0, 9, 10, 13, 32, 34, 44, 58, 92, 123, 127, 128, 255))
            case 2:
                out[at:at] = rng.randbytes(span)
            case 3:
                del out[at : at + span]
            case 4:
                out[at:at] = out[at : at + span] * rng.choice((1, 2, 30))
            case _:
                out[at:at] = rng.choice(
                    (b"\r\n", b"\r\n\r\n", b"\0", b"\xc3\x28", b"\xed\xa0\x80", b"0\r\n\r\n")
                )
    return bytes(out)


# ---- connections ----------


def valid(rng: random.Random, known: Known) -> Plan:
    """Valid requests, one after another."""
    requests = [any_valid(rng, known) for _ in range(rng.choice((1, 2, 4, 8)))]
    short = [request for request in requests if not request.long]
    requests = [*short, *(request for request in requests if request.long)][: len(short) + 1]
    writes = [request.bytes() for request in requests]
    methods = tuple(request.method for request in requests)
    return Plan("valid", writes, requests=len(requests), methods=methods, proper=True, waits=True)


def bodies(rng: random.Random, known: Known) -> Plan:
    """Well-framed requests with any body."""
    one = any_valid(rng, known, submits())
    text = odd_json(rng, one)
    return Plan("bodies", [one.head(len(text)) + text], methods=(one.method,), proper=True)


def names(rng: random.Random, known: Known) -> Plan:
    """Invented models and users, most of them new."""
    name = rng.choice((rng.choice(NASTY), f"invented-{rng.getrandbits(40):x}"))
    path = rng.choice(("/api/openai", "/api/tasks", "/v1/chat/completions", "/v1/embeddings"))
    body = {
        "model": name,
        "messages": [],
        "input": "i",
        "type": "t",
        "payload": {},
        "async": rng.random() < 0.5,
    }
    one = Valid("POST", path, "mallory", body)
    if rng.random() < 0.4:
        user = rng.choice((rng.choice(NASTY), f"user-{rng.getrandbits(40):x}"))
        clean = user.replace("\r", "").replace("\n", "").replace("\0", "")
        one = Valid("POST", path, "site", {**body, "model": STREAMING}, (("X-Fairlane-User", clean),))
    return Plan("names", [one.bytes()], methods=("POST",), proper="\x01" not in str(one.headers))


def ids(rng: random.Random, known: Known) -> Plan:
    """Ids and tickets of other users, cursors, queries."""
    other = rng.choice(known.theirs)
    mine, ticket = rng.choice(known.tickets)
    bent = bytearray(ticket.encode())
    bent[rng.randrange(len(bent))] = rng.choice(b"ABCabc012-_=%.+")
    cursor = rng.choice(CURSORS)
    quoted = "".join(f"%{byte:02x}" for byte in cursor.encode()) if len(cursor) < 1000 else cursor
    path, key = rng.choice(
        (
            (f"/api/task/{other}/events?token={ticket}", None),
            (f"/api/task/{mine}/events?token={bent.decode()}", None),
            (f"/api/task/{other}/events", "mallory"),
            (f"/api/task/{other}", rng.choice(("mallory", "site"))),
            (f"/v1/responses/resp_{other}", "mallory"),
            (f"/api/sse-stream?taskId={other}&taskId={mine}&token={ticket}", None),
            (f"/api/task/{mine}/events?after={quoted}", "mallory"),
            (f"/api/task/{rng.choice((mine.upper(), mine[:-1], NOBODYS, quoted))}", "mallory"),
            (
                f"/api/admin/tasks?after={quoted}&limit={rng.choice(('0', '1', '201', '-1', 'x', '9' * 50))}",
                "ops",
            ),
            (f"/v1/models/{quoted}", "mallory"),
        )
    )
    headers = (("Last-Event-ID", rng.choice(("1-0", "1-1", "7-7", "x", "-"))),) if rng.random() < 0.5 else ()
    one = Valid("GET", path, key, headers=headers, long=True)
    return Plan("ids", [one.bytes()], methods=("GET",), proper=True)


def damage(rng: random.Random, known: Known) -> Plan:
    """Bytes of valid requests, damaged anywhere."""
    data = b"".join(any_valid(rng, known).bytes() for _ in range(rng.choice((1, 1, 3))))
    return Plan("damaged", [damaged(rng, data)], end=rng.choice(("wait", "half", "leave")))


def heads(rng: random.Random, known: Known) -> Plan:
    """Request heads that are wrong in one way."""
    line, _, rest = any_valid(rng, known).bytes().partition(b"\r\n")
    method, path, version = line.split(b" ", 2)
    match rng.randrange(8):
        case 0:
            method = rng.choice(METHODS)
        case 1:
            path = rng.choice(PATHS)
        case 2:
            version = rng.choice(VERSIONS)
        case 3:
            rest = rest.replace(b"\r\n", b"\n")
        case 4:
            value = rng.choice(NASTY).encode("utf-8", "surrogatepass")
            rest = rng.choice(HEADERS).encode() + b": " + value + b"\r\n" + rest
        case _:
            rest = rng.choice(LINES) + b"\r\n" + rest
    data = b" ".join(part for part in (method, path, version) if part) + b"\r\n" + rest
    return Plan("heads", [data], end=rng.choice(("wait", "wait", "half", "leave")))


def chunked(rng: random.Random, known: Known) -> Plan:
    """Chunked bodies: odd sizes, extensions, and trailers, which must not count as headers."""
    one = any_valid(rng, known, submits())
    wants, trailers = None, b""
    kind = rng.randrange(8)
    if kind == 0:  # a key that comes behind the body is none
        key, one, wants = one.key, replace(one, key=None), frozenset((400, 401))
        trailers = b"Authorization: Bearer " + secret(key or "mallory").encode() + b"\r\n"
    elif kind == 1:
        trailers = b"X-Fairlane-User: root\r\nX-Fairlane-Tier: paid\r\nContent-Length: 3\r\n"
    elif kind == 2:
        trailers = b"".join(b"X-%d: %b\r\n" % (n, b"y" * 60) for n in range(rng.choice((200, 20_000))))
    head = replace(one, headers=(*one.headers, ("Transfer-Encoding", "chunked"))).head(None)
    body, pieces = one.payload(), []
    while body:
        size = rng.randint(1, len(body))
        extension = rng.choice((b"", b"", b";a=b", b";" + b"x" * 3000))
        pieces.append(b"%x%b\r\n%b\r\n" % (size, extension, body[:size]))
        body = body[size:]
    if kind == 3 and pieces:
        wrong = (
            b"xyz\r\n",
            b"-1\r\n",
            b"f" * 20 + b"\r\n",
            b"5\r\n{}\r\n",
            b"\r\n",
            b"0x5\r\nabcde\r\n",
            b"5",
        )
        pieces[rng.randrange(len(pieces))] = rng.choice(wrong)
    data = head + b"".join(pieces) + b"0\r\n" + trailers + b"\r\n"
    proper = kind not in (2, 3) and wants is None
    return Plan("chunked", [data], methods=(one.method,), proper=proper, wants=wants)


def pieces(rng: random.Random, known: Known) -> Plan:
    """Valid requests in pieces, with pauses."""
    one = any_valid(rng, known)
    data = one.bytes()
    cuts = sorted(rng.sample(range(1, len(data)), rng.randint(1, 4)))
    writes = [data[a:b] for a, b in zip((0, *cuts), (*cuts, len(data)), strict=True)]
    pauses = [rng.choice((0.0, 0.01, 0.2)) for _ in cuts]
    return Plan("slow", writes, pauses, methods=(one.method,), proper=True)


def departures(rng: random.Random, known: Known) -> Plan:
    """Requests that break off, and tasks whose callers do not wait."""
    one = any_valid(rng, known, submits())
    if isinstance(one.body, dict) and "model" in one.body:
        padding = {"padding": "x" * 300_000} if rng.random() < 0.02 else {}
        one = replace(one, body={**one.body, "model": rng.choice((one.body["model"], ROGUE)), **padding})
    data = one.bytes()
    if rng.random() < 0.4:
        data = data[: rng.randrange(1, len(data))]
    more = [rng.choice((b"G", b"\r\n", b"GET /livez HTTP/1.1\r\n"))] if rng.random() < 0.3 else []
    end = rng.choice(("leave", "reset", "half"))
    return Plan("departures", [data, *more], [rng.choice((0.0, 0.005, 0.05))], end=end)


KINDS: dict[Callable[[random.Random, Known], Plan], int] = {
    valid: 20,
    bodies: 24,
    names: 10,
    ids: 10,
    damage: 16,
    heads: 12,
    chunked: 8,
    pieces: 2,
    departures: 10,
}
"""Kinds of connections, and how often each comes."""


def plan(seed: int, number: int, known: Known) -> Plan:
    """Return connection `number` of the run `seed`."""
    rng = random.Random(f"{seed}/wire/{number}")
    made: Plan = rng.choices(list(KINDS), list(KINDS.values()))[0](rng, known)
    return made
