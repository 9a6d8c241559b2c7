from typing import Any

import msgspec
import pytest

from fairlane.workers.adapters.listing import read_models
from fairlane.workers.protocol import ModelInfo


@pytest.mark.parametrize(
    ("row", "info"),
    [
        ({"max_model_len": 8192, "owned_by": "vllm"}, ModelInfo(8192, "vllm")),
        ({"context_length": 8192}, ModelInfo(8192)),
        ({"context_window": 8192, "owned_by": ""}, ModelInfo(8192)),
        ({"max_context_length": 8192, "max_model_len": None}, ModelInfo(8192)),
        (
            {"meta": {"n_ctx": 8192, "n_ctx_train": 131072}, "owned_by": "llamacpp"},
            ModelInfo(8192, "llamacpp"),
        ),
        ({"meta": []}, ModelInfo()),
        ({"owned_by": "x" * 101}, None),
        ({"max_model_len": "many"}, None),
        ({"max_model_len": -1}, None),
    ],
)
def test_servers_tell_the_length_of_a_context_in_their_ways(row: Any, info: ModelInfo | None) -> None:
    body = msgspec.json.encode({"object": "list", "data": [{"id": 7}, {"id": "m", **row}, "odd"]})
    assert read_models(body).get("m") == info


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": [{"id": "m"}', b"\xff"])
def test_what_is_no_list_of_models_says_nothing(body: bytes) -> None:
    assert read_models(body) == {}
