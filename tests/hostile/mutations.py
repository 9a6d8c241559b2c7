"""What is sent over one connection, decided by a random number generator alone. Pure."""

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.hostile.cast import ROGUE, STREAMING, secret
from tests.hostile.corpus import (
    BOUNDARY,
    CALLS,
    NOBODYS,
    SUBMITS,
    Known,
    Valid,
    any_valid,
    file_form,
    part,
    words,
)

MIB = 1 << 20
MAX_BODY = 16 * MIB
"""The largest body that a gateway takes by default."""
BIG = 0.004
"""Share of the bodies that are as large as they may be."""


@dataclass(slots=True)
class Plan:
    """One connection. `proper`: its requests are good HTTP and want answers, whatever those say."""

    kind: str
    writes: list[bytes]
    pauses: list[float] = field(default_factory=list)
    """Seconds before each write but the first; none where it is shorter."""
    requests: int = 1
    methods: tuple[str, ...] = ()
    proper: bool = False
    end: str = "wait"
    """Then: wait for the answers, `half` close first, `leave` (FIN) or `reset` (RST) at once."""
    wants: frozenset[int] | None = None
    """The statuses that alone are right, where that is known."""

    @property
    def size(self) -> int:
        return sum(map(len, self.writes))


NASTY = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\x01\x1f\x7f",
        "\r\nX-Evil: 1",
        "\n",
        "*",
        "../..",
        "%00",
        "%s%n",
        "a" * 200,
        "a" * 201,
        "b" * 5000,
    ),
    *(
        "\u2028",
        "\ufeff",
        "\u202e",
        "é",
        "日本",
        "🙂",
        "\ud83d",
        "{}",
        "null",
        "true",
        "__proto__",
        "constructor",
        ":",
        "::",
        "t:x",
    ),
    *("flw_" + "A." * 2000, "Bearer " + "x" * 400, "sk-" + "-" * 3000, "postgres://" + "a" * 3000),
)
NUMBERS: tuple[Any, ...] = (
    *(
        0,
        -1,
        1,
        5,
        6,
        2**31,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63) - 1,
        10**30,
        0.5,
        -0.0,
        1e-300,
        1e308,
        1e15,
    ),
    *(True, False, None),
)
RAW_NUMBERS = (
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "01",
    "1.",
    ".5",
    "+1",
    "0x10",
    "9" * 400,
    "1" + "0" * 5000,
    "1e-99999",
)
FIELDS = (
    *(
        "model",
        "messages",
        "prompt",
        "input",
        "stream",
        "async",
        "timeout",
        "mode",
        "priority",
        "onDisconnect",
        "resultTtlMs",
        "repair",
        "idempotencyKey",
        "template",
        "chain",
        "stages",
        "each",
        "when",
        "variables",
        "locale",
        "response_format",
    ),
    *(
        "metadata",
        "type",
        "payload",
        "stream_options",
        "encoding_format",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "tools",
    ),
    *("paused", "weight", "max_length", "concurrency", "api_base", "__class__", ""),
)
HEADERS = (
    *(
        "X-Fairlane-Timeout",
        "X-Fairlane-Priority",
        "X-Fairlane-Mode",
        "X-Fairlane-On-Disconnect",
        "X-Fairlane-Result-Ttl",
        "X-Fairlane-Repair",
        "Idempotency-Key",
    ),
    *(
        "X-Fairlane-Metadata",
        "X-Fairlane-User",
        "X-Fairlane-Tier",
        "Last-Event-ID",
        "Traceparent",
        "Content-Type",
        "Accept",
    ),
    *(
        "Authorization",
        "Host",
        "Origin",
        "Forwarded",
        "X-Forwarded-For",
        "Cookie",
        "Connection",
        "Expect",
        "Upgrade",
        "TE",
    ),
    *(
        "Transfer-Encoding",
        "Content-Length",
        "Content-Encoding",
        "Idempotency-Key",
        "Range",
        "If-None-Match",
        "Accept-Encoding",
    ),
)
CURSORS = (
    *(
        "0-0",
        "1-0",
        "1-1",
        "1-7",
        "9-9",
        "999999999999999-1",
        "1-" + "9" * 100,
        "1",
        "-",
        "1-1-1",
        "a-b",
        "１-１",
        "1-1\u2028",
        "*",
    ),
    *(
        "$",
        "+",
        "-1",
        "1.5-2",
        "0x1-1",
        " 1-1 ",
        "1-1, 1-2",
        "18446744073709551615-18446744073709551615",
        "x" * 9000,
    ),
)


