"""One answer, whatever form an upstream gives it, is the same in every API.

A seed makes an answer, a server that writes it in its own way, and a connection that delivers it in pieces; the real adapter
reads it, a real attempt logs it, and all views show it. The nightly run
reads many more. FAIRLANE_SEED=N begins with that seed.
"""

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
import pytest

from fairlane.gateway.batches.models import answered
from fairlane.queues.tasks import Grant, State
from fairlane.streaming import events as ev
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.messages import MessagesBodyView, MessagesStreamView
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.responses import ResponsesBodyView, ResponsesStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import openai_usage
from fairlane.streaming.writer import bytes_of
from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.protocol import ErrorInfo, TaskChunk, TaskResult, encoder, from_worker
from fairlane.workers.sdk import Context, Delta, Result, Task, TaskError, Usage
from fairlane.workers.sdk.values import as_json
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.tasks import messages
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import Finish

SEED = int(os.environ.get("FAIRLANE_SEED", "1"))
TASK = "0191f0aa-1111-8222-8333-444455556666"
INFO = TaskInfo(TASK, "m", 1_763_690_000, "openaiLike")
ECHO = b'{"reasoning":{"effort":null,"summary":null}}'
REASONS = {
    "stop": ["stop", "stop", "eos", "eos_token", "end_turn", "STOP"],
    "length": ["length", "length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"],
    "tool_calls": ["tool_calls", "tool_calls", "tool_use", "tool_call"],
    "content_filter": ["content_filter", "content_filter", "SAFETY", "safety", "sensitive"],
}
HALF = ("\\ufffd", "\\ud83d")
NULLS = ("refusal", "function_call", "tool_calls", "audio", "annotations", "reasoning_content")


# ---- the answer ----------


@dataclass
class Call:
    """`id` is None where the server says none."""

    id: str | None
    name: str
    arguments: str


@dataclass
class Choice:
    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = "stop"
    said: str | None = None
    """The finish reason in the server's words, if it says one."""


@dataclass
class Answer:
    choices: list[Choice]
    usage: tuple[int, int] | None
    style: dict[str, Any]
    """How the server writes it."""


def text_of(rng: random.Random, most: int = 12) -> str:
    alphabet = [
        "a",
        "b ",
        "word ",
        '"',
        "\\",
        "\n",
        "é",
        "漢",
        "\u2028",
        "😀",
        "👩‍👩‍👧",
        "\x00",
        "{",
        "</think>",
        "data: ",
    ]
    return "".join(rng.choices(alphabet, k=rng.randint(1, most)))


def make_answer(rng: random.Random, *, choices: int | None = None) -> Answer:
    style: dict[str, Any] = {
        "index": rng.choice(["right", "right", "zero", "absent", "shifted", "string", "foreign tail"]),
        "ids": rng.choice(["first", "first", "each", "none", "empty"]),
        "objects": rng.random() < 0.2,
        "reasoning": rng.choice(["reasoning_content", "reasoning", "both", "parts"]),
        "parts": rng.random() < 0.2,
        "unsaid": rng.choice([None, None, "", "absent"]),
        "nulls": rng.random() < 0.5,
        "usage": rng.choice(["last", "last", "with the finish", "choice", "x_groq", "every"]),
        "whole": rng.choice(["never", "never", "never", "instead", "at the end"]),
        "more after the reason": rng.random() < 0.1,
        "done": rng.random() < 0.8,
    }
    made = [make_choice(rng, style) for _ in range(choices or rng.choice([1, 1, 1, 2, 3]))]
    if not style["done"]:
        for one in made:
            one.said = one.said or one.finish
    usage = (rng.randint(1, 5000), rng.randint(400, 5000)) if rng.random() < 0.7 else None
    return Answer(made, usage, style)


