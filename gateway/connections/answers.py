"""Answers of the connection itself, without the application. Each is whole, and closes the connection."""

import msgspec

EVERY = b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n"
"""Part of every answer: no browser may guess its type, and no cache may keep it."""


def _answer(status: str, code: str, message: str, more: bytes = b"") -> bytes:
    body = msgspec.json.encode({"error": message, "code": code})
    head = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: application/json\r\n%b%bcontent-length: %d\r\n\r\n"
    return head % (status.encode(), EVERY, more, len(body)) + body


BAD_REQUEST = _answer("400 Bad Request", "BAD_REQUEST", "This is not a valid HTTP/1.1 request")
TWO_HOSTS = _answer("400 Bad Request", "BAD_REQUEST", "Send one Host header")
UPGRADE_WITH_BODY = _answer(
    "400 Bad Request", "BAD_REQUEST", "A request with an Upgrade header may have no body"
)
BAD_UPGRADE = _answer(
    "400 Bad Request",
    "BAD_REQUEST",
    "This is not a valid WebSocket handshake; nothing may follow it before it is answered",
)
HEAD_TOO_LARGE = _answer(
    "431 Request Header Fields Too Large", "HEAD_TOO_LARGE", "The request head is too large"
)
TOO_MANY_CONNECTIONS = _answer(
    "503 Service Unavailable",
    "TOO_MANY_CONNECTIONS",
    "This gateway has too many connections",
    b"retry-after: 1\r\n",
)
INTERNAL = _answer("500 Internal Server Error", "INTERNAL", "Internal error")