# ---- whole bodies ----------


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value, rather a strange one."""
    match rng.randrange(8 if depth < 4 else 5):
        case 0:
            return rng.choice(NASTY)
        case 1 | 2:
            return rng.choice(NUMBERS)
        case 3:
            return words(rng)
        case 4:
            return rng.choice(([], {}, "", 0))
        case 5:
            return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case 6:
            return {
                rng.choice((*FIELDS, rng.choice(NASTY))): odd_value(rng, depth + 1)
                for _ in range(rng.randrange(4))
            }
        case _:
            return "".join(rng.choices(string.printable, k=rng.randrange(40)))


def odd_object(rng: random.Random, body: Any) -> Any:
    """A body with some members replaced, added, taken away."""
    if not isinstance(body, dict):
        return odd_value(rng)
    body = dict(body)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice((*FIELDS, *body))
        match rng.randrange(4):
            case 0:
                body.pop(name, None)
            case 1:
                body[name] = rng.choice(NASTY)
            case 2:
                body[name] = rng.choice(NUMBERS)
            case _:
                body[name] = odd_value(rng)
    return body


def _size(rng: random.Random, small: int) -> int:
    """How large a body that may be large is."""
    return rng.choice((MAX_BODY - 200, 4 * MIB, MIB)) if rng.random() < BIG else rng.randint(10, small)


def odd_json(rng: random.Random, valid: Valid) -> bytes:
    """A body as text: odd values, or JSON that is odd as such, up to the limits."""
    kind = rng.randrange(14)
    if kind < 6:
        return json.dumps(odd_object(rng, valid.body), ensure_ascii=rng.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
    text = valid.payload() or b"{}"
    inner = text[1:-1] + b"," if len(text) > 2 else b""
    match kind:
        case 6:  # deep
            depth = _size(rng, 20_000) // 2
            opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
            depth = depth // len(opening)
            return b"{" + inner + b'"deep":' + opening * depth + b"1" + closing * depth + b"}"
        case 7:  # wide: what becomes many times larger when it is parsed
            piece = rng.choice((b"{},", b"[],", b"0,", b'"",', b"[[]],", b'{"a":1},', b"null,"))
            return b"{" + inner + b'"wide":[' + piece * (_size(rng, 30_000) // len(piece)) + b"0]}"
        case 8:  # many members
            most = _size(rng, 30_000) // 10
            return b"{" + inner + b",".join(b'"m%d":%d' % (n, n) for n in range(most)) + b"}"
        case 9:
            return (
                b"{"
                + inner
                + b'"messages":['
                + b'{"role":"user","content":"a"},' * (_size(rng, 30_000) // 30)
                + b"{}]}"
            )
        case 10:
            name = rng.choice(FIELDS)
            return b'{"%b":%b,' % (name.encode(), rng.choice(RAW_NUMBERS).encode()) + (
                text[1:] if len(text) > 2 else b'"a":0}'
            )
        case 11:  # the same member twice
            return b"{" + inner + text[1:]
        case 12:
            junk = rng.choice(
                (
                    b"\xef\xbb\xbf",
                    b"\xff\xfe",
                    b"\xc3\x28",
                    b"\xed\xa0\x80",
                    b"\0",
                    b"// no\n",
                    b" " * 5000,
                    b"]",
                )
            )
            at = rng.randrange(len(text) + 1)
            return text[:at] + junk + text[at:]
        case _:
            return damaged(rng, text)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, inserted, removed, doubled or moved."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 12))):
        if not out:
            break
        at, span = rng.randrange(len(out)), rng.choice((1, 1, 2, 8, 40))
        match rng.randrange(7):
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
            case 5:
                out[at:at] = rng.choice(
                    (b"\r\n", b"\n", b"\r\n\r\n", b"\0", b"%00", b"\x80", b"0\r\n\r\n", b": ")
                )
            case _:
                other = rng.randrange(len(out))
                out[at : at + span], out[other : other + span] = (
                    out[other : other + span],
                    out[at : at + span],
                )
    return bytes(out)


# ---- connections ----------


def valid(rng: random.Random, known: Known) -> Plan:
    """Good requests, one after the other's answer, or all at once."""
    requests = [any_valid(rng, known) for _ in range(rng.choice((1, 2, 4, 8)))]
    short = [request for request in requests if not request.long]
    requests = [*short, *(request for request in requests if request.long)][: len(short) + 1]
    return Plan(
        "valid",
        [b"".join(request.bytes() for request in requests)],
        requests=len(requests),
        methods=tuple(request.method for request in requests),
        proper=True,
    )


