import base64
import json
import struct
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse
from streaming_logs import INFO, Log, fold

from fairlane.streaming.views.embeddings import EmbeddingBodyView
from fairlane.streaming.views.result import ResultShapeError

VECTOR = [0.5, -2.0, 1.0]
PACKED = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()


def raw_body(result: Any, encoding_format: str = "float", usage: Any = None) -> bytes:
    log = Log().start().done(result, usage=usage)
    made: bytes = fold(EmbeddingBodyView(INFO, encoding_format), log.events).body()
    return made


def upstream(*embeddings: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": i, "embedding": e, "x": 1} for i, e in enumerate(embeddings)]
    return {
        "object": "list",
        "data": data,
        "model": "up",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
        "y": 1,
    }


@pytest.mark.parametrize(("encoding_format", "shown"), [("float", VECTOR), ("base64", PACKED)])
@pytest.mark.parametrize(("result", "count"), [(VECTOR, 1), ([VECTOR, VECTOR], 2)])
def test_bare_vectors_become_openais_object(
    encoding_format: str, shown: Any, result: Any, count: int
) -> None:
    body = json.loads(raw_body(result, encoding_format, {"inputTokens": 5}))
    assert [(entry["index"], entry["embedding"]) for entry in body["data"]] == [
        (i, shown) for i in range(count)
    ]
    assert (body["object"], body["model"], body["usage"]["prompt_tokens"]) == ("list", "small-model", 5)
    if encoding_format == "float":
        CreateEmbeddingResponse.model_validate(body)


@pytest.mark.parametrize(
    ("sent", "encoding_format", "shown"),
    [
        (VECTOR, "float", VECTOR),
        (PACKED, "base64", PACKED),
        (VECTOR, "base64", PACKED),
        (PACKED, "float", VECTOR),
    ],
)
def test_vectors_arrive_in_the_encoding_asked_for(sent: Any, encoding_format: str, shown: Any) -> None:
    result = upstream(sent, sent)
    raw = raw_body(result, encoding_format)
    assert json.loads(raw) == upstream(shown, shown)
    if sent == shown:
        assert raw == json.dumps(result).encode()


@pytest.mark.parametrize(("told", "order"), [((1, 0), (1, 0)), ((None, None), (0, 1)), ((0, 0), (0, 1))])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_vectors_stand_in_the_order_of_their_indexes(told: Any, order: Any, encoding_format: str) -> None:
    result = upstream([0.0], [1.0])
    for entry, index in zip(result["data"], told, strict=True):
        entry["index"] = index
    body = json.loads(raw_body(result, encoding_format))
    shown = [upstream([float(i)])["data"][0]["embedding"] for i in order]
    if encoding_format == "base64":
        shown = [base64.b64encode(struct.pack("<f", *vector)).decode() for vector in shown]
    assert [(entry["index"], entry["embedding"]) for entry in body["data"]] == list(enumerate(shown))


@pytest.mark.parametrize(
    ("result", "came"),
    [
        ({"data": "none"}, "an object with the members data"),
        ({"id": "1", "choices": []}, "an object with the members id, choices"),
        ({}, "an empty object"),
        ("text", "a text"),
        (7, "a number"),
        (True, "true"),
        (None, "nothing"),
        ([], "a list"),
        (["a", "b"], "a list"),
        ([[1], ["x"]], "a list"),
        ([None], "a list"),
        *((value, "data that are no embeddings") for value in ({"data": [None, 3, {}]}, upstream(None))),
        (upstream(), "an empty list of embeddings"),
        *((upstream(text), "data that are no embeddings") for text in ("not base64!", "QUJD")),
    ],
)
def test_what_is_no_embedding_is_named(result: Any, came: str) -> None:
    with pytest.raises(ResultShapeError, match=f"^The worker answered with {came}"):
        raw_body(result)