def make_choice(rng: random.Random, style: dict[str, Any]) -> Choice:
    choice = Choice(finish="")
    if rng.random() < 0.4:
        choice.reasoning = text_of(rng)
    kind = rng.random()
    if kind < 0.1:
        choice.refusal = text_of(rng)
    elif kind < 0.75:
        choice.text = text_of(rng, 40) + ("\ufffd." if rng.random() < 0.1 else "")
    if kind > 0.6:
        choice.calls = [make_call(rng, style, number) for number in range(rng.randint(1, 4))]
    finishes = (
        ["stop", "length", "content_filter"]
        if not choice.calls
        else ["tool_calls", "tool_calls", "stop", "length"]
    )
    choice.finish = rng.choice(finishes)
    choice.said = rng.choice(REASONS[choice.finish])
    if choice.calls and choice.finish == "stop":
        choice.finish, choice.said = "tool_calls", "stop"
    if rng.random() < 0.1:
        choice.finish, choice.said = "tool_calls" if choice.calls else "stop", None
    return choice


def make_call(rng: random.Random, style: dict[str, Any], number: int) -> Call:
    arguments = {
        rng.choice("abc"): rng.choice([1, None, [{}], {"x": '}"{'}, text_of(rng, 4)])
        for _ in range(rng.randint(0, 3))
    }
    known = style["ids"] in ("first", "each")
    text = json.dumps(arguments, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1]))
    return Call(
        f"call_{rng.randbytes(4).hex()}_{number}" if known else None, rng.choice(["f", "get_weather"]), text
    )


# ---- the server ----------