def bodies(rng: random.Random, known: Known) -> Plan:
    """Well-framed requests with any body."""
    many = [
        any_valid(rng, known, SUBMITS if rng.random() < 0.9 else tuple(CALLS))
        for _ in range(rng.choice((1, 2, 4)))
    ]
    many = [one for one in many if not one.long] or [any_valid(rng, known, SUBMITS)]
    texts = [odd_json(rng, one) for one in many]
    if sum(map(len, texts)) > MIB:
        many, texts = many[:1], texts[:1]
    data = b"".join(
        replace(one, body={} if one.body is None else one.body).head(len(text)) + text
        for one, text in zip(many, texts, strict=True)
    )
    return Plan("bodies", [data], requests=len(many), methods=tuple(one.method for one in many), proper=True)


def forms(rng: random.Random, known: Known) -> Plan:
    """Forms that bring a file, with parts that are missing, twice, endless, cut off or something else."""
    parts = file_form(rng)
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(7):
            case 0 if parts:
                parts.pop(rng.randrange(len(parts)))
            case 1 if parts:
                parts.append(rng.choice(parts))
            case 2:
                parts += [part(f"f{number}", b"", "x") for number in range(rng.choice((3, 70, 2000)))]
            case 3:
                clean = rng.choice(NASTY).replace("\r", "").replace("\n", "").replace('"', "")
                parts.append(part(clean, words(rng).encode(), rng.choice((None, clean))))
            case 4:
                parts.append(b"--" + BOUNDARY.encode() + b"\r\n" + b"x: y\r\n" * rng.choice((1, 9, 9000)))
            case 5:
                parts.append(b"--" + BOUNDARY.encode() + b"\r\nx: " + b"y" * rng.choice((100, 5000, MIB)))
            case _:
                parts.append(part("file", rng.randbytes(rng.choice((1, 70_000, MIB))), "x"))
    form = b"".join(parts) + rng.choice((f"--{BOUNDARY}--\r\n".encode(), b"", b"--" + BOUNDARY.encode()))
    if rng.random() < 0.3:
        form = form[: rng.randint(0, len(form))]
    one = Valid("POST", "/v1/files", "mallory", form=form)
    return Plan("forms", [one.bytes()], methods=("POST",), proper=True)


