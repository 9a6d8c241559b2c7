"""What a rogue worker sends: messages and WebSocket frames that are wrong in one way or many. Pure."""

import json
import random
from typing import Any

from tests.hostile.cast import ROGUE
from tests.hostile.corpus import words
from tests.hostile.mutations import NASTY, NUMBERS, damaged, odd_value

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
MIB = 1 << 20
Message = dict[str, Any]


def frame(
    payload: bytes, opcode: int = TEXT, *, final: bool = True, rsv: int = 0, masked: bool = True
) -> bytes:
    """One frame. The mask is zero, which leaves the bytes as they are."""
    first = (0x80 if final else 0) | rsv << 4 | opcode
    bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 65_536:
        head = bytes((first, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8, "big")
    return head + (b"\0\0\0\0" if masked else b"") + payload


def register(rng: random.Random) -> Message:
    """A good first message."""
    return {
        "type": "register",
        "protocols": [2],
        "instanceId": f"rogue-{rng.getrandbits(32):x}",
        "name": words(rng),
        "models": [ROGUE],
        "slots": rng.choice((1, 4, 64)),
    }


def about(rng: random.Random, task: Message, kind: str) -> Message:
    """A good message of a kind about a task."""
    key = {"taskId": task.get("taskId", ""), "attempt": task.get("attempt", 1)}
    match kind:
        case "taskAck" | "taskSent":
            return {"type": kind, **key}
        case "taskReject":
            reason = rng.choice(("capacity", "unsupported", "draining", "badPayload"))
            return {"type": kind, **key, "reason": reason, "retryAfterMs": rng.choice((0, 100, 1000))}
        case "taskChunk":
            deltas = [
                {"content": words(rng), "index": rng.choice((0, 0, 0, 1))} for _ in range(rng.randint(1, 3))
            ]
            return {
                "type": kind,
                **key,
                "seq": rng.choice((1, 1, 2, 3)),
                "deltas": deltas,
                "delta": words(rng),
            }
        case "taskProgress":
            return {"type": kind, **key, "pct": rng.randint(0, 100), "note": words(rng)}
        case "taskResult":
            error = rng.choice((None, None, "it failed"))
            info = {
                "code": rng.choice(("UPSTREAM_ERROR", "MODEL_TOO_BUSY", "X")),
                "retryable": rng.random() < 0.5,
                "retryAfterMs": 1,
            }
            usage = {"inputTokens": 1, "outputTokens": rng.choice((1, 10**6, 10**12))}
            result = {
                "type": kind,
                **key,
                "result": {"content": words(rng)},
                "error": error,
                "lastSeq": rng.choice((0, 0, 1, 9)),
            }
            return {**result, "usage": usage, **({"errorInfo": info} if error else {})}
        case "heartbeat":
            return {"type": kind, "running": [key] * rng.choice((0, 1, 1, 200))}
        case "register":
            return register(rng)
        case _:
            return {"type": "draining", "graceMs": 100}


KINDS = (
    "taskAck",
    "taskSent",
    "taskReject",
    "taskChunk",
    "taskChunk",
    "taskProgress",
    "taskResult",
    "heartbeat",
    "register",
    "draining",
)


def odd_message(rng: random.Random, task: Message) -> bytes:
    """A message, good or damaged, as JSON text."""
    message = about(rng, task, rng.choice(KINDS))
    match rng.randrange(12):
        case 0 | 1 | 2:
            pass
        case 3:
            message[rng.choice(list(message))] = rng.choice(NASTY)
        case 4:
            message[rng.choice(list(message))] = rng.choice(NUMBERS)
        case 5:
            message[rng.choice((*message, "extra", "tags", "sdk", "taskTypes", "stage", "timings"))] = (
                odd_value(rng)
            )
        case 6:
            message.pop(rng.choice(list(message)))
        case 7:  # of another attempt, or of nobody
            message["attempt"] = rng.choice((0, 2, 10**6, 2**53, -1))
            message["taskId"] = rng.choice(
                (message.get("taskId", ""), "00000000-0000-8000-8000-000000000000")
            )
        case 8:
            message["models"] = [f"m{n}" for n in range(rng.choice((256, 257, 1000)))]
            message["name"] = rng.choice(NASTY)
        case 9:
            message["deltas"] = [{"content": "x" * rng.choice((1, 70_000))}] * rng.choice((1, 30))
        case 10:
            text = json.dumps(message)
            return text.replace(
                "lane", rng.choice((r"\ud83d", r"\ude00", r"\u0000", r"\ud83d\ud83d"))
            ).encode()
        case _:
            return damaged(rng, json.dumps(message, ensure_ascii=False).encode())
    return json.dumps(message, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")


def odd_frames(rng: random.Random, task: Message) -> tuple[str, bytes]:
    """(kind, bytes) of what to send next; several frames, or a part of one."""
    text = odd_message(rng, task)
    match rng.randrange(24):
        case 0:
            return "binary", frame(text, BINARY)
        case 1:
            at = rng.randrange(len(text) + 1)
            ping = frame(b"p", PING) if rng.random() < 0.5 else b""
            return "fragments", frame(text[:at], final=False) + ping + frame(text[at:], CONTINUATION)
        case 2:  # one message in very many frames
            many = rng.choice((100, 3000, 300_000 if rng.random() < 0.1 else 3000))
            end = frame(b"", CONTINUATION) if rng.random() < 0.7 else b""
            return "continuations", frame(b" ", final=False) + frame(
                b" ", CONTINUATION, final=False
            ) * many + end
        case 3:
            return "pings", frame(b"x" * rng.choice((0, 125)), PING) * rng.choice((1, 1000))
        case 4:
            return "control", frame(b"x" * 126, rng.choice((PING, CLOSE))) if rng.random() < 0.5 else frame(
                b"", PING, final=False
            )
        case 5:
            return "reserved", frame(text, rng.choice((3, 7, 11, 15)), rsv=rng.choice((0, 1, 4)))
        case 6:
            return "unmasked", frame(text, masked=False)
        case 7:
            size = rng.choice((2**20, 2**31, 2**62, 2**64 - 1))
            return "huge length", bytes((0x81, 0xFF)) + size.to_bytes(8, "big") + b"\0\0\0\0" + text
        case 8:
            code = rng.choice((0, 999, 1000, 1005, 1006, 1012, 4400, 65_535))
            return "close", frame(code.to_bytes(2, "big") + rng.choice((b"", b"bye", b"\xff")), CLOSE)
        case 9:
            large = rng.choice((MIB, 5 * MIB, 17 * MIB)) if rng.random() < 0.05 else 60_000
            return "large", frame(b'{"type":"taskChunk","pad":"' + b"x" * large + b'"}')
        case 10:
            return "flood", frame(text) * max(min(rng.choice((10, 60, 600)), MIB // len(text or b"-")), 2)
        case 11:
            return "bytes", rng.randbytes(rng.randint(1, 60))
        case 12:
            whole = frame(text)
            return "cut", whole[: rng.randrange(1, len(whole))]
        case 13:
            depth = rng.choice((500, 50_000))
            return "deep", frame(
                b'{"type":"taskResult","taskId":"x","result":' + b"[" * depth + b"]" * depth + b"}"
            )
        case _:
            return "messages", frame(text)


BREAKING = frozenset({"reserved", "unmasked", "huge length", "close", "bytes", "cut", "control"})
"""Behind these the gateway closes, or waits for the rest of a frame for as long as the worker lives."""