def pieces(rng: random.Random, text: str) -> list[str]:
    """A text in pieces, which may end within a character of two halves."""
    units = text.encode("utf-16-le", "surrogatepass")
    cuts = sorted({0, len(units) // 2, *(rng.randint(0, len(units) // 2) for _ in range(rng.randint(0, 4)))})
    return [units[2 * a : 2 * b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(cuts)]


def in_parts(text: str, kind: str = "text") -> list[dict[str, Any]]:
    if kind == "thinking":
        return [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]
    return [{"type": "text", "text": text}, {"type": "reference", "reference_ids": [1]}]


def said_thoughts(style: dict[str, Any], text: str) -> dict[str, Any]:
    how = style["reasoning"]
    if how == "parts":
        return {"content": in_parts(text, "thinking")}
    return dict.fromkeys(("reasoning", "reasoning_content") if how == "both" else (how,), text)


def said_text(style: dict[str, Any], text: str) -> dict[str, Any]:
    return {"content": in_parts(text) if style["parts"] else text}


def said_call(style: dict[str, Any], call: Call, number: int, text: str, place: int) -> dict[str, Any]:
    """A piece of a call; `place`: which of its pieces."""
    first, how = place == 0, style["index"]
    index = {
        "right": number,
        "zero": 0,
        "shifted": number + 3,
        "string": str(number),
        "foreign tail": number,
    }.get(how)
    if how == "foreign tail" and not first:
        index = 100 + number
    said: dict[str, Any] = {} if index is None else {"index": index}
    if call.id is not None:
        if first or style["ids"] == "each":
            said["id"] = call.id
        elif style["nulls"]:
            said["id"] = ""
    elif style["ids"] == "empty":
        said["id"] = ""
    function: dict[str, Any] = {"arguments": text}
    if first or (style["ids"] == "each"):
        function["name"], said["type"] = call.name, "function"
    elif style["nulls"]:
        function["name"] = None
    if style["objects"] and first and call.arguments == text:
        function["arguments"] = json.loads(text)
    return {**said, "function": function}


def said_calls(rng: random.Random, style: dict[str, Any], calls: list[Call]) -> list[list[dict[str, Any]]]:
    """The pieces of calls, in lists: as they follow, or taking turns where each says whose it is."""
    by_call = []
    for number, call in enumerate(calls):
        named = call.id is not None or style["index"] in ("right", "shifted", "string")
        texts = [call.arguments] if style["objects"] or not named else pieces(rng, call.arguments)
        by_call.append([said_call(style, call, number, text, place) for place, text in enumerate(texts)])
    in_turns = style["ids"] == "each" or style["index"] in ("right", "shifted", "string")
    begun: list[Any] = []
    lists: list[list[dict[str, Any]]] = [[]]
    while by_call or begun:
        if by_call and (not begun or (in_turns and rng.random() < 0.5)):
            begun.append(by_call.pop(0))  # calls begin in their order
            of = begun[-1]
        else:
            of = rng.choice(begun)
        lists[-1].append(of.pop(0))
        begun = [one for one in begun if one]
        if rng.random() < 0.6:
            lists.append([])
    return [one for one in lists if one]


def deltas(rng: random.Random, style: dict[str, Any], choice: Choice) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = (
        [{"role": "assistant", "content": rng.choice(["", None])}] if rng.random() < 0.8 else []
    )
    said += (
        [said_thoughts(style, piece) for piece in pieces(rng, choice.reasoning)] if choice.reasoning else []
    )
    said += [said_text(style, piece) for piece in pieces(rng, choice.text)] if choice.text else []
    said += [{"refusal": piece} for piece in pieces(rng, choice.refusal)] if choice.refusal else []
    said += [{"tool_calls": listed} for listed in said_calls(rng, style, choice.calls)]
    if len(said) > 2 and rng.random() < 0.2:  # thoughts and a text in one delta
        for at in range(len(said) - 1):
            if not said[at].keys() & said[at + 1].keys() and "role" not in said[at]:
                said[at : at + 2] = [{**said[at + 1], **said[at]}]
                break
    return said


def message_of(rng: random.Random, style: dict[str, Any], choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if choice.text:
        message |= said_text(style, choice.text)
    if choice.reasoning:
        thoughts = said_thoughts(style, choice.reasoning)
        if "content" in thoughts and choice.text:
            thoughts["content"] += in_parts(choice.text)
        message |= thoughts
    if choice.refusal:
        message["refusal"] = choice.refusal
    if choice.calls:
        message["tool_calls"] = [
            said_call(style, call, number, call.arguments, 0) for number, call in enumerate(choice.calls)
        ]
        for call in message["tool_calls"]:
            if rng.random() < 0.5:
                call.pop("index", None)
    return with_nulls(rng, style, message)


def with_nulls(rng: random.Random, style: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    if not style["nulls"]:
        return said
    return {
        **{
            name: rng.choice([None, None, [] if name in ("tool_calls", "annotations") else ""])
            for name in NULLS
        },
        **said,
    }


def usage_of(usage: tuple[int, int] | None) -> dict[str, int] | None:
    return (
        None
        if usage is None
        else {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    )


def whole(rng: random.Random, answer: Answer) -> dict[str, Any]:
    choices = []
    for index, choice in enumerate(answer.choices):
        choices.append(
            {"index": index, "message": message_of(rng, answer.style, choice), "finish_reason": choice.said}
        )
    body: dict[str, Any] = {
        "id": "up-1",
        "object": "chat.completion",
        "created": 1,
        "model": "up",
        "choices": choices,
    }
    return with_usage(rng, answer, body)


def with_usage(rng: random.Random, answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    usage, where = usage_of(answer.usage), answer.style["usage"]
    if usage and where == "choice" and body["choices"]:
        body["choices"][0]["usage"] = usage
    elif usage and where == "x_groq":
        body["x_groq"] = {"usage": usage}
    elif usage or rng.random() < 0.3:
        body["usage"] = usage
    return body


def chunks(rng: random.Random, answer: Answer) -> Iterator[dict[str, Any]]:
    """The events of a stream, whose choices take turns."""
    style = answer.style
    if style["whole"] == "instead":
        yield whole(rng, answer)
        return
    left = [(index, deltas(rng, style, choice), choice) for index, choice in enumerate(answer.choices)]
    late = style["usage"] == "last" or (
        answer.usage and all(choice.said is None for choice in answer.choices)
    )
    while left:
        index, said, choice = rng.choice(left)
        made: dict[str, Any] = {"index": index, "delta": {}, "finish_reason": None}
        if style["unsaid"] == "absent":
            del made["finish_reason"]
        elif style["unsaid"] == "":
            made["finish_reason"] = ""
        if said:
            made["delta"] = with_nulls(rng, style, said.pop(0))
        last = not said and (not made["delta"] or rng.random() < 0.5)
        if choice.said is not None and (last or (len(said) == 1 and style["more after the reason"])):
            made["finish_reason"] = choice.said
        if last:
            left = [one for one in left if one[0] != index]
        chunk = {
            "id": "up-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "up",
            "choices": [made],
        }
        if (last and not left and not late) or style["usage"] == "every":
            chunk = with_usage(rng, answer, chunk)
        yield chunk
    if style["whole"] == "at the end":
        yield whole(rng, answer)
    if late and answer.usage:
        yield {
            "id": "up-1",
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage_of(answer.usage),
        }


def events_of(rng: random.Random, answer: Answer) -> list[bytes]:
    """What a server sends as events, in bytes."""
    end, space = rng.choice([b"\n", b"\n", b"\r\n"]), rng.choice([b" ", b""])
    frames = []
    for chunk in chunks(rng, answer):
        frames.append(b"data:" + space + json.dumps(chunk).replace(*HALF).encode() + end + end)
        if rng.random() < 0.1:
            frames.append(b": comment" + end + end)
    if answer.style["done"]:
        frames.append(b"data:" + space + b"[DONE]" + end + end)
    return frames


def in_bytes(rng: random.Random, body: dict[str, Any]) -> bytes:
    """A whole answer as JSON, in which U+FFFD is half of a character, or a byte that is no UTF-8."""
    if rng.random() < 0.5:
        return json.dumps(body).replace(*HALF).encode()
    return json.dumps(body, ensure_ascii=False).encode().replace("\ufffd".encode(), b"\xff")


class Body(httpx2.AsyncByteStream):
    def __init__(self, parts: list[bytes], *, breaks: bool) -> None:
        self.parts = parts
        self.breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part
        if self.breaks:
            raise httpx2.ReadError("the connection broke")


class Server(httpx2.AsyncBaseTransport):
    """Answers each request with these bytes."""

    def __init__(self) -> None:
        self.body = b""
        self.content_type = ""
        self.breaks = False
        self.rng = random.Random()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        cuts = sorted(
            {0, len(self.body), *(self.rng.randint(0, len(self.body)) for _ in range(self.rng.randint(0, 5)))}
        )
        parts = [self.body[a:b] for a, b in itertools.pairwise(cuts)]
        return httpx2.Response(
            200, headers={"Content-Type": self.content_type}, stream=Body(parts, breaks=self.breaks)
        )


# ---- the worker and the gateway ----------


class Writer:
    """A log in memory: what a `TaskWriter` does, without Redis."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.chunks = self.text_bytes = self.pieces = 0
        self.coalescer = Coalescer()

    @property
    def has_output(self) -> bool:
        return self.chunks > 0

    def chunk(self, index: int, kind: str, delta: str | bytes) -> None:
        self.coalescer.add(index, kind, delta, 0.0)
        self.chunks += 1
        if kind in ev.TEXT_KINDS:
            self.text_bytes += bytes_of(delta)

    def flush(self) -> None:
        for piece in self.coalescer.take(0.0):
            self.add("chunk", ev.chunk_data(TASK, 1, piece.index, piece.kind, piece.delta_json, piece.n))

    def add(self, kind: str, data: bytes) -> None:
        self.events.append(Event(1, len(self.events) + 1, kind, data))

    def fits(self, size: int) -> bool:
        return True

    def pump(self) -> None: ...
    def close(self) -> None: ...


class Effects:
    """Keeps the step that ends an attempt."""

    settings = DispatchSettings()
    stop_grace_s = 1.0
    step: Any = None

    def time(self) -> float:
        return 0.0

    def finish(self, attempt: Attempt, end: Finish) -> None:
        self.step = end

    def __getattr__(self, name: str) -> Any:
        """What else an attempt reports."""
        return lambda *_: None


def passes_on(body: bytes) -> Any:
    """A handler whose result is this."""

    async def handler(*_: Any) -> AsyncIterator[Result]:
        yield Result(msgspec.Raw(body))

    return handler


async def log_of(handler: Any, rng: random.Random, *, stream: bool, choices: int = 1) -> list[Event]:
    """The log of a task that asks for these choices and that this handler runs; without an end where the task is tried again."""
    effects: Any = Effects()
    writer: Any = Writer()
    worker = Worker("w", "w", 2, ["m"], 1, send=lambda _: None, close=lambda *_: None)
    grant = Grant(
        TASK, 1, 1, "token", "m", "q", "openaiLike", "u", "", stream, 1000, 0, 0, 1, stream, "", 0, "{}"
    )  # fmt: skip
    attempt = Attempt(effects, grant, worker, writer)
    writer.add("start", ev.compose(TASK, 1, b'"attempt":1,%b' % ev.fragment_start("m", "q")))
    payload = b'{"model":"m","messages":[],"n":%d}' % choices
    attempt.send(payload)
    attempt.acknowledged()
    task = Task(task_id=TASK, type="openaiLike", model="m", payload_bytes=payload, stream=stream)
    result = TaskResult(task_id=TASK, attempt=1)
    try:
        async for item in handler(task, Context(task, deadline=None)):
            if isinstance(item, Delta):
                result.last_seq += 1
                frame = encoder.encode(TaskChunk(task_id=TASK, attempt=1, seq=result.last_seq, deltas=[item]))
                message: Any = from_worker.decode(frame)
                assert messages.chunk(attempt, message) is None
                if rng.random() < 0.5:
                    writer.flush()
            elif isinstance(item, Usage):
                result.usage = item.as_json()
            elif isinstance(item, Result):
                result.result = as_json(item.value)
    except TaskError as error:
        result.error = error.message
        result.error_info = ErrorInfo(error.code, error.retryable, error.message)
    told: Any = from_worker.decode(encoder.encode(result))
    messages.result(attempt, told)
    writer.flush()
    if isinstance(effects.step, Finish):
        kind = "done" if effects.step.state is State.COMPLETED else "error"
        writer.add(kind, ev.compose(TASK, 1, effects.step.fragment))
    events: list[Event] = writer.events
    return events


# ---- the readings ----------


def fold(view: Any, events: list[Event]) -> Any:
    for event in events:
        view.feed(event)
    return view


def frames(view: Any, events: list[Event]) -> list[Any]:
    """The data of a stream's frames, but `[DONE]`."""
    shown = b"".join(view.feed(event) for event in events)
    if view.pending is not None:
        shown += b"".join(view.finish(fold(ResultView(INFO), events).result_json()))
    blocks = shown.decode().split("\n\n")[:-1]
    told = [next(line[6:] for line in block.split("\n") if line.startswith("data: ")) for block in blocks]
    return [json.loads(one) for one in told if one != "[DONE]"]


Told = dict[str, Any]
"""What a client has of one choice: reasoning, text, refusal, calls (id, name, arguments), finish, usage."""


def chat_message(choice: Any, usage: Any) -> Told:
    message = choice["message"]
    assert message["content"] is None or isinstance(message["content"], str)
    return {
        "reasoning": message.get("reasoning_content") or "",
        "text": message["content"] or "",
        "refusal": message.get("refusal") or "",
        "calls": [
            (c["id"], c["function"]["name"], c["function"]["arguments"])
            for c in message.get("tool_calls") or ()
        ],
        "finish": choice["finish_reason"],
        "usage": (usage["prompt_tokens"], usage["completion_tokens"]),
    }


def chat_body(body: Any) -> list[Told]:
    return [chat_message(choice, body["usage"]) for choice in body["choices"]]


def chat_stream(told: list[Any]) -> list[Told]:
    found: dict[int, Any] = {}
    for frame in told:
        for choice in frame["choices"]:
            one = found.setdefault(
                choice["index"], {"message": {"content": "", "tool_calls": []}, "finish_reason": None}
            )
            assert one["finish_reason"] is None or not choice["delta"]
            assert choice["finish_reason"] != ""
            for name in ("content", "reasoning_content", "refusal"):
                if name in choice["delta"]:
                    one["message"][name] = one["message"].get(name, "") + choice["delta"][name]
            for call in choice["delta"].get("tool_calls", ()):
                calls = one["message"]["tool_calls"]
                if call["index"] == len(calls):
                    calls.append(
                        {"id": call["id"], "function": {"name": call["function"]["name"], "arguments": ""}}
                    )
                else:
                    assert not {"id", "type"} & call.keys()
                    assert "name" not in call["function"]
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            one["finish_reason"] = choice["finish_reason"] or one["finish_reason"]
    assert told[-1]["choices"] == []
    return [chat_message(found[index], told[-1]["usage"]) for index in sorted(found)]


def native(result: Any, usage: Any) -> list[Told]:
    """Of the result as polls and the native stream have it, with the usage next to it."""
    if "object" in result:
        return chat_body({**result, "usage": openai(usage)})
    listed = result.get("choices") or [{"index": 0, **result}]
    assert [one["index"] for one in listed] == list(range(len(listed)))
    return [
        {
            "reasoning": one.get("reasoning", ""),
            "text": one["content"],
            "refusal": one.get("refusal", ""),
            "calls": [
                (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in one.get("toolCalls", ())
            ],
            "finish": one.get("finishReason", "stop"),
            "usage": (openai(usage)["prompt_tokens"], openai(usage)["completion_tokens"]),
        }
        for one in listed
    ]


def openai(usage: Any) -> Any:
    return json.loads(openai_usage(json.dumps(usage).encode()) or b"{}")


def message(body: Any) -> Told:
    blocks, usage = body["content"], body["usage"]
    return {
        "reasoning": "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "text": "".join(block["text"] for block in blocks if block["type"] == "text"),
        "calls": [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"],
        "finish": body["stop_reason"],
        "usage": (usage["input_tokens"], usage["output_tokens"]),
        "order": [block["type"] for block in blocks],
    }


def message_stream(told: list[Any]) -> Told:
    body: dict[str, Any] = {"content": []}
    for data in told:
        if data["type"] == "content_block_start":
            body["content"].append({**data["content_block"], "json": ""})
        elif data["type"] == "content_block_delta":
            block, delta = body["content"][data["index"]], data["delta"]
            for name, value in delta.items():
                if name != "type":
                    name = {"partial_json": "json"}.get(name, name)
                    block[name] += value
        elif data["type"] == "message_delta":
            body |= data["delta"]
            body["usage"] = data["usage"]
    for block in body["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    assert told[-1]["type"] == "message_stop"
    return message(body)


def response(body: Any) -> Told:
    parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    why = (body["incomplete_details"] or {}).get("reason")
    return {
        "reasoning": "".join(
            p["text"] for i in body["output"] if i["type"] == "reasoning" for p in i["content"]
        ),
        "text": "".join(part["text"] for part in parts if part["type"] == "output_text"),
        "refusal": "".join(part["refusal"] for part in parts if part["type"] == "refusal"),
        "calls": [
            (i["call_id"], i["name"], i["arguments"]) for i in body["output"] if i["type"] == "function_call"
        ],
        "finish": why or body["status"],
        "usage": (body["usage"]["input_tokens"], body["usage"]["output_tokens"]),
        "order": [item["type"] for item in body["output"]],
    }


def response_stream(told: list[Any]) -> Told:
    """Of the items as their events say them; the last event repeats them."""
    items = [data["item"] for data in told if data["type"] == "response.output_item.done"]
    last = told[-1]["response"]
    assert last["output"] == items
    texts = {
        "response.output_text.delta": "text",
        "response.refusal.delta": "refusal",
        "response.reasoning_text.delta": "reasoning",
    }
    streamed = dict.fromkeys(texts.values(), "")
    for data in told:
        if data["type"] in texts:
            streamed[texts[data["type"]]] += data["delta"]
    one = response(last)
    assert {name: one[name] for name in streamed} == streamed
    return one


def check(events: list[Event], answer: Answer) -> None:
    """All readings of a finished task against each other, and against what the server meant."""
    assert events[-1].type == "done", events[-1].data
    body = fold(ChatBodyView(INFO), events).body()
    chat = chat_body(json.loads(body))
    line = json.loads(answered(0, "c", TASK, body).record)
    view = fold(ResultView(INFO), events)
    last = frames(NativeStreamView(INFO), events)[-1]
    every = {
        "chat stream": chat_stream(frames(ChatStreamView(INFO, include_usage=True), events)),
        "native": native(json.loads(view.result_json()), json.loads(view.usage)),
        "native stream": native(last["result"], last.get("usage", json.loads(view.usage))),
        "batch": chat_body(line["response"]["body"]),
    }
    for name, told in every.items():
        assert told == chat, f"{name} {differing(told, chat)}"
    meant(chat, answer)
    first = chat[0]
    calls = [(call_id, name, parsed(arguments)) for call_id, name, arguments in first["calls"]]
    reason = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    }[first["finish"]]
    if reason == "end_turn" and (calls or first["refusal"]):
        reason = "tool_use" if calls else "refusal"
    messages = {
        "reasoning": first["reasoning"],
        "text": first["text"] + first["refusal"],
        "calls": calls,
        "finish": reason,
        "usage": first["usage"],
    }
    for name, one in (
        ("message", message(json.loads(fold(MessagesBodyView(INFO), events).body()))),
        ("message stream", message_stream(frames(MessagesStreamView(INFO), events))),
    ):
        assert one.pop("order") == sorted(
            one_order(first, "thinking", "text", "tool_use"), key=["thinking", "text", "tool_use"].index
        ), name
        assert one == messages, f"{name} {differing([one], [messages])}"
    finish = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(
        first["finish"], "completed"
    )
    for name, one in (
        ("response", response(json.loads(fold(ResponsesBodyView(INFO, ECHO), events).body()))),
        ("response stream", response_stream(frames(ResponsesStreamView(INFO, ECHO), events))),
    ):
        assert one.pop("order") == one_order(first, "reasoning", "message", "function_call"), name
        expected = [(call_id, called, arguments or "{}") for call_id, called, arguments in first["calls"]]
        expected_one = {**first, "calls": expected, "finish": finish}
        assert one == expected_one, f"{name} {differing([one], [expected_one])}"


def differing(told: list[Told], expected: list[Told]) -> str:
    """What differs, in a few words."""
    if len(told) != len(expected):
        return f"{len(told)} choices for {len(expected)}"
    return ", ".join(
        f"{key} {one[key]!r:.120} for {other[key]!r:.120}"
        for one, other in zip(told, expected, strict=True)
        for key in other
        if one.get(key) != other[key]
    )


def one_order(told: Told, thought: str, said: str, call: str) -> list[str]:
    """The kinds of blocks of a choice, in order: the reasoning before what it leads to."""
    texts = [told["text"], told["refusal"]] if said == "text" else [told["text"] + told["refusal"]]
    return [thought] * bool(told["reasoning"]) + [said] * any(texts) + [call] * len(told["calls"])


def parsed(arguments: str) -> Any:
    return json.loads(arguments or "{}")


def meant(told: list[Told], answer: Answer) -> None:
    assert len(told) == len(answer.choices)
    for one, choice in zip(told, answer.choices, strict=True):
        said = {
            "reasoning": choice.reasoning,
            "text": choice.text,
            "refusal": choice.refusal,
            "finish": choice.finish,
        }
        assert {**one, **said} == one, f"meant {differing([one], [{**one, **said}])}"
        assert [name for _, name, _ in one["calls"]] == [call.name for call in choice.calls]
        assert [parsed(text) for *_, text in one["calls"]] == [
            parsed(call.arguments) for call in choice.calls
        ]
        ids = [call_id for call_id, *_ in one["calls"]]
        assert len(set(ids)) == len(ids)
        for call_id, call in zip(ids, choice.calls, strict=True):
            assert call_id == call.id if call.id else TASK.replace("-", "") in call_id
        if answer.usage is not None:
            assert one["usage"] == answer.usage


# ---- the tests ----------


@pytest.fixture
def count(pytestconfig: pytest.Config) -> int:
    """How many answers are made."""
    return 5_000 if pytestconfig.getoption("--nightly") else 200


def answers(count: int, **options: Any) -> Iterator[tuple[int, random.Random, Answer]]:
    for seed in range(SEED, SEED + count):
        rng = random.Random(seed)
        yield seed, rng, make_answer(rng, **options)


pytestmark = pytest.mark.anyio


async def test_every_api_says_the_same_of_an_answer(count: int) -> None:
    server = Server()
    adapter, failed, read = (
        PROVIDERS["openai"].adapter(base_url="http://up.test/v1", models=["m"], transport=server),
        {},
        Counter(),
    )
    for seed, rng, answer in answers(count):
        estimates = set()
        for kind in ("stream", "whole answer", "own whole answer"):
            streamed = kind == "stream"
            asked = rng.random() < (0.9 if streamed else 0.1)
            label = "text/event-stream" if streamed else "application/json"
            server.content_type = (
                label
                if rng.random() < 0.8
                else rng.choice(["text/event-stream", "application/json", "text/plain"])
            )
            server.body = b"".join(events_of(rng, answer)) if streamed else in_bytes(rng, whole(rng, answer))
            server.rng = rng
            read[kind, "asked for a stream" if asked else "asked for a whole one"] += 1
            if kind == "own whole answer":  # a worker of one's own passes it on as it is
                server.body = json.dumps(whole(rng, answer)).encode()
            handler = passes_on(server.body) if kind == "own whole answer" else adapter
            try:
                events = await log_of(handler, rng, stream=asked, choices=len(answer.choices))
                check(events, answer)
                estimates.add(chat_body(json.loads(fold(ChatBodyView(INFO), events).body()))[0]["usage"])
            except (AssertionError, LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
                failed[seed] = f"{kind} {answer.style}: {type(error).__name__} {str(error)[:400]}"
        if len(estimates) > 1:
            failed.setdefault(seed, f"two usages: {estimates}")
    await adapter.aclose()
    print(dict(read), f"from seed {SEED}; {len(failed)} seeds failed")
    assert not failed, "\n".join(f"seed {seed}: {why}" for seed, why in list(failed.items())[:5])


async def test_an_answer_that_is_cut_off_is_a_failure_everywhere(count: int) -> None:
    server = Server()
    adapter, failed, read = (
        PROVIDERS["openai"].adapter(base_url="http://up.test/v1", models=["m"], transport=server),
        {},
        0,
    )
    for seed, rng, answer in answers(count, choices=1):
        answer.style |= {"more after the reason": False, "whole": "never"}
        parts = events_of(rng, answer)
        end = next(
            (at for at, part in enumerate(parts) if answer.choices[0].said and ends(part)), len(parts) - 1
        )
        said = b"".join(parts[:end]) + parts[end].rstrip()
        for _ in range(3):
            server.body = said[: rng.randint(0, len(said) - 1)]
            server.content_type, server.breaks, server.rng = "text/event-stream", rng.random() < 0.5, rng
            read += 1
            try:
                events = await log_of(adapter, rng, stream=rng.random() < 0.8)
                if events[-1].type == "start":  # it is tried again
                    continue
                assert events[-1].type == "error", events[-1].data
                shown = frames(ChatStreamView(INFO), events)
                assert "error" in shown[-1]
                assert not any(choice["finish_reason"] for frame in shown[:-1] for choice in frame["choices"])
                assert frames(MessagesStreamView(INFO), events)[-1]["type"] == "error"
                assert frames(ResponsesStreamView(INFO, ECHO), events)[-1]["type"] == "response.failed"
                assert fold(ResultView(INFO), events).status == "failed"
            except (AssertionError, LookupError, TypeError, ValueError) as error:
                failed[seed] = (
                    f"{answer.style}: {type(error).__name__} {str(error)[:600]} after {server.body[-200:]!r}"
                )
    await adapter.aclose()
    print(f"{read} cut streams from seed {SEED}; {len(failed)} seeds failed")
    assert not failed, "\n".join(f"seed {seed}: {why}" for seed, why in list(failed.items())[:5])


def ends(frame: bytes) -> bool:
    """Whether a frame says why the choice ended."""
    data = frame.partition(b":")[2].strip()
    return data.startswith(b"{") and any(
        choice.get("finish_reason") for choice in json.loads(data)["choices"]
    )