def names(rng: random.Random, known: Known) -> Plan:
    """Models, users and types that somebody made up, most of them never seen before."""
    name = rng.choice(
        (rng.choice(NASTY), f"invented-{rng.getrandbits(40):x}", f"invented-{rng.getrandbits(40):x}")
    )
    path = rng.choice(("/api/openai", "/api/tasks", "/v1/chat/completions", "/v1/embeddings"))
    body: dict[str, Any] = {
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
    """Ids and tickets of others, cursors, queries."""
    task, other = rng.choice((*known.mine, *known.theirs)), rng.choice(known.theirs)
    mine, ticket = rng.choice(known.tickets)
    bent = bytearray(ticket.encode())
    bent[rng.randrange(len(bent))] = rng.choice(b"ABCabc012-_=%. ")
    cursor = rng.choice(CURSORS).encode("utf-8").decode("latin-1")
    quoted = "".join(f"%{byte:02x}" for byte in cursor.encode("latin-1")) if len(cursor) < 1000 else cursor
    path, key = rng.choice(
        (
            (f"/api/task/{other}/events?token={ticket}", None),
            (f"/api/task/{mine}/events?token={bent.decode()}".replace(" ", "+"), None),
            (f"/api/task/{other}/events", "mallory"),
            (f"/api/task/{other}", "mallory"),
            (f"/api/task/{other}", "site"),
            (f"/api/sse-stream?taskId={other}&taskId={mine}&token={ticket}", None),
            (f"/api/task/{task}/events?after={quoted}", "mallory"),
            (f"/api/task/{task}/events?lastEventId={quoted}&fromLatest=1", "mallory"),
            (f"/api/task/{task.upper()}", "mallory"),
            (f"/api/task/{task[:-1]}", "mallory"),
            (f"/api/task/{NOBODYS}", "mallory"),
            (
                f"/api/admin/tasks?after={quoted}&limit={rng.choice(('0', '1', '201', '-1', 'x', '9' * 50))}",
                "ops",
            ),
            (f"/api/admin/audit?after={quoted}", "ops"),
            (f"/api/admin/overview?tasks={rng.choice(('0', '500', '501', '-1', '٣', '9' * 99))}", "ops"),
            (f"/api/admin/tasks?user={quoted}&model={quoted}&state={rng.choice(('queued', 'x'))}", "ops"),
            (f"/v1/models/{quoted}", "mallory"),
            ("/api/task/" + "&".join(f"a{n}=1" for n in range(rng.randrange(300))), "mallory"),
        )
    )
    headers = (("Last-Event-ID", rng.choice(("1-0", "1-1", "7-7", "x", "-"))),) if rng.random() < 0.5 else ()
    one = Valid("GET", path.replace("\u2028", ""), key, headers=headers, long=True)
    return Plan("ids", [one.bytes()], methods=("GET",), proper=True)


def damage(rng: random.Random, known: Known) -> Plan:
    """Bytes of good requests, damaged anywhere."""
    data = b"".join(any_valid(rng, known).bytes() for _ in range(rng.choice((1, 1, 3))))
    return Plan("damaged", [damaged(rng, data)], end=rng.choice(("wait", "half", "leave")))


def heads(rng: random.Random, known: Known) -> Plan:
    """Request heads that are wrong in one way."""
    one = any_valid(rng, known)
    data = one.bytes()
    line, _, rest = data.partition(b"\r\n")
    method, path, version = line.split(b" ", 2)
    name = rng.choice(HEADERS).encode()
    value = rng.choice(NASTY).encode("utf-8", "surrogatepass")
    match rng.randrange(13):
        case 0:
            method = rng.choice(
                (
                    b"BREW",
                    b"get",
                    b"",
                    b"CONNECT",
                    b"TRACE",
                    b"PRI",
                    b"M-SEARCH",
                    b"X" * 300,
                    b"G\0T",
                    b"OPTIONS",
                )
            )
        case 1:
            path = rng.choice(
                (
                    b"*",
                    b"",
                    b"http://evil.example" + path,
                    b"//" + path,
                    path + b"?" + b"a=1&" * 3000,
                    b"/%zz",
                    b"\xff",
                )
            )
        case 2:
            version = rng.choice(
                (
                    b"HTTP/0.9",
                    b"HTTP/1.0",
                    b"HTTP/1.2",
                    b"HTTP/2.0",
                    b"HTTP/9",
                    b"",
                    b"XTTP/1.1",
                    b"HTTP/1.1 ",
                )
            )
        case 3:
            rest = b"Host: evil.example\r\n" + rest
        case 4:
            rest = b"Content-Length: %d\r\n" % rng.choice((0, 1, 5, 10**18, 10**30)) + rest
        case 5:
            rest = (
                b"Transfer-Encoding: "
                + rng.choice((b"chunked", b"gzip, chunked", b"identity", b"xchunked", b"\x0bchunked"))
                + b"\r\n"
                + rest
            )
        case 6:
            rest = name + b": " + value + b"\r\n" + rest
        case 7:
            rest = b"X: " + b"y" * rng.choice((1000, 8000, 9000, 60_000, 70_000, 300_000)) + b"\r\n" + rest
        case 8:
            rest = b"".join(b"X-%d: y\r\n" % n for n in range(rng.choice((90, 101, 3000)))) + rest
        case 9:
            rest = (
                rng.choice(
                    (
                        b"No colon\r\n",
                        b" folded: x\r\n",
                        b": no name\r\n",
                        b"X : y\r\n",
                        b"X\0: y\r\n",
                        b"X: a\r\n b\r\n",
                    )
                )
                + rest
            )
        case 10:
            token = secret(rng.choice(("mallory", "bob", "ops", "good"))).encode()
            rest = rest.replace(
                b"Bearer ",
                rng.choice(
                    (b"Basic ", b"bearer\t", b"Bearer  ", b"Bearer\xa0", b"Bearer " + token[:-1] + b"x ")
                ),
            )
        case 11:
            rest = b"Expect: " + rng.choice((b"100-continue", b"200-ok")) + b"\r\n" + rest
        case _:
            rest = rest.replace(b"\r\n", b"\n")
    data = b" ".join(part for part in (method, path, version) if part) + b"\r\n" + rest
    return Plan("heads", [data], end=rng.choice(("wait", "wait", "half", "leave")))


def chunked(rng: random.Random, known: Known) -> Plan:
    """Chunked bodies: odd sizes, extensions, and trailers, which must not count as headers."""
    one = any_valid(rng, known, SUBMITS)
    wants = None
    trailers = b""
    kind = rng.randrange(8)
    if kind == 0:  # a key that comes behind the body is none
        key, one, wants = one.key, replace(one, key=None), frozenset((400, 401))
        trailers = b"Authorization: Bearer " + secret(key or "mallory").encode() + b"\r\n"
    elif kind == 1:
        trailers = b"X-Fairlane-User: root\r\nX-Fairlane-Tier: paid\r\nContent-Length: 3\r\n"
    elif kind == 2:
        many = rng.choice((20_000, 200_000)) if rng.random() < 4 * BIG else 200
        trailers = b"".join(b"X-%d: %b\r\n" % (n, b"y" * 60) for n in range(many))
    head = replace(one, headers=(*one.headers, ("Transfer-Encoding", "chunked"))).head(None)
    body, pieces = one.payload(), []
    while body:
        size = rng.randint(1, max(len(body), 1))
        pieces.append(
            b"%x%b\r\n%b\r\n" % (size, rng.choice((b"", b"", b";a=b", b";" + b"x" * 3000)), body[:size])
        )
        body = body[size:]
    end = b"0\r\n" + trailers + b"\r\n"
    if kind == 3 and pieces:
        at = rng.randrange(len(pieces))
        pieces[at] = rng.choice(
            (b"xyz\r\n", b"-1\r\n", b"f" * 20 + b"\r\n", b"5\r\n{}\r\n", b"\r\n", b"0x5\r\nabcde\r\n", b"5")
        )
    proper = kind not in (2, 3)
    return Plan(
        "chunked",
        [head + b"".join(pieces) + end],
        methods=(one.method,),
        proper=proper and wants is None,
        wants=wants,
    )


def truncated(rng: random.Random, known: Known) -> Plan:
    """What breaks off somewhere."""
    data = any_valid(rng, known).bytes()
    return Plan(
        "truncated", [data[: rng.randrange(1, len(data))]], end=rng.choice(("half", "leave", "reset", "wait"))
    )


def slow(rng: random.Random, known: Known) -> Plan:
    """Good requests in pieces, with pauses."""
    one = any_valid(rng, known)
    data = one.bytes()
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, 4)))
    writes = [data[a:b] for a, b in zip((0, *cuts), (*cuts, len(data)), strict=True)]
    pauses = [rng.choice((0.0, 0.01, 0.2)) for _ in cuts]
    return Plan("slow", [part for part in writes if part], pauses, methods=(one.method,), proper=True)


def departures(rng: random.Random, known: Known) -> Plan:
    """Tasks whose callers do not wait; some with a body that fills every buffer on the way."""
    one = any_valid(rng, known, SUBMITS)
    if isinstance(one.body, dict):
        model = {"model": rng.choice((one.body["model"], ROGUE))} if "model" in one.body else {}
        padding = {"padding": "x" * 300_000} if rng.random() < 0.02 else {}
        one = replace(one, body={**one.body, **model, **padding})
    more = [b"G", b"\r\n", b"GET /livez HTTP/1.1\r\n"] if rng.random() < 0.3 else []
    return Plan(
        "departures",
        [one.bytes(), *more[: rng.randint(0, 1)]],
        [rng.choice((0.0, 0.005, 0.05))],
        end=rng.choice(("leave", "reset", "half")),
    )


def upgrades(rng: random.Random, known: Known) -> Plan:
    """Hand-shakes of WebSockets that are wrong in one way."""
    path = rng.choice(
        ("/ws", "/ws", "/ws", "/nowhere", "/api/openai", "/ws?" + "a" * rng.choice((10, 9000, 70_000)))
    )
    lines = ["Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    lines.append("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    lines.append(f"Authorization: Bearer {secret(rng.choice(('rogue', 'mallory', 'nobody')))}")
    for _ in range(rng.randint(0, 2)):
        match rng.randrange(6):
            case 0:
                lines.pop(rng.randrange(len(lines)))
            case 1:
                lines.append("X-Long: " + "y" * rng.choice((5000, 9000, 40_000)))
            case 2:
                lines.append(
                    "Sec-WebSocket-Protocol: " + rng.choice(("fairlane.worker.v2", "a, b", "", "x" * 5000))
                )
            case 3:
                lines.append(
                    rng.choice(
                        (
                            "Origin: https://evil.example",
                            "Sec-WebSocket-Extensions: permessage-deflate; a=" + "b" * 3000,
                        )
                    )
                )
            case 4:
                lines.append(f"Content-Length: {rng.choice((2, 50_000))}")
            case _:
                lines.append("Sec-WebSocket-Version: 8")
    data = f"GET {path} HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    tail = rng.choice((b"", b"", b"{}", b"\x81\x80\0\0\0\0", rng.randbytes(100)))
    return Plan("upgrades", [data.encode("latin-1") + tail], end=rng.choice(("wait", "leave", "reset")))


KINDS: tuple[tuple[Callable[[random.Random, Known], Plan], int], ...] = (
    (valid, 20),
    (bodies, 22),
    (forms, 4),
    (names, 10),
    (ids, 10),
    (damage, 14),
    (heads, 10),
    (chunked, 8),
    (truncated, 4),
    (slow, 2),
    (departures, 6),
    (upgrades, 4),
)
"""Kinds of connections, and how often each comes."""


def plan(seed: int, number: int, known: Known) -> Plan:
    """Connection `number` of the run `seed`."""
    rng = random.Random(f"{seed}/wire/{number}")
    makers, weights = zip(*KINDS, strict=True)
    made: Plan = rng.choices(makers, weights)[0](rng, known)
    return made
